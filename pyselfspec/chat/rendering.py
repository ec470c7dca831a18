"""Chat templates are programs in Jinja that come with a model file: they run in a sandbox, and see
what Hugging Face's library shows them. Knows no model. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ArgumentError


class _Generation(Extension):
    """``{% generation %}``, with which templates for training mark answers: its body as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rendering:
    """One template. now: the clock of ``strftime_now``.

    Raises ArgumentError for a text that is no template.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        environment = ImmutableSandboxedEnvironment(
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
        """Raises ArgumentError for what the template refuses or cannot take."""
        try:
            return self._template.render(**variables)
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
