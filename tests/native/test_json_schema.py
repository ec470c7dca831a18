"""JSON schemas as grammars: references, functions, and what is refused."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from grammars import accepts, writes

from pyselfspec import Model
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime import json_schema

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


def test_calls_hold_no_raw_control_characters(tiny: Any) -> None:
    """So that a call which a request demands can be read."""
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    assert calls(tiny(), {"note": text}, "note", {"text": "a\nb"})
    raw = '{"name": "note", "arguments": {"text": "a\nb"}}'
    for schema in (text, {"type": "object"}):
        assert not accepts(tiny(), json_schema.calls_to_gbnf({"note": schema}), raw)


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


def test_what_is_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ArgumentError, match="nests at most"):
        json_schema.to_gbnf(schema)


def test_schemas_that_join_in_a_circle_end() -> None:
    def one(kind: str, other: str) -> dict[str, Any]:
        return {"properties": {"p": {"title": kind}}, "anyOf": [{"$ref": f"#/$defs/{other}"}]}

    schema = {"$ref": "#/$defs/A", "$defs": {"A": one("a", "B"), "B": one("b", "A")}}
    with pytest.raises(ArgumentError, match="leads back to itself"):
        json_schema.to_gbnf(schema)


def test_a_long_chain_of_references_ends() -> None:
    links = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}", "minimum": i} for i in range(900)}
    schema = {"$ref": "#/$defs/n0", "$defs": links | {"n900": {"type": "integer"}}}
    assert "root ::=" in json_schema.to_gbnf(schema)
