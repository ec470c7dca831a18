"""Chat templates are programs in Jinja that come with a model file: they run in a sandbox, and see
what Hugging Face's library shows them. Knows no model. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ArgumentError

# What templates of published models need is a small part of each of these.
MAX_SOURCE = 1 << 18  # characters
MAX_TEXT = 1 << 26  # characters of a text or elements of a list
MAX_LOOPS = 1 << 18  # times that bodies of loops run, in one rendering
MAX_EXPONENT = 1 << 10
COUNT = "_count_loop"  # a name that no template can have given


class _Bounded(ImmutableSandboxedEnvironment):
    """A sandbox whose templates end soon: the sandbox of Jinja bounds one ``range``, not loops
    within loops, nor what multiplying makes of a text."""

    intercepted_binops = frozenset(["*", "**"])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            count = nodes.Call(nodes.Name(COUNT, "load"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(count).set_lineno(loop.lineno))
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > MAX_EXPONENT:
            raise TemplateError(f"an exponent is at most {MAX_EXPONENT}")
        for repeated, n in ((left, right), (right, left)):
            if isinstance(repeated, str | list | tuple) and len(repeated) * n > MAX_TEXT:
                raise TemplateError(f"a repeated text has at most {MAX_TEXT} characters")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """``{% generation %}``, with which templates for training mark answers: its body as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rendering:
    """One template. now: the clock of ``strftime_now``.

    Raises ArgumentError for a source that is not a template, or too long.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        if len(source) > MAX_SOURCE:
            raise ArgumentError(
                f"the chat template has {len(source)} characters; {MAX_SOURCE} are allowed"
            )
        environment = _Bounded(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda style: now().strftime(style)
        try:
            self._template: Template = environment.from_string(source)
        except (TemplateSyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise ArgumentError(f"the chat template is broken in line {line}: {error}") from None

    def text(self, **variables: Any) -> str:
        """Raises ArgumentError for what the template refuses or cannot take, and where it does not
        end."""
        loops = itertools.count(1)

        def count() -> None:
            if next(loops) > MAX_LOOPS:
                raise TemplateError(f"its loops run more than {MAX_LOOPS} times")

        try:
            return self._template.render(**variables | {COUNT: count})
        except Exception as error:  # a program of somebody else's; it may fail in any way
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            message = f"the chat template refuses these messages: {kind}{error}"
            raise ArgumentError(message) from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, it escapes nothing for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
