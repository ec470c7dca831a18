"""Grammars of JSON schemas: what they let through is JSON and keeps to its schema."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from grammars import accepts, drawn, writes
from random_schemas import TEXTS, random_schema

from pyselfspec.runtime import json_schema

N_RANDOM = int(os.environ.get("PYSELFSPEC_RANDOM_SCHEMAS", "300"))  # 2000 take half a minute


@pytest.mark.parametrize("control", ["\n", "\t", "\r", "\0", "\x1f", "\u0000"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": "^a[^x]b$"},
        {"type": "string", "pattern": r"a[^\S]?\W?b"},
        {},
    ],
    ids=str,
)
def test_strings_hold_no_raw_control_characters(
    schema: dict[str, Any], control: str, tiny: Any
) -> None:
    rules = json_schema.to_gbnf(schema)
    assert not accepts(tiny(), rules, f'"a{control}b"') or control == "\0"  # ends no text
    assert accepts(tiny(), rules, json.dumps(f"a{control}b"))


@pytest.mark.parametrize("name", ["a", "a\nb"])
@pytest.mark.parametrize("more", [True, {"type": "string"}])
def test_names_that_a_schema_leaves_open_are_json(name: str, more: Any, tiny: Any) -> None:
    schema = {"properties": {name: {"type": "null"}}, "additionalProperties": more}
    rules = json_schema.to_gbnf(schema)
    for other in ("b", "ab", "", "a\n", 'a"', "\\", "é"):
        assert accepts(tiny(), rules, json.dumps({name: None, other: "x"}, ensure_ascii=False))
        assert accepts(tiny(), rules, json.dumps({other: "x"}, ensure_ascii=False))
    for text in ('{"b\n": "x"}', '{"\\": "x"}', '{"\\x": "x"}', '{"\n": "x"}'):
        assert not accepts(tiny(), rules, text)
    assert not accepts(tiny(), rules, json.dumps({name: "x"}))
    assert not accepts(tiny(), rules, '{"\\u0061": "x"}')  # is "a"


def test_halves_of_characters_come_in_pairs(tiny: Any) -> None:
    rules = json_schema.to_gbnf({"type": "string", "maxLength": 1})
    for text in (r'"\ud83d\ude00"', r'"\uD83D\uDE00"', r'"\u00e9"', r'"\u0000"', '"😀"'):
        assert accepts(tiny(), rules, text)
    for text in (r'"\ud83d"', r'"\ude00"', r'"\ud83d\u0041"', r'"\ud83d\ude00a"'):
        assert not accepts(tiny(), rules, text)


@pytest.mark.parametrize("text", [*TEXTS, "half \ud83d"])
def test_fixed_values_and_names_are_what_the_schema_says(text: str, tiny: Any) -> None:
    plain = json.dumps(text, ensure_ascii="\ud83d" in text)
    value = json.dumps({text: 1}, ensure_ascii="\ud83d" in text)
    assert accepts(tiny(), json_schema.to_gbnf({"const": text}), plain)
    assert accepts(tiny(), json_schema.to_gbnf({"enum": [5, text]}), plain)
    assert accepts(tiny(), json_schema.to_gbnf({"const": {text: 1}}), value)
    named = {"properties": {text: {"type": "integer"}}, "required": [text]}
    assert accepts(tiny(), json_schema.to_gbnf(named), value)
    call = json.dumps({"name": text, "arguments": {}}, ensure_ascii="\ud83d" in text)
    assert accepts(tiny(), json_schema.calls_to_gbnf({text: {"type": "object"}}), call)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "maxLength": 1000}, ["x" * 1000], ["x" * 1001]),
        ({"type": "string", "maxLength": 10**6}, ["x" * 3000], [5]),
        ({"type": "string", "minLength": 257}, ["x" * 257], ["x" * 256]),
        ({"type": "array", "items": {"const": 1}, "minItems": 300}, [[1] * 300], [[1] * 299]),
        ({"type": "array", "items": {"const": 1}, "maxItems": 300}, [[], [1] * 300], [[1] * 301]),
        ({"type": "string", "pattern": "^(a{1,9999}){1,9999}$"}, ["a" * 50], ["", "b"]),
    ],
)
def test_counts_may_be_large(
    schema: dict[str, Any], right: list[Any], wrong: list[Any], tiny: Any
) -> None:
    for value in right + wrong:
        assert writes(tiny(), schema, json.dumps(value)) == (value in right)


def test_many_large_counts_are_left_out() -> None:
    """Written out, their repetitions would be too long for a grammar."""
    names = [f"text{i}" for i in range(300)]
    bounds = {name: {"type": "string", "maxLength": 1000 + i} for i, name in enumerate(names)}
    assert "char{" not in json_schema.to_gbnf({"properties": bounds})


NUMBERS = (-1000, -101, -100, -99, -10, -6, -5, -4, -1, 0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 42, 99, 100)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("low", [None, -100, -5.5, -5, 0, 4.25, 5, 10])
@pytest.mark.parametrize("high", [None, -5, -0.5, 0, 7, 9.75, 99, 10**20])
@pytest.mark.parametrize("is_strict", [False, True])
def test_numbers_keep_to_their_bounds(
    kind: str, low: float | None, high: float | None, is_strict: bool, tiny: Any
) -> None:
    bounds = dict(zip(("exclusiveMinimum", "exclusiveMaximum"), (low, high), strict=True))
    if not is_strict:
        bounds = {"minimum": low, "maximum": high}
    schema = {"type": kind} | {key: each for key, each in bounds.items() if each is not None}

    def fits(value: float) -> bool:
        above = low is None or (value > low if is_strict else value >= low)
        return above and (high is None or (value < high if is_strict else value <= high))

    values = [
        *NUMBERS,
        *((-5.75, -0.5, -0.25, 0.5, 4.25, 4.5, 7.01, 99.5) if kind == "number" else ()),
    ]
    if not any(map(fits, values)):
        return
    rules = json_schema.to_gbnf(schema)
    for value in values:
        assert accepts(tiny(), rules, json.dumps(value)) == fits(value), value
    for text in ("007", "-", "05", "5.", ".5", "-05", "+5", ""):
        assert not accepts(tiny(), rules, text)


PATTERNS = [
    (r"^[A-Z]{3}-\d{4}$", ["ABC-1234"], ["ABC-123", "abc-1234", "xABC-1234", "ABC-12345"]),
    (r"^\w+$", ["a_Z9"], ["", "a b", "é"]),
    (r"b", ["b", "abc"], ["", "a"]),
    (r"^a|b$", ["a", "ax", "xb"], ["xa", "bx"]),
    (r"^[^x]{3}$", ['a"\\', "\n\t\r", "éé😀"], ["axa", "aa"]),
    (r"^.$", ['"', "\\", "\t", "é"], ["\n", "", "ab"]),
    (r"^\S*\s\D\W$", ["ab c!", " x "], ["ab", "a 1!", "a ba"]),
    (r"^[\]\-a\\]+$", ["]-a\\"], ["b"]),
    (r"^(?:a|(b){2})*?c{0}$", ["", "abba", "bb"], ["b", "c"]),
    (r"^\x41\u00e9\u{1F600}\.\/$", ["Aé😀./"], ["Aé😀x/"]),
    (r"^[\b\f\v\0]{4}$", ["\b\f\v\0"], ["bfv0"]),
    (r"^{a}[.]$", ["{a}."], ["{a}x"]),
    (r"^(a|)*b{0,0}c?$", ["", "aac"], ["b"]),
    (r"^|a$", ["", "x"], []),
    (r"^[\w-]+[^]$", ["a-b", "a\n"], [".a"]),
]


@pytest.mark.parametrize(("pattern", "right", "wrong"), PATTERNS)
def test_patterns(pattern: str, right: list[str], wrong: list[str], tiny: Any) -> None:
    rules = json_schema.to_gbnf({"type": "string", "pattern": pattern})
    for text in right + wrong:
        assert accepts(tiny(), rules, json.dumps(text, ensure_ascii=False)) == (text in right), text


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (OPEN | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 1}], [{}]),
        ({"allOf": [OPEN, {"required": ["b"]}]}, [{"b": 1}, {"a": 1, "b": 2}], [{}, {"a": 1}]),
        ({"type": "object", "required": ["x"]}, [{"x": [1]}, {"x": 1, "y": 2}], [{}, {"y": 2}]),
        ({"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer"}}}, [5], [6, 1.5]),
        ({"properties": {"$ref": {"const": 1}}}, [{"$ref": 1}, {}], [{"$ref": 2}]),
        ({"const": [{"$ref": "x"}]}, [[{"$ref": "x"}]], [[]]),
        ({"type": ["string", "null"], "maxLength": 1}, ["a", None], ["ab", 1]),
        ({"type": "array", "maxItems": 0}, [[]], [[1]]),
        ({"prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 2}, [[1, 2]], [[2]]),
        ({"prefixItems": [{"const": 1}], "minItems": 2}, [[1, 5]], [[1]]),
        ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, [6], [5]),
        ({"type": "object", "anyOf": [OPEN, {"type": "null"}]}, [{"a": 1}], [None]),
    ],
)
def test_keywords_hold_together(
    schema: dict[str, Any], right: list[Any], wrong: list[Any], tiny: Any
) -> None:
    for value in right + wrong:
        assert writes(tiny(), schema, json.dumps(value)) == (value in right), value


@pytest.mark.parametrize("part", range(10))
def test_what_random_schemas_let_through_keeps_to_them(part: int, tiny: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    n_finished = n_drawn = 0
    for seed in range(part, N_RANDOM, 10):
        schema = random_schema(random.Random(seed))
        rules = json_schema.to_gbnf(schema)
        checked = jsonschema.Draft202012Validator(schema)
        for each in range(3):
            text = drawn(tiny(), rules, 3 * seed + each, n_tokens=300)
            n_drawn += 1
            if text is not None:
                n_finished += 1
                checked.validate(json.loads(text))
    assert n_finished > 0.9 * n_drawn
