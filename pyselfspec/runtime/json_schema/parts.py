"""Keywords of JSON schemas, and several schemas that all have to hold as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import ArgumentError

DEFINITIONS = {"$defs", "definitions"}
# Keywords that allow every value.
ALLOWING = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$schema", "$id", "$comment", *DEFINITIONS,
}  # fmt: skip
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
LEAST = {"minLength", "minItems", "minimum", "exclusiveMinimum"}
MOST = {"maxLength", "maxItems", "maximum", "exclusiveMaximum"}


def merged(
    schemas: Iterable[Mapping[str, Any]], unsupported: Callable[[str], ArgumentError]
) -> dict[str, Any]:
    """Return a schema for what several ones allow at once.

    Raises what `unsupported` returns where they contradict each other, or cannot be joined.
    """
    found: dict[str, Any] = {}
    for schema in schemas:
        for key, value in schema.items():
            if key in ALLOWING:
                continue
            if key == "const":
                key, value = "enum", [value]
            joined = _both(key, found[key], value) if key in found else value
            if joined is None or (joined == [] and key in ("enum", "type")):
                raise unsupported(f'the keyword "{key}" is there twice, and cannot hold for both')
            found[key] = joined
    return found


def _both(key: str, a: Any, b: Any) -> Any:
    """Return the value of a keyword that stands for two values; None if there is none."""
    if a == b:
        return a
    if key == "properties":
        return {**a, **b, **{name: _all_of(a[name], b[name]) for name in a.keys() & b.keys()}}
    if key == "required":
        return list(dict.fromkeys([*a, *b]))
    if key == "enum":
        return [each for each in a if each in b]
    if key == "type":
        return _both_types(a, b)
    if key in LEAST and not isinstance(a, bool) and not isinstance(b, bool):
        return max(a, b)
    if key in MOST and not isinstance(a, bool) and not isinstance(b, bool):
        return min(a, b)
    if key in ("additionalProperties", "items") and isinstance(a, bool | Mapping):
        return _all_of(a, b)
    return None


def _all_of(a: Any, b: Any) -> Any:
    """Return a schema for what two ones allow at once. Each part is in it once, so that schemas
    that lead back to themselves do not grow."""
    if a is False or b is False:
        return False
    parts: list[Any] = []
    for each in (a, b):
        is_joined = isinstance(each, Mapping) and each.keys() == {"allOf"}
        for part in each["allOf"] if is_joined else [each]:
            if part is not True and part not in parts:
                parts.append(part)
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True


def _both_types(a: Any, b: Any) -> list[str]:
    names = [set([each] if isinstance(each, str) else each) for each in (a, b)]
    for each in names:
        each |= {"integer"} if "number" in each else set()
    both = names[0] & names[1]
    return [each for each in TYPES if each in both and not (each == "integer" and "number" in both)]
