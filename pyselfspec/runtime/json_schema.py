"""Grammars made from JSON schemas by llama-cpp-python's converter, which supports a part of JSON
Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from ..errors import ArgumentError
from ..util.paths import on_one_line
from .grammar import N_GRAMMAR

N_SCHEMA = 1 << 16  # characters
N_REPEAT = 256  # most that a schema may count up to
DEFINITIONS = {"$defs", "definitions"}
NAMED = {"properties", *DEFINITIONS}  # keywords whose values are schemas by name
LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}  # keywords whose values are lists of schemas
VALUES = {"const", "enum"}  # keywords whose values are no schemas
EXAMPLES = {"default", "examples"}  # keywords that say nothing of what is allowed
COUNTS = {"minItems", "maxItems", "minLength", "maxLength"}
# Keywords that allow every value.
ANNOTATIONS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$schema", "$id", "$comment", *DEFINITIONS,
}  # fmt: skip
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ANY = {"type": [name for name in TYPES if name != "integer"]}
N_WHERE = 200  # characters of a place in a schema that an error repeats
_REPEAT = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


def to_gbnf(schema: Mapping[str, Any]) -> str:
    """Return GBNF for the JSON values that a schema allows.

    Raises ArgumentError for a schema that is malformed, too large, or cannot become a grammar.
    """
    _require_small(schema)
    definitions: dict[str, Any] = {}
    return _converted(_plain(schema, "#", definitions), definitions)


def calls_to_gbnf(parameters: Mapping[str, Mapping[str, Any]]) -> str:
    """Return GBNF for a call of one of several functions: {"name": ..., "arguments": ...}.

    parameters: by function, the JSON schema of its arguments. References stay inside one schema.

    Raises ArgumentError as to_gbnf does.
    """
    _require_small(parameters)
    definitions: dict[str, Any] = {}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "arguments": _plain(schema, f"{name}#", definitions),
            },
            "required": ["name", "arguments"],
        }
        for name, schema in parameters.items()
    ]
    return _converted({"oneOf": calls} if len(calls) > 1 else calls[0], definitions)


def _require_small(schema: Mapping[str, Any]) -> None:
    n = len(json.dumps(schema))
    if n > N_SCHEMA:
        raise ArgumentError(f"a JSON schema has at most {N_SCHEMA} characters, got {n}")
    if (largest := max(_counts(schema), default=0)) > N_REPEAT:
        raise ArgumentError(f"a count in a JSON schema is at most {N_REPEAT}, got {largest}")


def _converted(plain: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the grammar of a schema in the form of `_plain`."""
    if definitions:
        plain = plain | {"$defs": definitions}
    try:
        grammar = _convert(json.dumps(plain))
    except RecursionError:
        raise
    except Exception as error:  # the converter asserts, and fails in any way on nonsense
        reason = str(error) or type(error).__name__
        if reason.startswith("Unrecognized schema"):  # quotes what was rewritten
            reason = "a part of it has no type, and nothing else that a grammar can be made from"
        raise _unsupported(reason) from None
    if len(grammar) > N_GRAMMAR:
        raise ArgumentError("the JSON schema is too large when its repetitions are written out")
    return grammar


def _convert(schema: str) -> str:
    """Return llama-cpp-python's grammar for a schema; name and arguments of functions come in this
    order. Raises any exception for an unsuitable schema."""
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    return str(json_schema_to_gbnf(schema, prop_order=["name", "arguments"]))


def _unsupported(reason: str) -> ArgumentError:
    return ArgumentError(f"this JSON schema is not supported: {on_one_line(reason)}")


def _plain(schema: Mapping[str, Any], root: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in the form that the converter understands, without definitions. The root
    is not a $ref, and every $ref points into $defs: its target is added to `definitions`, by a name
    that no other rule of the grammar has.

    root: what errors call the schema.

    Raises ArgumentError for a schema that is malformed.
    """
    _require_well_formed(schema, root)
    names: dict[str, str] = {}  # of definitions, by the pointers of references
    pointers: list[str] = []

    def rewritten(node: Any) -> Any:
        if isinstance(node, list):
            return [rewritten(each) for each in node]
        if not isinstance(node, Mapping):
            return node
        pointer = node.get("$ref")
        if isinstance(pointer, str) and pointer.startswith("#"):
            if pointer not in names:
                names[pointer] = f"definition{len(definitions)}"
                definitions[names[pointer]] = {}
                pointers.append(pointer)
            return {"$ref": f"#/$defs/{names[pointer]}"}
        if node.keys() <= ANNOTATIONS:
            return ANY
        return {key: inside(key, each) for key, each in node.items() if key not in EXAMPLES}

    def inside(key: str, value: Any) -> Any:
        if key in NAMED and isinstance(value, Mapping):
            return {name: rewritten(each) for name, each in value.items()}
        if key == "items" and value is True:
            return ANY
        return value if key in VALUES else rewritten(value)

    own = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    plain: dict[str, Any] = rewritten(own)
    for pointer in pointers:  # their number grows meanwhile
        target = _at(schema, pointer)
        _require_well_formed(target, pointer)
        definitions[names[pointer]] = rewritten(target)
    _require_ends({pointer: definitions[name] for pointer, name in names.items()}, names)
    return {"anyOf": [plain]} if "$ref" in plain else plain


def _require_ends(targets: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise ArgumentError where references lead to nothing but each other.

    targets: what references point to, by pointer.
    names: of the definitions that these have become.
    """
    pointers = {f"#/$defs/{name}": pointer for pointer, name in names.items()}

    def direct(node: Mapping[str, Any]) -> Iterator[str]:
        if "$ref" in node:
            yield pointers[node["$ref"]]
        else:
            for each in node.get("oneOf") or node.get("anyOf") or ():
                yield from direct(each)

    graph = {pointer: set(direct(target)) for pointer, target in targets.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise _unsupported(f'the reference "{error.args[1][0]}" leads back to itself') from None


def _require_well_formed(schema: Any, where: str) -> None:
    for fault in _faults(schema, where):
        raise _unsupported(fault)


def _faults(schema: Any, where: str) -> Iterator[str]:
    """Yield what is malformed or unsupported in a schema, with its place as a JSON pointer."""
    if not isinstance(schema, Mapping):
        yield f"{where[:N_WHERE]} is not an object, so it is no schema"
        return
    for key, value in schema.items():
        inner = f"{where}/{key.replace('~', '~0').replace('/', '~1')}"
        if key in FORMS and not FORMS[key].holds(value):
            given = json.dumps(value)
            yield f"{inner[:N_WHERE]} is not {FORMS[key].words}: {given[:N_WHERE]}"
        elif key in VALUES and '"$ref": ' in json.dumps(value):
            yield f'{inner[:N_WHERE]} has the name "$ref", which only references have'
        elif key == "items" and (value is False or value == []) and "prefixItems" not in schema:
            yield f"{inner[:N_WHERE]} allows nothing: {json.dumps(value)}"
        elif key in NAMED:
            if "$ref" in value:
                yield f'{inner[:N_WHERE]} has the name "$ref", which only references have'
            for name, each in value.items():
                yield from _faults(each, f"{inner}/{name.replace('~', '~0').replace('/', '~1')}")
        elif key in LISTED or (key == "items" and isinstance(value, list)):
            for i, each in enumerate(value):
                yield from _faults(each, f"{inner}/{i}")
        elif key in ("items", "additionalProperties") and not isinstance(value, bool):
            yield from _faults(value, inner)


@dataclass(frozen=True, slots=True)
class _Form:
    """The required type of a keyword's value."""

    words: str
    holds: Callable[[Any], bool]


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_type(value: Any) -> bool:
    return value in TYPES or (_is_filled_list(value) and all(each in TYPES for each in value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_local(value: Any) -> bool:
    return isinstance(value, str) and (value == "#" or value.startswith("#/"))


FORMS = {
    "$ref": _Form('a reference within the schema, like "#/$defs/name"', _is_local),
    "enum": _Form("a list of at least one value", _is_filled_list),
    "type": _Form(f"one or several of {', '.join(TYPES)}", _is_type),
    "required": _Form("a list of names", _is_names),
    "pattern": _Form("a string", lambda value: isinstance(value, str)),
    "format": _Form("a string", lambda value: isinstance(value, str)),
    **dict.fromkeys(NAMED, _Form("an object", lambda value: isinstance(value, Mapping))),
    **dict.fromkeys(LISTED, _Form("a list of at least one schema", _is_filled_list)),
    **dict.fromkeys(COUNTS, _Form("a count", lambda value: isinstance(value, int) and value >= 0)),
}


def _at(schema: Any, pointer: str) -> Any:
    """Return the part of a schema that a JSON pointer, written as a fragment, points to."""
    node = schema
    for part in unquote(pointer).removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(key)] if isinstance(node, list) else node[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise _unsupported(f"there is nothing at {pointer}") from None
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
