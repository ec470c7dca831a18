"""Grammars made from JSON schemas, as far as a grammar can keep to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ...errors import ArgumentError
from ..grammar import N_TIMES, fault
from .letters import quoted, written
from .parts import BOUNDS, DEFINITIONS, TYPES
from .rules import SchemaRules, SchemaWriter, too_large, unsupported

N_SCHEMA = 1 << 16  # characters
N_DEPTH = 256  # of objects and lists in each other
# Upper bounds of lengths and repetitions above the first number are left out; above the second one,
# too, where the grammar would be too large with them.
UPPER_BOUNDS = (N_TIMES, 100)
NAMED = {"properties", *DEFINITIONS}  # keywords whose values are schemas by name
LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}  # keywords whose values are lists of schemas
LEAST = {"minItems", "minLength"}
MOST = {"maxItems", "maxLength"}
N_BOUND = 10**30  # digits make long rules
N_WHERE = 200  # characters of a place in a schema that an error repeats


def to_gbnf(schema: Mapping[str, Any]) -> str:
    """Return GBNF for the JSON values that a schema allows.

    Raises ArgumentError for a schema that is malformed, too large, or cannot become a grammar.
    """
    _require_small(schema)
    return _fitting(lambda rules: _written(rules, schema, "#"))


def calls_to_gbnf(parameters: Mapping[str, Mapping[str, Any]]) -> str:
    """Return GBNF for a call of one of several functions: {"name": ..., "arguments": ...}.

    parameters: by function, the JSON schema of its arguments. References stay inside one schema.

    Raises ArgumentError as to_gbnf does.
    """
    _require_small(parameters)

    def calls(rules: SchemaRules) -> str:
        return " | ".join(
            f'"{{" space {quoted(written("name"))} ":" space {quoted(written(name))} "," space '
            f'{quoted(written("arguments"))} ":" space {_written(rules, schema, f"{name}#")} '
            'space "}"'
            for name, schema in parameters.items()
        )

    return _fitting(calls)


def _fitting(root: Callable[[SchemaRules], str]) -> str:
    """Return the first grammar that is not too large. root: adds its rules, and returns the text of
    the first one."""
    for most in UPPER_BOUNDS:
        rules = SchemaRules(most)
        grammar = rules.gbnf(root(rules))
        if fault(grammar) is None:
            return grammar
    raise too_large()


def _written(rules: SchemaRules, schema: Mapping[str, Any], where: str) -> str:
    """Add the rules of a schema, and return the name of the first one."""
    _require_well_formed(schema, where)
    targets: dict[str, Mapping[str, Any]] = {}

    def target(pointer: str) -> Mapping[str, Any]:
        if pointer not in targets:
            targets[pointer] = _at(schema, pointer)
            _require_well_formed(targets[pointer], pointer)
        return targets[pointer]

    return SchemaWriter(rules, target).write(schema)


def _require_small(schema: Mapping[str, Any]) -> None:
    level: list[Any] = [schema]
    for _ in range(N_DEPTH):
        level = [each for node in level for each in _children(node)]
    if level:
        raise ArgumentError(f"a JSON schema nests at most {N_DEPTH} deep")
    n = len(json.dumps(schema))
    if n > N_SCHEMA:
        raise ArgumentError(f"a JSON schema has at most {N_SCHEMA} characters, got {n}")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, Mapping):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _require_well_formed(schema: Any, where: str) -> None:
    for reason in _faults(schema, where):
        raise unsupported(reason)


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
        elif key == "items" and (value is False or value == []) and "prefixItems" not in schema:
            yield f"{inner[:N_WHERE]} allows nothing: {json.dumps(value)}"
        elif key in NAMED:
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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | float) and -N_BOUND < value < N_BOUND


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
    **dict.fromkeys(
        LEAST,
        _Form(f"a count up to {N_TIMES}", lambda value: _is_count(value) and value <= N_TIMES),
    ),
    **dict.fromkeys(MOST, _Form("a count", _is_count)),
    **dict.fromkeys(BOUNDS, _Form("a number between -1e30 and 1e30", _is_bound)),
}


def _at(schema: Any, pointer: str) -> Any:
    """Return the part of a schema that a JSON pointer, written as a fragment, points to."""
    node = schema
    for part in unquote(pointer).removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(key)] if isinstance(node, list) else node[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise unsupported(f"there is nothing at {pointer}") from None
    return node
