"""Streams tell how much of a prompt has been read, where a request asks for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Served

from pyselfspec.serve.engine import running_completion

TEXT = "Once upon a time there was a king who had three daughters. " * 8


def chunks_of(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = served.post(path, body | {"stream": True, "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": f"A. {TEXT}"}]}),
        ("/v1/completions", {"prompt": f"B. {TEXT}"}),
        ("/completion", {"prompt": f"C. {TEXT}"}),
    ],
)
def test_a_prompt_is_read_in_steps(
    path: str, body: dict[str, Any], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps grow up to the whole prompt, before the text, which is the one without them."""
    monkeypatch.setattr(running_completion, "PROGRESS_US", 0)
    asked = body | {"return_progress": True, "stream_options": {"include_usage": True}, "seed": 1}
    told = chunks_of(served, path, asked)
    steps = [each["prompt_progress"] for each in told if "prompt_progress" in each]
    cached = steps[0]["cache"]
    assert len(steps) > 2 and {each["cache"] for each in steps} == {cached}
    n_read = [cached, *(each["processed"] for each in steps)]
    assert n_read == sorted(set(n_read)) and n_read[-1] == steps[0]["total"]
    last = told[-1]
    n_prompt = last["usage"]["prompt_tokens"] if "usage" in last else last["tokens_evaluated"]
    assert steps[0]["total"] == n_prompt
    at = [i for i, each in enumerate(told) if "prompt_progress" in each]
    rest = [each for i, each in enumerate(told) if i > at[-1]]
    plain = chunks_of(served, path, body | {"seed": 1})
    assert "prompt_progress" not in json.dumps(plain)
    assert texts(rest) == texts(told) == texts(plain) != ""

    again = chunks_of(served, path, asked)
    [step] = [each["prompt_progress"] for each in again if "prompt_progress" in each]
    assert (step["cache"], step["processed"]) == (n_prompt - 1, n_prompt)


def texts(chunks: list[dict[str, Any]]) -> str:
    choices = [each.get("choices", [each]) for each in chunks]
    parts = [choice.get("delta", choice) for found in choices for choice in found]
    return "".join(part.get("content") or part.get("text") or "" for part in parts)


def test_a_short_prompt_has_one_report(served: Served) -> None:
    """Reports come half a second apart, and one when the prompt has been read."""
    told = chunks_of(served, "/v1/completions", {"prompt": "Hello", "return_progress": True})
    steps = [each["prompt_progress"] for each in told if "prompt_progress" in each]
    assert [each["processed"] for each in steps] == [steps[0]["total"]]
