"""Streams say that they go on while nothing happens: before a slot is free, and between texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from serving import ENDLESS, Served, new_client, running

from pyselfspec import Model
from pyselfspec.serve.protocol import events
from pyselfspec.serve.settings import Capacity

LONG: dict[str, Any] = {
    "prompt": "Once", "max_tokens": 400, "n": 8, "grammar": ENDLESS, "stream": True,
}  # fmt: skip
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


@pytest.fixture
def served(demo: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server with one slot and little patience."""
    monkeypatch.setattr(events, "START_S", 0.02)
    monkeypatch.setattr(events, "PING_S", 0.02)
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=1, n_queue=20)) as found:
        yield found


@pytest.mark.parametrize(
    ("path", "body", "ping", "end"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True}, ": ping", "[DONE]"),
        ("/v1/chat/completions", TALK | {"max_tokens": 2}, ": ping", "[DONE]"),
        ("/v1/messages", TALK | {"max_tokens": 2}, "event: ping", "message_stop"),
        (
            "/v1/responses",
            {"input": "x", "max_output_tokens": 2, "stream": True},
            ": ping",
            "response.incomplete",
        ),
    ],
)
def test_a_stream_that_waits_for_a_slot_goes_on(
    path: str, body: dict[str, Any], ping: str, end: str, served: Served
) -> None:
    with new_client() as first, new_client() as second:
        with first.stream("POST", f"{served.url}/v1/completions", json=LONG) as busy:
            begun = busy.iter_lines()  # it closes the stream when it is forgotten
            next(begun)
            with second.stream("POST", served.url + path, json=body) as waiting:
                assert waiting.status_code == 200
                lines = waiting.iter_lines()
                assert ping in lines and ping in lines, "more than once"
                busy.close()
                assert end in "\n".join(lines)


def test_clients_of_messages_take_pings(served: Served) -> None:
    """They are no part of the answer."""
    with new_client() as first:
        with first.stream("POST", f"{served.url}/v1/completions", json=LONG) as busy:
            begun = busy.iter_lines()
            next(begun)
            create = served.anthropic().messages.stream
            said = [{"role": "user", "content": "Hello"}]
            with create(model="demo", max_tokens=2, messages=said) as stream:  # type: ignore[arg-type]
                busy.close()
                assert stream.get_final_message().usage.output_tokens == 2


def test_a_request_that_is_refused_has_its_own_status(served: Served) -> None:
    body = {"prompt": "x", "stream": True, "grammar": "root ::= ("}
    assert served.post("/v1/completions", body).status_code == 400
