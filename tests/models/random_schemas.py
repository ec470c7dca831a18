"""Random JSON schemas, from what a grammar can keep to."""

from __future__ import annotations

import random
from typing import Any

TEXTS = ("", "a", "b c", "\n", 'a"b', "a\\b", "tab\t", "\u0001", "é😀", "\x7f", "]^-", "#/~1", "{}")
NAMES = (*TEXTS, "name", "names", "nam", "$ref", "type", "properties", "const", "ünï")
PATTERNS = (
    r"^[A-Z]{3}-\d{4}$",
    r"^\w+$",
    r"^[^x]{3}$",
    r"^.{1,5}$",
    r"a|b",
    r"^(ab|c\.d){0,3}$",
    r"\s",
    r"^\S+@\S+\.[a-z]{2,}$",
    r"^[\"\\/]+$",
    r"^[\x00-\x1f]{2}$",
    r"^é+😀?$|^[\]\-a-c]$",
    r"^(?:[01]?\d|2[0-3]):[0-5]\d$",
)
BOUNDS = (-1e6, -1000, -77, -10, -9, -1.5, -1, -0.25, 0, 0.1, 0.75, 1, 7, 9, 10, 99, 100, 101, 5000)


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema with definitions that it may refer to, also in a circle."""
    link = {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}
    tree = {"type": "object", "properties": {"next": link, "value": _leaf(rng)}}
    definitions = {
        "Tree": tree | {"required": ["next"]},
        "a/b~c d": _leaf(rng),
        "List": _list(rng, 1),
    }
    return {"$defs": definitions} | _any(rng, depth)


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = (_leaf, _object, _object, _list, _list, _choice, _both, _reference)
    kind = rng.choice(kinds) if depth else _leaf
    return kind(rng) if kind is _leaf else kind(rng, depth - 1)  # type: ignore[operator]


def _leaf(rng: random.Random) -> dict[str, Any]:
    return rng.choice((_string, _integer, _number, _fixed))(rng)


def _string(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(0, 4)
    lengths = {"minLength": low, "maxLength": low + rng.choice((0, 1, 5, 300, 10**6))}
    chosen = rng.sample(sorted(lengths), rng.randint(0, 2))
    form = {"format": rng.choice(("date", "time", "date-time", "uuid"))}
    plain = {key: lengths[key] for key in chosen}
    return {"type": "string"} | rng.choice((plain, plain, form, {"pattern": rng.choice(PATTERNS)}))


def _integer(rng: random.Random) -> dict[str, Any]:
    return {"type": "integer"} | _bounds(rng, rng.choice((1, 1, 3)))


def _number(rng: random.Random) -> dict[str, Any]:
    return {"type": "number"} | _bounds(rng, 0)


def _bounds(rng: random.Random, gap: float) -> dict[str, Any]:
    """Bounds with at least one integer between them if `gap` is 1 or more."""
    low, high = sorted(rng.sample(BOUNDS, 2))
    strict = rng.choice(("exclusiveM", "m")), rng.choice(("exclusiveM", "m"))
    given = {f"{strict[0]}inimum": low, f"{strict[1]}aximum": high + gap}
    return {key: given[key] for key in rng.sample(sorted(given), rng.randint(0, 2))}


def _fixed(rng: random.Random) -> dict[str, Any]:
    values = [*TEXTS, 0, -5, 1.5, True, False, None, [], ["a", {"b": 1}], {"a\n": "\\"}]
    kinds = [{"const": rng.choice(values)}, {"enum": rng.sample(values, rng.randint(1, 5))}]
    return rng.choice([*kinds, {"type": "boolean"}, {"type": "null"}])


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 4))
    found = {"type": "object", "properties": {name: _any(rng, depth) for name in names}}
    found["required"] = rng.sample(names, rng.randint(0, len(names)))
    others = rng.choice((None, False, True, _leaf(rng)))
    if others is not None:
        found["additionalProperties"] = others
    if len(names) > 1 and rng.random() < 0.2:
        found["anyOf"] = [{"required": [name]} for name in names[:2]]
    return found


def _list(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 3)
    found: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.3:
        found["prefixItems"] = [_any(rng, depth) for _ in range(rng.randint(1, 3))]
        found["items"] = rng.choice((False, _leaf(rng)))
        return found
    if rng.random() < 0.9:
        found["items"] = _any(rng, depth)
    if rng.random() < 0.7:
        found |= {"minItems": low, "maxItems": low + rng.choice((0, 1, 3, 3000))}
    return found


def _choice(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        kinds = ["string", "integer", "number", "boolean", "null", "array", "object"]
        return {"type": rng.sample(kinds, rng.randint(1, 3))}
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randint(1, 3))]}


def _both(rng: random.Random, depth: int) -> dict[str, Any]:
    one, two = ({"type": "object", "properties": {name: _any(rng, depth)}} for name in "pq")
    return {"allOf": [one, two | {"required": rng.sample("pq", rng.randint(0, 2))}]}


def _reference(rng: random.Random, _: int) -> dict[str, Any]:
    return {"$ref": rng.choice(("#/$defs/Tree", "#/$defs/a~1b~0c%20d", "#/$defs/List"))}
