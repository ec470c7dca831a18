#!/usr/bin/env python3
"""Writes docs/api.md, the reference of the Python API, from signatures and docstrings.

python tools/api_docs.py
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pyselfspec

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
WIDTH = 100  # columns; a longer signature has a line for each parameter
MAX_DEFAULT = 30  # characters
NEW_LINE = "\n"
INTRODUCTION = """\
# Python API

All public names of `pyselfspec`; [Python](python.md) has examples, and `Llama` has
[a page of its own](from-llama-cpp-python.md). `python tools/api_docs.py` writes this page.
"""
GROUPS = {
    "Models and contexts": "Model Context ContextOptions KVSequence model_path DEMO BUILD_ID",
    "Text": "Completion TextRecord generate generate_batch generate_steps SamplingParams GREEDY "
    "Sampler GenerationStats",
    "Chats": "ChatTemplate Conversation",
    "Drafts": "DraftConfig drafters controllers",
    "Masks": "LayerMask scan ScanResult search SearchResult strategies objectives",
    "Drafters and controllers of your own": "Drafter LookupDrafter Controller Fixed Draft "
    "DraftToken DraftLimit Step Verdict",
    "Errors": "errors",
}
VALUES = {
    "DEMO": "The path of the model that comes with the package.",
    "BUILD_ID": "The library: the version of its source, and a hash of patches and of our code.",
    "GREEDY": "Parameters that always take the most likely token.",
}
HIDDEN = {"handle", "session", "vocab"}  # addresses of native objects
OTHERS = {  # names without a place at the top of the package
    "ContextOptions": "runtime.context_options",
    "TextRecord": "speculate.output.record",
}
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
PARAMETERS = re.compile(r"([a-z]\w*(?:, [a-z]\w*)*): ")
SENTENCE_ENDS = (".", ":", ";")
Members = dict[str, Any]


def page() -> str:
    """Return the whole page, in Markdown."""
    parts = [INTRODUCTION]
    for title, names in GROUPS.items():
        parts += [f"## {title}\n", *map(section, names.split())]
    return "\n".join(parts)


def section(name: str) -> str:
    """Return the section of a public name."""
    home = import_module(f"pyselfspec.{OTHERS[name]}") if name in OTHERS else pyselfspec
    found = getattr(home, name)
    if name in VALUES:
        return f"### {name}\n\n{VALUES[name]}\n"
    if isinstance(found, ModuleType):
        return f"### {name}\n\n{markdown(inspect.getdoc(found) or '')}{''.join(_errors(found))}"
    parts = [f"### {name}\n"]
    if call := signature(name, found):
        parts.append(f"```py\n{call}\n```\n")
    parts.append(markdown(inspect.getdoc(found) or ""))
    if inspect.isclass(found):
        listed = [_member(key, value) for key, value in members(found).items()]
        parts += ["Methods and properties:\n", *listed] if listed else []
    return "\n".join(parts)


def _errors(module: ModuleType) -> Iterator[str]:
    """Yield a line for each class of errors that a module defines."""
    for name, found in vars(module).items():
        is_own = getattr(found, "__module__", "") == module.__name__
        if is_own and inspect.isclass(found) and issubclass(found, Exception):
            yield f"\n- `{name}`: {' '.join((inspect.getdoc(found) or '').split())}\n"


def members(kind: type) -> Members:
    """Return the public methods and properties of a class, those of its bases in this package
    included."""
    found: Members = {}
    for each in kind.__mro__:
        if each.__module__.startswith("pyselfspec"):
            for name, value in vars(each).items():
                is_shown = callable(_function(value)) or isinstance(value, property)
                is_hidden = name in HIDDEN or "Tests read it" in (inspect.getdoc(value) or "")
                if not name.startswith("_") and is_shown and not is_hidden:
                    found.setdefault(name, value)
    return found


def _function(member: Any) -> Any:
    """Return the function that a method, class method or cached property wraps."""
    if isinstance(member, cached_property):
        return member.func
    return getattr(member, "__func__", member)


def _member(name: str, member: Any) -> str:
    is_method = not isinstance(member, property | cached_property)
    bound = not isinstance(member, staticmethod)
    call = signature(name, _function(member), one_line=True, bound=bound) if is_method else name
    prose = markdown(inspect.getdoc(member) or "")
    first, _, rest = prose.partition("\n\n")
    text = f": {first.strip()}" if first.strip() else ""
    return textwrap.indent(f"`{call}`{text}\n\n{rest}".rstrip(), "  ").replace("  ", "- ", 1) + "\n"


def signature(name: str, found: Any, *, one_line: bool = False, bound: bool = False) -> str:
    """Return how to call something, "" for errors, protocols and abstract classes.

    bound: the first parameter is the object or its class.
    """
    is_error = inspect.isclass(found) and issubclass(found, Exception)
    if is_error or getattr(found, "_is_protocol", False) or inspect.isabstract(found):
        return ""
    call = inspect.signature(found)
    parameters = [*_parameters([*call.parameters.values()][bound:])]
    returned = call.return_annotation
    is_told = not inspect.isclass(found) and returned not in (inspect.Signature.empty, "None")
    end = f" -> {_type(returned)}" if is_told else ""
    text = f"{name}({', '.join(parameters)}){end}"
    if one_line or len(text) <= WIDTH:
        return text
    return f"{name}(\n{''.join(f'    {each},{NEW_LINE}' for each in parameters)}){end}"


def _parameters(found: list[inspect.Parameter]) -> Iterator[str]:
    """Yield each parameter as in its source, and a star before the ones given by name only."""
    before: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for each in found:
        if each.kind is each.KEYWORD_ONLY and before is each.POSITIONAL_OR_KEYWORD:
            yield "*"
        before = each.kind
        text = STARS.get(each.kind, "") + each.name
        if each.annotation is not each.empty:
            text += f": {_type(each.annotation)}"
        if each.default is not each.empty:
            text += f" = {_shown(each.default)}"
        yield text


def _type(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def _shown(default: Any) -> str:
    """Return a default value; "..." for one that is an object of its own."""
    text = repr(default)
    return "..." if "<" in text or "Path(" in text or len(text) > MAX_DEFAULT else text


def markdown(doc: str) -> str:
    """Return a docstring in Markdown: parameters as lists, examples in a block."""
    blocks = [_block(block) for block in re.split(r"\n\n+", doc.strip()) if block]
    return re.sub("(?<!`)``(?!`)", "`", "\n\n".join(blocks)) + "\n"


def _block(text: str) -> str:
    if text.startswith(">>>"):
        return f"```text\n{re.sub('  +# doctest:.*', '', text)}\n```"
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        is_new = not lines or lines[-1].endswith(SENTENCE_ENDS)
        if is_new and (match := PARAMETERS.match(line)):
            names = ", ".join(f"`{name}`" for name in match[1].split(", "))
            line = f"- {names}: {line[match.end() :]}"
            if not in_list and lines:
                lines.append("")
            in_list = True
        elif in_list:
            line = f"  {line.strip()}"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
