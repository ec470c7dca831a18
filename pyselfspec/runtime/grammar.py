"""Grammars (GBNF): what may be compiled, and those made from JSON schemas by llama-cpp-python's
converter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from ..errors import ArgumentError
from . import _lib

N_SCHEMA = 1 << 16  # characters
N_GRAMMAR = 1 << 20  # characters of what comes out: repetitions are written out
N_REPEAT = 256  # most that a schema may count up to
N_ELEMENTS = 1 << 19  # of a grammar whose repetitions are written out
N_RULE = 16  # elements that take as much memory as a rule of its own
N_NAME = 1024  # characters of a rule's name
N_TIMES = 2000  # llama.cpp takes a larger upper bound for none
DEPTH_MAX = 1000  # llama.cpp's parser recurses without a limit
DEFINITIONS = {"$defs", "definitions"}
NAMED = {"properties", *DEFINITIONS}  # keywords whose values are schemas by name
VALUES = {"const", "enum", "default", "examples"}  # keywords whose values are no schemas
COUNTS = {"minItems", "maxItems", "minLength", "maxLength"}
_REPEAT = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


def of_json_schema(schema: Mapping[str, Any]) -> str:
    """GBNF for the JSON values that a schema allows.

    Raises ArgumentError for a schema that is wrong, too large, or says what no grammar can.
    """
    text = json.dumps(schema)
    if len(text) > N_SCHEMA:
        raise ArgumentError(f"a JSON schema has at most {N_SCHEMA} characters, got {len(text)}")
    try:
        if (largest := max(_counts(schema), default=0)) > N_REPEAT:
            raise ArgumentError(f"a JSON schema counts up to {N_REPEAT}, got {largest}")
        grammar = _lib.json_schema_to_gbnf(json.dumps(_with_plain_references(schema)))
    except (ArgumentError, RecursionError):
        raise
    except Exception as error:  # the converter asserts, and fails in any way on nonsense
        reason = str(error) or type(error).__name__
        raise ArgumentError(
            f"the JSON schema is not one that can be written by: {reason}"
        ) from None
    if len(grammar) > N_GRAMMAR:
        raise ArgumentError("the JSON schema is too large when its repetitions are written out")
    return grammar


def _with_plain_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema in the form that the converter understands: its root is no reference, and every
    reference is to a definition, by a name that no other rule of the grammar has."""
    names: dict[str, str] = {}

    def rewritten(node: Any) -> Any:
        if isinstance(node, list):
            return [rewritten(each) for each in node]
        if not isinstance(node, Mapping):
            return node
        pointer = node.get("$ref")
        if isinstance(pointer, str) and pointer.startswith("#"):
            name = names.setdefault(pointer, f"definition{len(names)}")
            return {"$ref": f"#/$defs/{name}"}
        return {key: inside(key, value) for key, value in node.items()}

    def inside(key: str, value: Any) -> Any:
        if key in NAMED and isinstance(value, Mapping):
            return {name: rewritten(each) for name, each in value.items()}
        return value if key in VALUES else rewritten(value)

    own = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    plain: dict[str, Any] = rewritten(own)
    if "$ref" in plain:
        plain = {"anyOf": [plain]}
    definitions: dict[str, Any] = {}
    while len(definitions) < len(names):
        pointer, name = list(names.items())[len(definitions)]
        definitions[name] = rewritten(_at(schema, pointer))
    return plain | {"$defs": definitions}


def _at(schema: Any, pointer: str) -> Any:
    """What a JSON pointer, written as a fragment, points to in a schema."""
    node = schema
    for part in unquote(pointer).removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(key)] if isinstance(node, list) else node[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise LookupError(f"there is nothing at {pointer}") from None
    return node


def _counts(node: Any) -> Iterator[int]:
    """Every number of repetitions in a schema, those of patterns included."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in COUNTS and isinstance(value, int):
                yield value
            elif key == "pattern" and isinstance(value, str):
                yield from (int(n) for pair in _REPEAT.findall(value) for n in pair if n)
            else:
                yield from _counts(value)
    elif isinstance(node, list):
        for each in node:
            yield from _counts(each)


_LEXEME = re.compile(
    r"""
      "(?P<literal>(?:\\.|[^"\\])*)"
    | \[(?P<characters>(?:\\.|[^]\\])*)\]
    | (?P<name>[a-zA-Z0-9-]+)
    | (?P<sign>[*+?])
    | \{\s*(?P<low>\d+)\s*(?:(?P<comma>,)\s*(?P<high>\d*)\s*)?\}
    | \#[^\r\n]*
    | (?P<other>[().<>!])
    """,
    re.VERBOSE | re.DOTALL,
)


def fault(grammar: str) -> str | None:
    """Why a GBNF text cannot be compiled; None for one that llama.cpp's parser can be given.

    Only what the parser would not notice, or would not survive, is looked for.
    """
    if not grammar.strip() or "\0" in grammar:
        return "it is empty or holds a NUL character"
    if not grammar.isascii() and any("\ud800" <= each <= "\udfff" for each in grammar):
        return "it holds half a character (a lone surrogate)"
    if len(grammar) > N_GRAMMAR:
        return f"it has {len(grammar)} characters, {N_GRAMMAR} are allowed"
    depth = deepest = n_elements = size = 0
    for found in _LEXEME.finditer(grammar):
        if found["sign"] or found["low"]:
            low, high = _times(found)
            if high is not None and high < low:
                return f"it counts from {low} up to {high}"
            n_more = 1 if high is None else high - low
            n_elements += low * size + n_more * (size + N_RULE)
            size = low * size + (n_more > 0)
        else:
            size = _size(found)
            n_elements += size
            depth += (found["other"] == "(") - (found["other"] == ")")
            deepest = max(deepest, depth)
        if n_elements > N_ELEMENTS:
            return f"its repetitions, written out, have more than {N_ELEMENTS} elements"
        if len(found["name"] or "") > N_NAME:
            return f"the name of a rule has more than {N_NAME} characters"
    if deepest > DEPTH_MAX:
        return f"it nests {deepest} deep, {DEPTH_MAX} is allowed"
    return None


def _times(found: re.Match[str]) -> tuple[int, int | None]:
    """How often a repetition repeats, at least and at most; None: without a limit."""
    if found["sign"]:
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[found["sign"]]
    low = min(int(found["low"][:9]), N_ELEMENTS)
    if not found["comma"]:
        return low, low
    high = int(found["high"][:9]) if found["high"] else None
    return low, None if high is None or high > N_TIMES else high


def _size(found: re.Match[str]) -> int:
    """Elements of what a repetition after it would repeat."""
    text = found["literal"] or found["characters"]
    return 1 if text is None else len(text)
