"""Options of /v1/completions: the echo of a prompt, and the best of several answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served, running

from pyselfspec import Model
from pyselfspec.serve.settings import Capacity

PROMPT = "Once upon a time there was a king."


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=1024, n_slots=4)) as found:
        yield found


def texts(served: Served, body: dict[str, Any]) -> list[str]:
    choices = served.post("/v1/completions", body).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] for choice in choices]


def test_a_prompt_is_echoed(served: Served, demo: Model) -> None:
    body: dict[str, Any] = {"prompt": [PROMPT, "The king"], "n": 2, "max_tokens": 6, "seed": 1}
    plain = texts(served, body)
    prompts = [PROMPT, PROMPT, "The king", "The king"]
    assert texts(served, body | {"echo": True}) == [
        prompt + text for prompt, text in zip(prompts, plain, strict=True)
    ]
    tokens = demo.tokenize(PROMPT)
    body = {"prompt": tokens, "max_tokens": 6, "seed": 1}
    assert texts(served, body | {"echo": True}) == [demo.detokenize(tokens) + plain[0]]
    lines = served.post("/v1/completions", body | {"echo": True, "stream": True}).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line and "[DONE]" not in line]
    said = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert said == demo.detokenize(tokens) + plain[0]


@pytest.mark.parametrize("n", [1, 2])
def test_the_best_answers_are_the_likeliest_per_token(n: int, served: Served) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 8, "seed": 5}
    every = served.post("/v1/completions", body | {"n": 5, "logprobs": 0}).json()

    def rank(choice: Any) -> float:
        found = choice["logprobs"]["token_logprobs"]
        return float(sum(found) / len(found))

    ranked = sorted(every["choices"], key=rank, reverse=True)
    got = served.post("/v1/completions", body | {"n": n, "best_of": 5}).json()
    assert [each["text"] for each in got["choices"]] == [each["text"] for each in ranked[:n]]
    assert all(each["logprobs"] is None for each in got["choices"])
    assert got["usage"]["completion_tokens"] == every["usage"]["completion_tokens"]


def test_the_best_cannot_be_streamed(served: Served) -> None:
    body = {"prompt": PROMPT, "best_of": 2, "stream": True}
    refused = served.post("/v1/completions", body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "best_of"
    refused = served.post("/v1/completions", {"prompt": ["x", "y"], "best_of": 9})
    assert refused.status_code == 400 and "18 choices" in refused.json()["error"]["message"]
