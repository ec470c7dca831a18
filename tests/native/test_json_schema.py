"""JSON schemas as grammars: what these let through is JSON and keeps to its schema."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from grammars import accepts, drawn
from random_schemas import TEXTS, random_schema

from pyselfspec import Model
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime import json_schema

N_RANDOM = int(os.environ.get("PYSELFSPEC_RANDOM_SCHEMAS", "300"))  # 2000 take a minute


def writes(model: Model, schema: dict[str, Any], text: str) -> bool:
    """Whether the schema's grammar accepts a text."""
    return accepts(model, json_schema.to_gbnf(schema), text)


TREE = {
    "$defs": {
        "Node": {
            "type": "object",
            "title": "Node",
            "properties": {
                "name": {"type": "string"},
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
            },
            "required": ["name", "next"],
        }
    },
    "$ref": "#/$defs/Node",
}
ITSELF = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["children"],
}
KEYWORDS = {  # as names of properties
    "properties": {
        name: {"$ref": "#/$defs/n"} for name in ("default", "properties", "enum", "$defs")
    },
    "required": ["default", "properties", "enum", "$defs"],
    "$defs": {"n": {"const": 5}},
}
ODD_NAMES = {  # names of rules that the converter has, and pointers with escapes
    "$defs": {
        "string": {"type": "integer"},
        "root": {"const": "r"},
        "a/b~c d": {"const": 1},
        "list": {"anyOf": [{"const": 2}, {"const": 3}]},
    },
    "type": "array",
    "prefixItems": [
        {"$ref": "#/$defs/string"},
        {"type": "string"},
        {"$ref": "#/$defs/root"},
        {"$ref": "#/$defs/a~1b~0c%20d"},
        {"$ref": "#/$defs/list/anyOf/1"},
    ],
}


@pytest.mark.parametrize(
    ("schema", "value", "is_right"),
    [
        (TREE, {"name": "a", "next": None}, True),
        (TREE, {"name": "a", "next": {"name": "b", "next": None}}, True),
        (TREE, {"name": "a"}, False),
        (TREE, {"name": "a", "next": {"name": "b"}}, False),
        (ITSELF, {"children": []}, True),
        (ITSELF, {"children": [{"children": []}, {"children": [{"children": []}]}]}, True),
        (ITSELF, {"children": [{}]}, False),
        (ODD_NAMES, [5, "x", "r", 1, 3], True),
        (ODD_NAMES, ["y", "x", "r", 1, 3], False),
        (ODD_NAMES, [5, "x", "r", 1, 2], False),
        (KEYWORDS, dict.fromkeys(KEYWORDS["properties"], 5), True),
        (KEYWORDS, dict.fromkeys(KEYWORDS["properties"], 6), False),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"const": 7}}}, 7, True),
        ({}, {"a": 1}, True),
        ({}, [5, "x", None], True),
        ({"$defs": {"unused": {"type": "string"}}}, {"a": 1}, True),
        ({"type": "array", "items": {}}, [1, "x", {"a": [None]}], True),
        ({"type": "array", "items": {}, "maxItems": 2}, [1, 2, 3], False),
        ({"type": "array", "items": True}, [1, "x"], True),
        ({"type": "integer", "default": {"$ref": "x"}}, 5, True),
        ({"prefixItems": [{"type": "integer"}], "items": False}, [1], True),
        ({"prefixItems": [{"type": "integer"}], "items": False}, ["x"], False),
        ({"properties": {"a": {"title": "A"}}, "required": ["a"]}, {"a": [True]}, True),
        ({"enum": [f"value {i}" for i in range(2000)]}, "value 1999", True),
        ({"enum": [f"value {i}" for i in range(2000)]}, "value 2000", False),
    ],
)
def test_schemas_with_references(
    schema: dict[str, Any], value: Any, is_right: bool, tiny: Any
) -> None:
    assert writes(tiny(), schema, json.dumps(value)) == is_right


def test_what_pydantic_writes_of_recursive_models(tiny: Any) -> None:
    from pydantic import BaseModel

    class Leaf(BaseModel):
        size: int

    class Branch(BaseModel):
        leaves: list[Leaf]
        branches: list[Branch]
        other: Branch | None = None

    Branch.model_rebuild(_types_namespace={"Branch": Branch, "Leaf": Leaf})
    schema = Branch.model_json_schema()
    assert "$ref" in schema
    inner = Branch(leaves=[Leaf(size=3)], branches=[])
    value = Branch(leaves=[], branches=[inner, inner], other=inner)
    text = json.dumps(value.model_dump())
    assert writes(tiny(), schema, text)
    assert not writes(tiny(), schema, text.replace("size", "weight", 1))


@pytest.mark.parametrize("pointer", ["#/$defs/B", "#/$defs/A/0", "#/nothing", "#/$defs/A/type/x"])
def test_references_to_nothing(pointer: str) -> None:
    schema = {"$ref": pointer, "$defs": {"A": {"type": "string"}}}
    with pytest.raises(ArgumentError, match="there is nothing at "):
        json_schema.to_gbnf(schema)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"$ref": 5}, "#/$ref is not a reference within the schema"),
        ({"$ref": "https://example.org/x"}, "#/$ref is not a reference within the schema"),
        ({"$ref": "#name"}, "#/$ref is not a reference within the schema"),
        ({"enum": []}, "#/enum is not a list of at least one value: []"),
        ({"$ref": "#"}, 'the reference "#" leads back to itself'),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, 'the reference "#" leads back to itself'),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
            },
            "leads back to itself",
        ),
        ({"properties": {"a/b": {"type": "text"}}}, "#/properties/a~1b/type is not one or several"),
        ({"properties": {"a": True}}, "#/properties/a is not an object, so it is no schema"),
        ({"properties": []}, "#/properties is not an object: []"),
        ({"type": "array", "items": 5}, "#/items is not an object, so it is no schema"),
        ({"anyOf": [{"type": "null"}, {"type": 5}]}, "#/anyOf/1/type is not one or several of"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"enum": 5}}}, "#/$defs/A/enum is not a list"),
        ({"type": "array", "items": {}, "minItems": -1}, "#/minItems is not a count up to 2000"),
        ({"$ref": "#/$defs/A/type", "$defs": {"A": {"type": "null"}}}, "#/$defs/A/type is not an"),
        ({"type": "array", "items": False}, "#/items allows nothing"),
        ({"not": {"type": "string"}}, "a part of it has no type"),
        ({"type": "string", "pattern": "("}, "the pattern (: a group in it does not end"),
        ({"type": "string", "pattern": r"^(a)\1$"}, "is not supported there"),
        ({"type": "string", "pattern": "^(?=a)"}, "is not supported there"),
        ({"type": "string", "pattern": "a{3,2}"}, "it counts from 3 up to 2"),
        ({"type": "string", "pattern": "a{5000}"}, "at most 2000 are supported"),
        ({"type": "string", "pattern": "(" * 5000}, "it nests more than 50 groups"),
        ({"type": "string", "minLength": 2001}, "#/minLength is not a count up to 2000: 2001"),
        ({"type": "integer", "minimum": "5"}, "#/minimum is not a number between"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "bounds that no number is between"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "maxItems 1 is below minItems 2"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, 'the keyword "type" is there twice'),
    ],
    ids=str,
)
def test_faults_of_schemas_are_named(schema: dict[str, Any], fault: str) -> None:
    """In one line, which quotes no definition that the schema does not have."""
    with pytest.raises(ArgumentError) as caught:
        json_schema.to_gbnf(schema)
    message = str(caught.value)
    assert message.startswith("this JSON schema is not supported: ") and fault in message
    assert message.isprintable() and len(message) < 600
    assert "$defs" in json.dumps(schema) or "$defs" not in message.replace('"#/$defs/name"', "")


def spots(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value inside: what holds it, and the key there."""
    keys = range(len(node)) if isinstance(node, list) else node if isinstance(node, dict) else ()
    for key in keys:
        yield node, key
        yield from spots(node[key])


@pytest.mark.parametrize("seed", range(40))
def test_no_schema_is_answered_with_another_error(seed: int) -> None:
    """However it is malformed."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    odd = [None, True, False, 5, -1, "x", "#", "#/type", "#/properties", [], [[]], {}, {"$ref": 5}]
    odd += [{"$ref": "#"}, {"$ref": "#/$defs/Node/type"}, {"not": {"$ref": "#"}}, "object", "a\nb"]
    for _ in range(50):
        schema = copy.deepcopy(rng.choice([TREE, ITSELF, KEYWORDS, ODD_NAMES]))
        for _ in range(rng.randint(1, 3)):
            holder, key = rng.choice(list(spots(schema)))
            holder[key] = copy.deepcopy(rng.choice(odd))
        try:
            json_schema.to_gbnf(schema)
        except ArgumentError as error:
            assert str(error).isprintable() and str(error).startswith("this JSON schema"), schema


def calls(model: Model, parameters: dict[str, Any], name: str, arguments: Any) -> bool:
    """Whether the grammar of these functions lets one be called like this."""
    text = json.dumps({"name": name, "arguments": arguments})
    return accepts(model, json_schema.calls_to_gbnf(parameters), text)


def test_each_function_has_its_own_definitions(tiny: Any) -> None:
    def taking(kind: str) -> dict[str, Any]:
        one = {"properties": {"x": {"$ref": "#/$defs/X"}}, "required": ["x"]}
        return one | {"type": "object", "$defs": {"X": {"type": kind}}}

    parameters = {"count": taking("integer"), "name": taking("string")}
    for name, value in (("count", 5), ("name", "five")):
        other = {"count": "five", "name": 5}[name]
        assert calls(tiny(), parameters, name, {"x": value})
        assert not calls(tiny(), parameters, name, {"x": other})


def test_references_of_a_function_begin_at_its_parameters(tiny: Any) -> None:
    pair = {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}
    tree = {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    parameters = {
        "add": {"type": "object", "properties": pair, "required": ["a", "b"]},
        "grow": tree | {"type": "object", "required": ["next"]},
    }
    assert calls(tiny(), parameters, "add", {"a": 1, "b": 2})
    assert not calls(tiny(), parameters, "add", {"a": 1, "b": "x"})
    assert calls(tiny(), parameters, "grow", {"next": {"next": None}})
    assert not calls(tiny(), parameters, "grow", {"next": {"name": "grow"}})


# --- JSON is JSON -----------------------------------------------------------------------------


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
    """Where their repetitions, written out, would be too long for a grammar."""
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
    ],
)
def test_keywords_hold_together(
    schema: dict[str, Any], right: list[Any], wrong: list[Any], tiny: Any
) -> None:
    for value in right + wrong:
        assert writes(tiny(), schema, json.dumps(value)) == (value in right), value


def test_what_is_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ArgumentError, match="nests at most"):
        json_schema.to_gbnf(schema)


def test_a_long_chain_of_references_ends() -> None:
    links = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}", "minimum": i} for i in range(900)}
    schema = {"$ref": "#/$defs/n0", "$defs": links | {"n900": {"type": "integer"}}}
    assert "root ::=" in json_schema.to_gbnf(schema)


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
