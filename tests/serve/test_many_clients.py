"""Many clients at once, of all protocols: each gets the text that it would get alone, while others
go away in the middle of theirs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from serving import Served, new_client, running

from pyselfspec import Model
from pyselfspec.serve.settings import Capacity

N_CLIENTS = 32
TALES = ["a king", "two brothers", "the sea", "a cat and a dog"]


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=1536, n_slots=6, n_queue=200)) as found:
        yield found


def chat(i: int) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": said(i), "max_tokens": 16, "seed": i}


def message(i: int) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": said(i), "max_tokens": 16, "seed": i}


def response(i: int) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": said(i), "max_output_tokens": 16, "seed": i}


def completion(i: int) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": f"Once there was {TALES[i % 4]}", "seed": i}


def said(i: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Tell me of {TALES[i % 4]}, for the {i}th time."}]


ASK: list[Callable[[int], tuple[str, dict[str, Any]]]] = [chat, message, response, completion]


def text_in(body: Any) -> str:
    """Return the text of an answer of any protocol."""
    if "choices" in body:
        choice = body["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    [item] = body.get("content") or body["output"]
    return str(item["text"] if "text" in item else item["content"][0]["text"])


def test_texts_are_those_alone_while_others_go_away(served: Served) -> None:
    seed = 11
    print(f"seed {seed}")
    asked = [ASK[i % 4](i) for i in range(N_CLIENTS)]
    want = [text_in(served.post(path, body).json()) for path, body in asked]
    cuts = [random.Random(seed + i).randrange(1, 6) for i in range(N_CLIENTS)]

    def ask(i: int) -> str:
        path, body = asked[i]
        with new_client() as client:
            return text_in(client.post(f"{served.url}{path}", json=body).json())

    def leave(i: int) -> None:
        path, body = asked[i]
        with new_client() as client, suppress(httpx.HTTPError):
            longer = body | {"stream": True, "max_tokens": 300, "max_output_tokens": 300}
            with client.stream("POST", f"{served.url}{path}", json=longer) as stream:
                lines = stream.iter_lines()
                for _ in range(cuts[i]):
                    next(lines)

    with ThreadPoolExecutor(2 * N_CLIENTS) as pool:
        left = [pool.submit(leave, i) for i in range(0, N_CLIENTS, 2)]
        got = list(pool.map(ask, range(N_CLIENTS)))
        for each in left:
            each.result()
    assert got == want
    served.until(lambda: served.metric("pyselfspec_texts_running") == 0)
    assert served.metric("pyselfspec_texts_waiting") == 0


LONG = {"type": "string", "minLength": 250}
SCHEMA = {
    "type": "object",
    "properties": {name: LONG for name in "abcd"},
    "required": list("abcd"),
}
STYLE = {"format": {"type": "json_schema", "name": "long", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("ask", "fields", "end"),
    [
        (message, {"output_config": STYLE, "max_tokens": 450}, "error"),
        (response, {"text": STYLE, "max_output_tokens": 450}, "response.failed"),
    ],
)
def test_a_stream_that_takes_too_long_ends_with_an_event(
    ask: Callable[[int], tuple[str, dict[str, Any]]],
    fields: dict[str, Any],
    end: str,
    demo: Model,
) -> None:
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=1), timeout_s=0.1) as served:
        path, body = ask(0)
        answer = served.post(path, body | fields | {"stream": True})
        if answer.status_code == 200:  # else nothing had been written yet
            lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
            last = json.loads(lines[-1][6:])
            assert last["type"] == end and "longer than this server allows" in lines[-1]
        else:
            assert answer.status_code == 504
        served.until(lambda: served.metric("pyselfspec_texts_running") == 0)
