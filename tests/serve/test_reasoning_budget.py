"""Reasoning budgets. The oracle is two completions without a server: up to the limit, and after
the marker that ends the thoughts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served, running

from pyselfspec import Completion, Model, SamplingParams
from pyselfspec.runtime.sampling import SamplingParams as Sampling
from pyselfspec.serve.engine.jobs import Finished, Job
from pyselfspec.serve.engine.reasoning_budget import ThoughtLimit, first_part, joined, next_part
from pyselfspec.serve.settings import Capacity
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.stats import GenerationStats

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
LIMIT = ThoughtLimit(5, "<think>", "</think>", False, "\n</think>\n\n", (7, 8))


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=2), template=SOURCE) as found:
        yield found


# without a model


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
def test_whether_an_answer_is_within_thoughts(is_open: bool, text: str, is_within: bool) -> None:
    limit = ThoughtLimit(5, "<think>", "</think>", is_open, "", ())
    assert limit.is_within(text) is is_within


def test_the_parts_of_a_job() -> None:
    sampling, drafting = Sampling(), DraftConfig()
    job = Job((1, 2), 20, sampling, drafting, thoughts=LIMIT)
    assert first_part(job).n_predict == 5
    end = Finished("length", GenerationStats(), None, tokens=(3, 4, 5, 6, 6))
    rest = next_part(job, "<think>Hm", end)
    assert rest is not None
    assert rest[0] == LIMIT.end and rest[1].prompt == (1, 2, 3, 4, 5, 6, 6, 7, 8)
    assert rest[1].n_predict == 13, "the marker counts"
    rest = next_part(job, "<think>Hm</think>So", end)
    assert rest is not None and rest[0] == "" and rest[1].prompt == (1, 2, 3, 4, 5, 6, 6)
    eog = Finished("eog", GenerationStats(), None, tokens=(3,))
    assert next_part(job, "<think>", eog) is None
    short = Job((1, 2), 6, sampling, drafting, thoughts=LIMIT)
    assert next_part(short, "<think>", end) is None, "no room for the marker"


def test_both_parts_are_counted() -> None:
    first = GenerationStats(n_prompt=10, n_prompt_reused=4, n_generated=5)
    second = GenerationStats(n_prompt=17, n_prompt_reused=15, n_generated=3)
    end = joined(Finished("length", first, None), Finished("eog", second, "ngram"))
    assert (end.reason, end.draft) == ("eog", "ngram")
    stats = end.stats
    assert (stats.n_prompt, stats.n_prompt_reused, stats.n_generated) == (10, 4, 8)
    assert first.n_generated == 5, "unchanged"


# with a server


def alone(model: Model, prompt: list[int], n: int) -> Completion:
    with model.context(n_ctx=512, n_batch=32, n_threads=1) as context:
        made = Completion(
            context, prompt, n_predict=n, draft=None, sampling=SamplingParams(temperature=0)
        )
        list(made)
    return made


def test_thoughts_end_at_their_limit(served: Served, demo: Model) -> None:
    path, body = "/v1/chat/completions", CHAT | {"reasoning_budget_tokens": 6}
    prompt = demo.tokenize(f"{PROMPT}\n<think>")
    thoughts = alone(demo, prompt, 6)
    template = served.service.template
    assert template is not None
    end = template.marker_tokens("\n</think>\n\n")
    rest = alone(demo, [*prompt, *thoughts.tokens, *end], 24 - 6 - len(end))
    whole = served.post(path, body).json()
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == thoughts.text.strip()
    assert message["content"] == rest.text.lstrip()
    usage = whole["usage"]
    assert usage["completion_tokens"] == 24 - len(end)
    assert usage["prompt_tokens"] == len(prompt)
    lines = served.post(path, body | {"stream": True}).text.split("\n\n")
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in lines
        if line and "[DONE]" not in line
    ]
    for key in ("reasoning_content", "content"):
        assert "".join(delta.get(key) or "" for delta in deltas) == message[key]


def test_a_limit_of_no_tokens_leaves_no_thoughts(served: Served) -> None:
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
