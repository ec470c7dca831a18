"""Reasoning budgets. The oracle is two completions without a server: up to the budget, and after
the marker that closes the reasoning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from serving import Served, running

from pyselfspec import Completion, Model, SamplingParams
from pyselfspec.errors import ArgumentError
from pyselfspec.serve.settings import Capacity
from pyselfspec.speculate.reasoning_budget import BudgetSampler, ReasoningBudget

SOURCE = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "{% if thinks %}<think>{% endif %}{# </think> #}"
)
PROMPT = "The king had a daughter, and he said to her: "
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": PROMPT}],
    "chat_template_kwargs": {"thinks": True},
    "temperature": 0,
    "max_tokens": 24,
}


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=2), template=SOURCE) as found:
        yield found


# without a model


class Counting:
    """A sampler whose tokens are 100, 101, ...: one for each draw. refused: a token that a grammar
    does not allow."""

    def __init__(self, refused: int | None = None) -> None:
        self.refused = refused
        self.n_drawn = 0
        self.accepted: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt

    def sample(self, context: Any, row: int) -> int:
        self.n_drawn += 1
        self.accepted.append(99 + self.n_drawn)
        return self.accepted[-1]

    def take(self, context: Any, row: int, token: int) -> None:
        self.accept(token)

    def accept(self, token: int) -> None:
        if token == self.refused:
            raise ArgumentError("the grammar does not allow it")
        self.accepted.append(token)

    def distribution_of(self, logits: Any) -> Any:
        return np.full(len(logits), 1 / len(logits))


def sampler_of(inner: Counting, pieces: dict[int, bytes], *, is_open: bool) -> BudgetSampler:
    budget = ReasoningBudget(3, "<think>", "</think>", is_open, (7, 8))
    return BudgetSampler(inner, budget, lambda token: pieces.get(token, b"x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("is_open", "text", "is_within"),
    [
        (False, "Yes.", False),
        (True, "Hm", True),
        (False, "<think>Hm", True),
        (True, "Hm</think>Yes", False),
        (False, "<think>a</think>b<think>c", True),
    ],
)
def test_whether_a_completion_is_within_reasoning(
    is_open: bool, text: str, is_within: bool
) -> None:
    budget = ReasoningBudget(5, "<think>", "</think>", is_open, ())
    assert budget.is_within(text) is is_within


def test_the_random_numbers_go_on_after_the_closing_tokens() -> None:
    inner = Counting()
    made = sampler_of(inner, {}, is_open=True)
    drawn = [made.sample(None, 0) for _ in range(7)]  # type: ignore[arg-type]
    assert drawn == [100, 101, 102, 7, 8, 103, 104]
    assert inner.accepted == drawn, "penalties see them all"


@pytest.mark.parametrize(
    ("is_open", "pieces"),
    [(False, {}), (True, {101: b"</think>"}), (False, {100: b"<think>", 102: b"</think>"})],
)
def test_nothing_is_closed_outside_of_reasoning(is_open: bool, pieces: dict[int, bytes]) -> None:
    made = sampler_of(Counting(), pieces, is_open=is_open)
    drawn = [made.sample(None, 0) for _ in range(5)]  # type: ignore[arg-type]
    assert drawn == [100, 101, 102, 103, 104]


def test_a_call_within_reasoning_goes_on() -> None:
    made = sampler_of(Counting(refused=7), {}, is_open=True)
    drawn = [made.sample(None, 0) for _ in range(5)]  # type: ignore[arg-type]
    assert drawn == [100, 101, 102, 103, 104]


def test_residual_sampling_accepts_the_closing_tokens_only() -> None:
    inner = Counting()
    made = sampler_of(inner, {}, is_open=True)
    logits = np.zeros(16, np.float32)
    for token in (1, 2, 3):
        assert made.distribution_of(logits)[token] == 1 / 16
        made.accept(token)
    for token in (7, 8):
        found = made.distribution_of(logits)
        assert found[token] == 1 and found.sum() == 1
        made.accept(token)
    assert made.distribution_of(logits)[1] == 1 / 16
    assert inner.accepted == [1, 2, 3, 7, 8]


# with a server


def alone(model: Model, prompt: list[int], n: int) -> Completion:
    with model.context(n_ctx=512, n_batch=32, n_threads=1) as context:
        made = Completion(
            context, prompt, n_predict=n, draft=None, sampling=SamplingParams(temperature=0)
        )
        list(made)
    return made


def test_reasoning_is_closed_when_its_budget_is_spent(served: Served, demo: Model) -> None:
    path, body = "/v1/chat/completions", CHAT | {"reasoning_budget_tokens": 6}
    prompt = demo.tokenize(f"{PROMPT}\n<think>")
    reasoning = alone(demo, prompt, 6)
    template = served.service.template
    assert template is not None
    end = template.marker_tokens("\n</think>\n\n")
    rest = alone(demo, [*prompt, *reasoning.tokens, *end], 24 - 6 - len(end))
    whole = served.post(path, body).json()
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == reasoning.text.strip()
    assert message["content"] == rest.text.lstrip()
    usage = whole["usage"]
    assert usage["completion_tokens"] == 24, "the marker counts"
    assert usage["prompt_tokens"] == len(prompt)
    lines = served.post(path, body | {"stream": True}).text.split("\n\n")
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in lines
        if line and "[DONE]" not in line
    ]
    for key in ("reasoning_content", "content"):
        assert "".join(delta.get(key) or "" for delta in deltas) == message[key]


@pytest.mark.parametrize("draft", [None, "ngram", "layer-skip"])
def test_drafts_change_nothing_and_every_token_has_its_log_probability(
    served: Served, draft: str | None
) -> None:
    sampled = CHAT | {"temperature": 1.0, "seed": 3, "reasoning_budget_tokens": 6, "logprobs": True}
    path, drafting = "/v1/chat/completions", {"pyselfspec": {"draft": draft}}
    plain = served.post(path, sampled | {"pyselfspec": {"draft": None}}).json()
    found = served.post(path, sampled | drafting).json()
    assert found["choices"][0]["message"] == plain["choices"][0]["message"]
    shown = found["choices"][0]["logprobs"]["content"]
    assert shown == plain["choices"][0]["logprobs"]["content"]
    assert "</think>" in "".join(each["token"] for each in shown)


def test_a_budget_of_no_tokens_leaves_no_reasoning(served: Served) -> None:
    body = CHAT | {"reasoning_budget_tokens": 0}
    message = served.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert "reasoning_content" not in message and message["content"]


def test_a_message_has_a_budget(served: Served) -> None:
    body = {key: CHAT[key] for key in ("messages", "max_tokens", "temperature")}
    body["thinking"] = {"type": "enabled", "budget_tokens": 5}
    served.service.template, own = (
        type(served.service.template).of(  # type: ignore[union-attr]
            served.service.model, SOURCE.replace("thinks", "enable_thinking")
        ),
        served.service.template,
    )
    try:
        message = served.post("/v1/messages", body).json()
    finally:
        served.service.template = own
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
