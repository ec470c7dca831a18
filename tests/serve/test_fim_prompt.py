"""Text for a gap: prompts of models with tokens for it, by /infill and the field suffix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chat_models
import pytest
from serving import Served, running

from pyselfspec import Completion, Model, SamplingParams
from pyselfspec.runtime.vocabulary import FillTokens, fill_tokens
from pyselfspec.serve.fim_prompt import prompt_tokens
from pyselfspec.serve.settings import Capacity

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
BEFORE, AFTER = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A tiny model with tokens for filling in."""
    path: Path = tmp_path_factory.mktemp("fill") / "fill.gguf"
    with Model(chat_models.write(path, "chatml", user_defined=MARKS, space=False)) as model:
        yield model


@pytest.fixture(scope="module")
def served(filler: Model) -> Iterator[Served]:
    with running(filler, capacity=Capacity(n_ctx=512, n_slots=1)) as found:
        yield found


def alone(model: Model, prompt: str, n: int, seed: int) -> str:
    """Return what follows a prompt with special tokens in it, without a server."""
    with model.context(n_ctx=512, n_batch=32, n_threads=1) as context:
        made = Completion(
            context, prompt, n_predict=n, draft=None, sampling=SamplingParams(seed=seed)
        )
        return "".join(made)


def test_only_some_models_have_the_tokens(filler: Model, demo: Model) -> None:
    found = fill_tokens(filler)
    assert found is not None and fill_tokens(demo) is None
    ids = (found.prefix, found.suffix, found.middle, found.separator)
    assert [filler.tokenize(mark, add_special=False) for mark in MARKS] == [[i] for i in ids]


def test_a_gap_is_filled_after_its_surroundings(served: Served, filler: Model) -> None:
    prompt = f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>"
    want = alone(filler, prompt, 12, 3)
    body = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 12, "seed": 3}
    got = served.post("/infill", body).json()
    assert got["content"] == want and got["stop"] is True
    assert got["tokens_evaluated"] == len(filler.tokenize(prompt))
    assert got["tokens_predicted"] <= 12 and got["timings"]["predicted_per_second"] > 0
    body = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 12, "seed": 3}
    assert served.post("/v1/completions", body).json()["choices"][0]["text"] == want


def test_a_streamed_answer_is_the_same(served: Served) -> None:
    body = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 12, "seed": 3}
    whole = served.post("/infill", body).json()
    lines = served.post("/infill", body | {"stream": True}).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events][-1] is True


def test_limits_for_lines_cut_the_answer_at_a_line(served: Served) -> None:
    """The model's text has other lines; the limit of indentation allows the first only."""
    body = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 64, "seed": 3}
    line_break = {"logit_bias": [["\n", 100.0]], "n_indent": 4}
    got = served.post("/infill", body | line_break).json()
    assert got["content"] == "\n" and got["stop_type"] == "limit"
    late = {"logit_bias": [["\n", 100.0]], "t_max_predict_ms": 60_000}
    assert served.post("/infill", body | late).json()["tokens_predicted"] == 64


def test_other_files_come_first(served: Served, filler: Model) -> None:
    body: dict[str, Any] = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 5}
    body |= {"prompt": "a", "input_extra": [{"filename": "a.py", "text": "x = 1"}]}
    prompt = (
        "<|file_sep|>a.py\nx = 1\n<|file_sep|>file\n"
        f"<|fim_prefix|>{BEFORE}a<|fim_suffix|>{AFTER}<|fim_middle|>"
    )
    got = served.post("/infill", body | {"seed": 4}).json()
    assert got["content"] == alone(filler, prompt, 5, 4)


def test_texts_that_are_too_long_are_cut_off_far_from_the_gap() -> None:
    fill, words = FillTokens(1000, 1001, 1002, 1003), lambda text: [ord(c) for c in text]

    def prompt(before: str, after: str, n: int, extra: Any = ()) -> tuple[int, ...]:
        found = prompt_tokens(fill, words, before, after, extra, n)
        assert len(found) <= max(n, 3)
        return found

    def shown(tokens: tuple[int, ...]) -> str:
        marks = dict(zip((1000, 1001, 1002, 1003), "[|]/", strict=True))
        return "".join(marks.get(token) or chr(token) for token in tokens)

    assert shown(prompt("abcdefgh", "12345678", 11)) == "[cdefgh|12]"
    assert shown(prompt("ab", "12345678", 11)) == "[ab|123456]"
    assert shown(prompt("abcdefgh", "1", 11)) == "[bcdefgh|1]"
    assert shown(prompt("abcdefgh", "1", 3)) == "[|]"
    extra = [("x", "long " * 9), ("y", "yes")]
    assert shown(prompt("a", "1", 25, extra)) == "/y\nyes\n/file\n[a|1]"
    assert shown(prompt("a", "1", 12, extra)) == "[a|1]"


def test_marks_in_texts_are_text(served: Served, filler: Model) -> None:
    """Marks in a text cannot end the surroundings of a gap."""
    body = {"input_prefix": "<|im_end|>", "input_suffix": "", "n_predict": 1}
    n = served.post("/infill", body).json()["tokens_evaluated"]
    assert n == 4 + len(filler.tokenize("<|im_end|>", add_special=False, parse_special=False))


def test_long_texts_are_no_error(served: Served) -> None:
    body = {"input_prefix": "x = 1\n" * 2000, "input_suffix": "y = 2\n" * 2000, "n_predict": 4}
    got = served.post("/infill", body)
    assert got.status_code == 200 and got.json()["tokens_evaluated"] <= 508
