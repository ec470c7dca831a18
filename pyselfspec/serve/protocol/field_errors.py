"""Errors of pydantic about the fields of a request, in one line of plain words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

N_SHOWN = 40  # characters of a value that an error repeats

_KINDS = {
    "string": "a string",
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
}
_BOUNDS = {
    "missing": "it is required",
    "extra_forbidden": "there is no such field; leave it out",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_long": "at most {max_length:,} values",
    "too_short": "at least {min_length:,} of them",
    "string_unicode": "it is not valid Unicode text: it holds half a character (a lone surrogate)",
    "string_too_long": "at most {max_length:,} characters",
    "string_too_short": "at least {min_length:,} characters",
}


def described(errors: Sequence[Any], body: Any) -> tuple[str, str]:
    """Return the name of the first wrong field, "" for the whole body, and what is allowed there.

    errors: for a field that may be of several kinds there is one of each kind. A bound that the
    value exceeds then says most, and otherwise the one that comes last in the value.
    """
    field = errors[0]["loc"][:2]
    paths = [(_path(each, body), each) for each in errors if each["loc"][:2] == field]
    bounded = [pair for pair in paths if pair[1]["type"] in _BOUNDS]
    path, chosen = max(bounded or paths, key=lambda pair: (len(pair[0]), pair[0]))
    where = ".".join(map(str, path))
    if bounded:
        return where, _BOUNDS[chosen["type"]].format(**chosen.get("ctx", {}))
    kinds = []
    for error in [each for other, each in paths if other == path]:
        kind = _KINDS.get(error["type"].partition("_")[0])
        if error["type"] in ("literal_error", "enum"):
            kind = f"{error['ctx']['expected']}, not {str(error['input'])[:N_SHOWN]!r}"
        if kind is None:
            return where, chosen["msg"].removeprefix("Value error, ")
        kinds.append(kind)
    return where, f"give {' or '.join(dict.fromkeys(kinds))}"


def _path(error: Any, body: Any) -> tuple[Any, ...]:
    """Return the names of fields and the numbers of values that lead to an error. Its "loc" has
    names of pydantic's types in between."""
    found, value, names = [], body, error["loc"][1:]
    for i, part in enumerate(names):
        is_last = i + 1 == len(names)
        if isinstance(value, list) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        elif isinstance(value, dict) and part in value:
            value = value[part]
        elif i and not (is_last and error["type"] == "missing"):
            continue
        found.append(part)
    return tuple(found)
