"""Calls whose arguments keep to their schemas, in answers that may be text as well. The oracle is
the sampler: which texts the grammar lets through, token by token."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from serving import running

from pyselfspec import Model, Sampler, SamplingParams
from pyselfspec.answers.call_forms import CALL_FORMS, HERMES, CallForm
from pyselfspec.answers.form import AnswerForm
from pyselfspec.answers.parts import Called
from pyselfspec.answers.reader import AnswerReader
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime import vocabulary
from pyselfspec.serve.chat_requests.tool_grammar import answers_to_gbnf
from pyselfspec.serve.settings import Capacity

KINDS = {"kind": {"enum": ["cat", "dog"]}, "n": {"type": "integer"}}
BUY = {"type": "object", "properties": KINDS, "required": ["kind", "n"]}
FUNCTIONS: dict[str, Any] = {"buy": BUY, "sell": BUY}
GOOD = '{"name": "buy", "arguments": {"kind": "cat", "n": 3}}'
LOOSE = '{"name": "sell", "arguments": {"colour": "red"}}'
BAD = '{"name": "buy", "arguments": {"kind": "cow", "n": 3}}'
PYTHON, MISTRAL = CALL_FORMS[1], CALL_FORMS[2]


def grammar_of(*forms: Any, n_calls: int | None = None, source: str = "") -> str | None:
    form = AnswerForm((), forms or (HERMES,), ())
    return answers_to_gbnf(form, source, FUNCTIONS, {"buy": True}, n_calls)


def allows(model: Model, grammar: str | None, text: str) -> bool:
    """Return whether an answer may be this text and end there."""
    assert grammar is not None
    with Sampler(model, SamplingParams(grammar=grammar, seed=1)) as sampler:
        try:
            for token in model.tokenize(text, add_special=False, parse_special=False):
                sampler.accept(token)
            sampler.accept(next(t for t in range(model.n_vocab) if model.is_eog(t)))
        except ArgumentError:
            return False
    return True


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("The king went home.", True),
        ("a < b, and <tool is a word, <<tool_cal too, {}", True),
        (f"<tool_call>{GOOD}</tool_call>", True),
        (f"<tool_call>\n{GOOD}\n</tool_call>\n<tool_call>\n{LOOSE}\n</tool_call>", True),
        (f"I will. <<tool_call>{GOOD}</tool_call> Done.", True),
        (GOOD, True),
        (f"<tool_call>{BAD}</tool_call>", False),
        (f"I will.<tool_call>{BAD}</tool_call>", False),
        (f"<tool_call>{GOOD}", False),
        ("<tool_call>nonsense", False),
        (BAD, False),
        (f"  {BAD}", False),
    ],
)
def test_text_or_calls(text: str, is_right: bool, demo: Model) -> None:
    assert allows(demo, grammar_of(), text) == is_right


def test_forms_of_other_families(demo: Model) -> None:
    grammar = grammar_of(HERMES, PYTHON, MISTRAL)
    for text in (f"[TOOL_CALLS][{GOOD}, {LOOSE}]", f"<|python_tag|>{GOOD}", f"[TOOL {GOOD[1:]}"):
        assert allows(demo, grammar, text), text
    for text in (f"[TOOL_CALLS][{GOOD}, {BAD}]", f"<|python_tag|>{BAD}"):
        assert not allows(demo, grammar, text), text


def test_one_call_ends_the_answer(demo: Model) -> None:
    one = f"<tool_call>{GOOD}</tool_call>"
    assert allows(demo, grammar_of(n_calls=1), f"Well: {one}\n")
    assert not allows(demo, grammar_of(n_calls=1), one + one)


def test_forms_that_are_not_json_have_no_grammar() -> None:
    assert grammar_of(source="<tool_call><function=name>") is None
    assert grammar_of(HERMES, CALL_FORMS[6]) is None


def test_markers_that_are_control_tokens(demo: Model) -> None:
    """These have no text elsewhere, but have one in grammars."""
    token = next(t for t in range(demo.n_vocab) if not demo.piece(t) and not demo.is_eog(t))
    mark = vocabulary.text_of(demo, token)
    grammar = grammar_of(CallForm(mark, "</tool_call>", HERMES.pairs))
    for call, is_right in ((GOOD, True), (BAD, False)):
        with Sampler(demo, SamplingParams(grammar=grammar, seed=1)) as sampler:
            sampler.accept(token)
            tokens = demo.tokenize(call + "</tool_call>", add_special=False, parse_special=False)
            try:
                for each in tokens:
                    sampler.accept(each)
            except ArgumentError:
                assert not is_right
            else:
                assert is_right


def test_whatever_is_let_through_has_good_calls(demo: Model) -> None:
    """Texts drawn from pieces of calls: what the grammar lets through is read as calls that keep to
    the schema."""
    rng = random.Random(5)
    pieces = [GOOD, BAD, LOOSE, "<tool_call>", "</tool_call>", " well ", "<", "{", "\n"]
    n_calls = n_refused = 0
    grammar = grammar_of()
    for _ in range(400):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 5)))
        if not allows(demo, grammar, text):
            n_refused += 1
            continue
        reader = AnswerReader(AnswerForm(), FUNCTIONS)
        for part in [*reader.push(text), *reader.finish()]:
            if isinstance(part, Called):
                n_calls += 1
                given = json.loads(part.call.arguments)
                assert part.call.name != "buy" or given == {"kind": "cat", "n": 3}, text
    assert n_calls > 10 and n_refused > 100


def test_an_answer_of_the_server(demo: Model) -> None:
    """Text stays possible; a schema that cannot be a grammar is refused."""
    function = {"name": "buy", "parameters": BUY, "strict": True}
    body = {
        "messages": [{"role": "user", "content": "Tell me a tale."}],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 12,
        "seed": 3,
    }
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=1)) as served:
        answer = served.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
        function["parameters"] = {"type": "object", "properties": {"a": {"type": "cow"}}}
        refused = served.post("/v1/chat/completions", body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools"


@pytest.mark.parametrize("pattern", ["^((a{0,16}){0,16}){0,16}$", "^(a|a)*$", "^((a?)*)*$"])
def test_a_grammar_cannot_hang_the_server(pattern: str, demo: Model) -> None:
    """Work per token is bounded: an answer comes, or an error, and others are answered."""
    schema = {"type": "string", "pattern": pattern}
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        "max_tokens": 20,
    }
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=2), timeout_s=20) as served:
        answer = served.post("/v1/chat/completions", body)
        assert answer.status_code in (200, 400), answer.text
        assert answer.elapsed.total_seconds() < 15
        assert served.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200
