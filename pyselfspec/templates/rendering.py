"""Renders chat templates, Jinja programs from model files, in a sandbox with limits. Templates see
the functions and filters that Hugging Face's library gives them. Pure."""

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

# Templates of published models need a small fraction of each limit.
MAX_SOURCE = 1 << 18  # characters
MAX_TEXT = 1 << 26  # characters of a text or elements of a list
MAX_LOOPS = 1 << 18  # loop iterations of one rendering
MAX_EXPONENT = 1 << 10
COUNT = "_count_loop"  # a name that templates cannot use


class _Bounded(ImmutableSandboxedEnvironment):
    """A sandbox with limits on run time and memory. Jinja's own bounds one ``range``, but neither
    nested loops nor repetitions of a string."""

    intercepted_binops = frozenset(["*", "**"])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            count = nodes.Call(nodes.Name(COUNT, "load"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(count).set_lineno(loop.lineno))
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > MAX_EXPONENT:
            raise TemplateError(f"an exponent is more than {MAX_EXPONENT}")
        for repeated, n in ((left, right), (right, left)):
            if isinstance(repeated, str | list | tuple) and len(repeated) * n > MAX_TEXT:
                raise TemplateError(f"a repeated text has more than {MAX_TEXT} characters")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """The tag ``{% generation %}``, which marks answers for training: renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Renderer:
    """A compiled template. now: the clock of ``strftime_now``.

    Raises ArgumentError for a source with a syntax error, or longer than MAX_SOURCE.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        if len(source) > MAX_SOURCE:
            raise ArgumentError(
                f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are allowed"
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
        """Return the rendered text. Raises ArgumentError if the template refuses these variables,
        fails, or exceeds a limit."""
        loops = itertools.count(1)

        def count() -> None:
            if next(loops) > MAX_LOOPS:
                raise TemplateError(f"its loops run more than {MAX_LOOPS} times")

        try:
            return self._template.render(**variables | {COUNT: count})
        except Exception as error:  # a foreign program, which may raise anything
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
    """Encode as JSON, without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
