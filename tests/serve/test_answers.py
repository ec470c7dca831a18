"""Answers of the families of models, read while they stream: thoughts, text and calls.

The oracle of calls are the families' own templates, which are in llama.cpp's sources: each renders
a call, and the reader must find it again, wherever the text is cut into pieces.
"""

from __future__ import annotations

import json
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyselfspec.answers import reader as reader_module
from pyselfspec.answers.call_forms import CALL_FORMS
from pyselfspec.answers.form import AnswerForm
from pyselfspec.answers.parts import Called, Part, Reasoning, Said
from pyselfspec.answers.reader import AnswerReader
from pyselfspec.errors import ArgumentError
from pyselfspec.templates.rendering import Renderer

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = {"city": 'Oslo, "N" </tool_call> <b>', "days": 3, "exact": True}
TYPES = {"city": "string", "days": "integer", "exact": "boolean"}
SCHEMA = {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}}
FUNCTIONS = {"get_weather": SCHEMA, "stop": {"type": "object"}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "x", "parameters": SCHEMA},
    }
]
END = re.compile(
    r"(</s>|<\|(eot_id|im_end|eom_id|call|END_OF_TURN_TOKEN|message_sep)\|>|<turn\|>|<SPECIAL_12>"
    r"|<\|tool_response>|<｜end▁of▁sentence｜>)\s*$"
)
# Templates of families whose calls are read. Others of the sources render no calls, or in a form
# that is not known.
KNOWN = (
    "Bielik-11B-v3.0-Instruct", "ByteDance-Seed-OSS", "GLM-4.6", "GLM-4.7-Flash", "MiniMax-M2",
    "MiMo-VL", "Mistral-Small-3.2-24B-Instruct-2506", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "NVIDIA-Nemotron-Nano-v2", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "LFM2.5-8B-A1B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4", "google-gemma-4-31B-it",
    "ibm-granite-granite-4.0", "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct", "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai-Mistral-Nemo-Instruct-2407", "moonshotai-Kimi-K2", "openai-gpt-oss-120b",
)  # fmt: skip


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    """Templates by the name of their file."""
    archives = sorted((ROOT / "vendor" / "cache").glob("*.tar.gz"))
    if not archives:
        pytest.skip("vendor/cache has no sources: python tools/vendor.py fetch")
    found = {}
    with tarfile.open(archives[-1]) as archive:
        for member in archive:
            path = Path(member.name)
            if path.suffix == ".jinja" and path.parent.name == "templates":
                data = archive.extractfile(member)
                assert data is not None
                found[path.stem] = data.read().decode()
    return found


def read(reader: AnswerReader, text: str, seed: int) -> list[Part]:
    """Return the parts; pieces of the same kind are joined."""
    print(f"seed {seed}")
    rng, found = random.Random(seed), []
    while text:
        n = rng.randint(1, 9)
        found += reader.push(text[:n])
        text = text[n:]
    joined: list[Part] = []
    for part in [*found, *reader.finish()]:
        last = joined[-1] if joined else None
        if isinstance(part, Called) or type(last) is not type(part):
            joined.append(part)
        else:
            joined[-1] = type(part)(last.text + part.text)  # type: ignore[union-attr]
    return joined


def plain(parts: list[Part]) -> list[Any]:
    """Return parts without the random ids of calls."""
    return [
        (part.call.name, json.loads(part.call.arguments)) if isinstance(part, Called) else part
        for part in parts
    ]


def answers(source: str) -> Iterator[str]:
    """Yield an answer that consists of a call, as a template renders it. Arguments are objects or
    JSON, in each form that it can take."""
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS)):
        function = {"name": "get_weather", "arguments": arguments}
        call = {"id": "callabcd1", "type": "function", "function": function}
        said = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            renderer, tokens = Renderer(source), {"bos_token": "", "eos_token": "</s>"}
            prompt = renderer.text(
                messages=said[:1], tools=TOOLS, add_generation_prompt=True, **tokens
            )
            text = renderer.text(messages=said, tools=TOOLS, add_generation_prompt=False, **tokens)
        except ArgumentError:
            continue
        pairs = zip(prompt, text, strict=False)
        n = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(text)))
        if begun := re.search(r"<[\w|]*$", text[:n]):  # common to thoughts and to a call
            n = begun.start()
        yield END.sub("", END.sub("", text[n:]))


@pytest.mark.parametrize("name", KNOWN)
def test_calls_are_those_that_a_familys_template_renders(
    name: str, templates: dict[str, str]
) -> None:
    form = AnswerForm.of(templates[name])
    for seed in range(3):
        found = [
            [part for part in plain(read(AnswerReader(form, FUNCTIONS), text, seed)) if part]
            for text in answers(templates[name])
        ]
        assert [("get_weather", ARGUMENTS)] in [
            [part for part in parts if isinstance(part, tuple)] for parts in found
        ], found


CALL = ("get_weather", {"city": "Oslo"})
OTHER = ("stop", {})
HARMONY = "'<|channel|>analysis<|message|>' 'functions.' '<|message|>'"
ANSWERS: list[tuple[str, str, list[Any]]] = [
    ("<think>", "<think>\nWhy?\n</think>\n\nSo.", [Reasoning("Why?"), Said("So.")]),
    ("<think>", "<think></think>\nSo <b>it</b> is.", [Said("So <b>it</b> is.")]),
    ("<think>", "<think>never ends", [Reasoning("never ends")]),
    ("", "<think>a</think>", [Said("<think>a</think>")]),
    ("[THINK]", "[THINK]a [b][/THINK]c", [Reasoning("a [b]"), Said("c")]),
    (
        "<think> <tool_call>",
        '<think>x</think>I look.\n<tool_call>{"name": "get_weather", "arguments": '
        '{"city": "Oslo"}}</tool_call>\n<tool_call>{"name": "stop", "arguments": {}}</tool_call>',
        [Reasoning("x"), Said("I look.\n"), CALL, OTHER],
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        [Reasoning("Hm."), Said("Yes.")],
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}',
        [Reasoning("Hm."), CALL],
    ),
    ("<|channel>", "<|channel>thought\nHm.<channel|>Yes.", [Reasoning("Hm."), Said("Yes.")]),
    (
        "[TOOL_CALLS]",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]stop[ARGS]{}',
        [CALL, OTHER],
    ),
    (
        "<|tool_call_start|>",
        "<|tool_call_start|>[get_weather(city='Oslo'), stop()]<|tool_call_end|>Done.",
        [CALL, OTHER, Said("Done.")],
    ),
    (
        "<tool_call>",
        "<tool_call>no call</tool_call> at all",
        [Said("<tool_call>no call</tool_call> at all")],
    ),
    ("<tool_call>", "1 <tool_ 2", [Said("1 <tool_ 2")]),
    (
        "<|tool_call_start|>",
        "<|tool_call_start|>[__import__('os')]<|tool_call_end|>",
        [Said("<|tool_call_start|>[__import__('os')]<|tool_call_end|>")],
    ),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("source", "text", "parts"), ANSWERS)
def test_the_parts_of_an_answer(source: str, text: str, parts: list[Any], seed: int) -> None:
    reader = AnswerReader(AnswerForm.of(source), FUNCTIONS)
    assert plain(read(reader, text, seed)) == parts


def test_calls_are_read_as_soon_as_they_are_whole() -> None:
    reader = AnswerReader(AnswerForm.of(""), FUNCTIONS)
    parts = reader.push('<tool_call>{"name": "stop", "arguments": {}}</tool_call>\n<tool_')
    assert plain(parts) == [OTHER]


def test_at_most_one_call_is_read_if_asked() -> None:
    text = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    for seed in range(4):
        reader = AnswerReader(AnswerForm.of(""), FUNCTIONS, n_calls=1)
        assert plain(read(reader, f"So. {text}\n{text} and more", seed)) == [Said("So. "), OTHER]
        bare = AnswerReader(AnswerForm.of(""), FUNCTIONS, n_calls=1)
        calls = '{"name": "stop"}; {"name": "stop"}'
        assert plain(read(bare, calls, seed)) == [OTHER]


def test_an_answer_full_of_markers_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(reader_module, "read_calls", lambda _form, body, _: tried.append(body))
    text = "<tool_call>" + "x</tool_call>" * 500
    assert read(AnswerReader(AnswerForm.of(""), FUNCTIONS), text, 0) == [Said(text)]
    assert len(tried) <= reader_module.N_TRIES + 1


def test_thoughts_that_the_prompt_has_opened() -> None:
    for seed in range(4):
        reader = AnswerReader(AnswerForm.of("<think>"), {}, reasoning_end="</think>")
        assert read(reader, "\nWhy?\n</think>\n\nSo.", seed) == [Reasoning("Why?"), Said("So.")]


def test_nothing_of_an_answer_is_lost_or_held_for_long() -> None:
    """Random text made of pieces of markers: all that is not white space or a marker comes out."""
    marks = [text for form in CALL_FORMS for text in (form.open, form.close) if text]
    form = AnswerForm((), CALL_FORMS, ())
    for seed in range(200):
        rng = random.Random(seed)
        text = "x" + "".join(
            mark[: rng.randint(0, len(mark))] + rng.choice(["", "a", " ", "{", '"'])
            for mark in rng.choices(marks, k=12)
        )
        parts = read(AnswerReader(form, FUNCTIONS), text, seed)
        said = "".join(part.text for part in parts if isinstance(part, Said))
        assert said.split() == text.split()
    reader = AnswerReader(form, FUNCTIONS)
    assert reader.push("plain text <") == [Said("plain text ")]
