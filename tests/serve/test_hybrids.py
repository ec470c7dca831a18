"""A server of recurrent models: texts are those alone, and prompts are not read again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import serving
from serving import Served
from tiny_hybrids import write_hybrid

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.serve.settings import Capacity

ARCHITECTURES = ("lfm2", "qwen35", "mamba2", "mamba")
N_SLOTS = 2
SYSTEM = [5 + i * i % 290 for i in range(300)]  # longer than the distance between checkpoints


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("hybrid") / "model.gguf"
    with Model(write_hybrid(path, request.param, varied=True, n_ctx=1024)) as model:
        yield model


@pytest.fixture(scope="module")
def served(model: Model) -> Iterator[Served]:
    capacity = Capacity(n_ctx=2048, n_slots=N_SLOTS)
    with serving.running(model, capacity=capacity) as served:
        yield served


def ask(served: Served, prompt: list[int], **drafting: Any) -> tuple[str, int]:
    """Return the answer and the number of tokens of the prompt that were not read again."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "pyselfspec": drafting}
    response = served.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["text"], answer["usage"]["pyselfspec"]["n_prompt_reused"]


def alone(model: Model, prompt: list[int]) -> str:
    """Return the text of plain decoding in a context without snapshots."""
    with model.context(n_ctx=1024, n_threads=1, n_snapshots=0) as context:
        text = Completion(context, prompt, n_predict=24, sampling=GREEDY, draft=None)
        return "".join(text)


def test_answers_to_several_at_once_are_those_alone(model: Model, served: Served) -> None:
    prompts = [[7 + i, *range(20 + i, 50 + i), *range(20 + i, 40 + i)] for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        drafted = list(pool.map(lambda each: ask(served, each, draft="ngram")[0], prompts))
    assert drafted == [alone(model, prompt) for prompt in prompts]


def test_a_shared_beginning_is_read_once(model: Model, served: Served) -> None:
    first, second = [*SYSTEM, 8, 9, 10], [*SYSTEM, 30, 31, 32]
    ask(served, first)
    answer, n_reused = ask(served, second)
    assert n_reused >= 256 and answer == alone(model, second)


def test_an_edited_message_goes_back_to_the_turn_before(model: Model, served: Served) -> None:
    prompt = [3, *SYSTEM[:40]]
    for question in ([61, 62, 63], [71, 72, 73, 74]):
        prompt = [*prompt, *question]
        ask(served, prompt)
        n_before, prompt = len(prompt) - 1, [*prompt, *SYSTEM[50:60]]
    edited = [*prompt[: n_before + 1], 81, 82]
    answer, n_reused = ask(served, edited)
    assert n_reused >= n_before and answer == alone(model, edited)


def test_a_request_without_drafts_gives_the_same_answer(model: Model, served: Served) -> None:
    prompt = [11, *range(100, 140), *range(100, 130)]
    with_drafts, _ = ask(served, prompt)
    without, _ = ask(served, [*prompt[:-1], prompt[-1]], draft=None)
    assert with_drafts == without == alone(model, prompt)
