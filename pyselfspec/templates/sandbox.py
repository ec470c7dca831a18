"""The program that renders chat templates, Jinja programs from model files, for rendering.py, in a
process of its own with limits: python sandbox.py SECONDS BYTES. It answers every line of JSON on
stdin with one on stdout. Imports nothing of this package, so that it starts quickly.

Templates see the functions and filters that Hugging Face's library gives them.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Templates of published models need a small fraction of each limit.
MAX_TEXT = 1 << 26  # characters of a text or elements of a list
MAX_LOOPS = 1 << 18  # loop iterations of one rendering
MAX_EXPONENT = 1 << 10
COUNT = "_count_loop"  # a name that templates cannot use
N_COMPILED = 8  # templates that are kept


class _Bounded(ImmutableSandboxedEnvironment):
    """A sandbox that names what is too much, where that is easy to see, before a limit of the
    process ends it."""

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


@lru_cache(N_COMPILED)
def compiled(source: str) -> Template:

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = _Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the text of a template, or how it failed. A request without variables only compiles
    it."""
    try:
        template = compiled(request["source"])
    except (TemplateSyntaxError, RecursionError) as error:
        return {"line": getattr(error, "lineno", 1), "error": str(error)}
    if request["variables"] is None:
        return {"text": ""}
    now, loops = datetime.fromisoformat(request["now"]), itertools.count(1)

    def count() -> None:
        if next(loops) > MAX_LOOPS:
            raise TemplateError(f"its loops run more than {MAX_LOOPS} times")

    own = {COUNT: count, "strftime_now": now.strftime}
    try:
        text = template.render(**own | request["variables"] | {COUNT: count})
    except Exception as error:  # a foreign program, which may raise anything
        kind = "" if isinstance(error, TemplateError) else type(error).__name__
        return {"kind": kind, "error": str(error)}
    if len(text) > MAX_TEXT:
        return {"kind": "", "error": f"the prompt has more than {MAX_TEXT} characters"}
    return {"text": text}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode as JSON, without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def limit_memory(n_bytes: int) -> None:
    """Let this process have no more memory, where the system can."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def main() -> None:
    seconds, n_bytes = float(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    limit_memory(n_bytes)
    timer = getattr(signal, "setitimer", None)
    for line in sys.stdin.buffer:
        if timer is not None:  # whose signal ends the process, whatever it is doing
            timer(signal.ITIMER_PROF, seconds)
        try:
            said = json.dumps(answer(json.loads(line)))
        except (MemoryError, RecursionError) as error:
            said = json.dumps({"kind": type(error).__name__, "error": ""})
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
        if timer is not None:
            timer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
