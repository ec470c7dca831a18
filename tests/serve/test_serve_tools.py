"""Calls of tools: found in answers, wherever these are cut into pieces; described to templates that
know nothing of them. And which token a piece of text is from."""

from __future__ import annotations

import json
import random

import pytest

from pyselfspec.answers.form import AnswerForm
from pyselfspec.answers.parts import Called, Said
from pyselfspec.answers.reader import AnswerReader
from pyselfspec.serve.chat_requests.tools import ToolUse, describe_tools

FUNCTION = {"name": "buy", "parameters": {"type": "object"}}
USE = ToolUse(({"type": "function", "function": FUNCTION},), ("buy",))
CALL = '{"name": "buy", "arguments": {"what": "<bread>"}}'
OTHER = '{"name": "steal", "arguments": {}}'


def read(text: str, use: ToolUse, seed: int) -> tuple[str, list[tuple[str, str]]]:
    """In pieces of all sizes: the text, and the calls."""
    rng = random.Random(seed)
    reader, parts = AnswerReader(AnswerForm(), use.functions), []
    while text:
        n = rng.randint(1, 9)
        parts += reader.push(text[:n])
        text = text[n:]
    parts += reader.finish()
    said = "".join(part.text for part in parts if isinstance(part, Said))
    calls = [part.call for part in parts if isinstance(part, Called)]
    return said, [(call.name, call.arguments) for call in calls]


BOUGHT = ("buy", '{"what": "<bread>"}')


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        ("No call at all, 1 < 2.", "No call at all, 1 < 2.", []),
        (f"<tool_call>{CALL}</tool_call>", "", [BOUGHT]),
        (f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>", "", [BOUGHT] * 2),
        (f"I will.\n<tool_call>{CALL}</tool_call>", "I will.\n", [BOUGHT]),
        (f"<tool_call>{CALL}", "", [BOUGHT]),
        (f" {CALL}", "", [BOUGHT]),
        (CALL.replace("arguments", "parameters"), "", [BOUGHT]),
        (f"<tool_call>{OTHER}</tool_call>", f"<tool_call>{OTHER}</tool_call>", []),
        (OTHER, OTHER, []),
        ('{"name": "buy"', '{"name": "buy"', []),
        ("<tool_call>{]</tool_call>", "<tool_call>{]</tool_call>", []),
        (f"{CALL} and more", f"{CALL} and more", []),
        ("a <tool_cal and no more", "a <tool_cal and no more", []),
    ],
)
def test_calls_in_an_answer(
    answer: str, text: str, calls: list[tuple[str, str]], seed: int
) -> None:
    assert read(answer, USE, seed) == (text, calls)


def test_without_tools_an_answer_is_text() -> None:
    assert read(CALL, ToolUse(), 0) == (CALL, [])


def test_templates_that_know_no_tools_are_told() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "buy", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Buy."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    system, user, assistant, result = describe_tools(messages, USE)
    assert json.dumps(FUNCTION) in system["content"] and system["content"].endswith("\n\nBe brief.")
    assert user == messages[1]
    assert assistant["content"] == '<tool_call>{"name": "buy", "arguments": {"a": 1}}</tool_call>'
    assert result == {"role": "user", "content": "done"}
    assert describe_tools(messages[1:2], USE)[0]["role"] == "system"
    assert "{{" not in system["content"]
