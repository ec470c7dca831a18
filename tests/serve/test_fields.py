"""Fields of requests: what llama-server's and OpenAI's clients send is honoured or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served, running

from pyselfspec import Model, SamplingParams
from pyselfspec.errors import ArgumentError
from pyselfspec.serve.settings import Capacity

PROMPT: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 12, "seed": 1}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=2)) as found:
        yield found


@pytest.fixture(scope="module")
def bound(demo: Model) -> Iterator[Served]:
    """A server with a grammar of its own."""
    sampling = SamplingParams(grammar='root ::= "yes" | "no"')
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=1), sampling=sampling) as found:
        yield found


def text_of(served: Served, path: str, body: dict[str, Any]) -> str:
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHATS, CHAT)])
def test_the_servers_grammar_holds_unless_the_request_has_one(
    path: str, body: dict[str, Any], bound: Served
) -> None:
    assert text_of(bound, path, body) in ("yes", "no")
    assert text_of(bound, path, body | {"grammar": None}) in ("yes", "no")
    assert text_of(bound, path, body | {"grammar": 'root ::= "perhaps"'}) == "perhaps"
    assert text_of(bound, path, body | {"grammar": ""}) not in ("yes", "no")


def test_a_format_replaces_the_servers_grammar(bound: Served) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": 5}}}
    assert text_of(bound, CHATS, CHAT | {"response_format": schema}) == "5"
    assert text_of(bound, CHATS, CHAT | {"response_format": {"type": "text"}}) in ("yes", "no")


def test_a_broken_grammar_of_the_server_is_refused_at_the_start(demo: Model) -> None:
    sampling = SamplingParams(grammar="root ::= (")
    with (
        pytest.raises(ArgumentError, match="GBNF"),
        running(demo, capacity=Capacity(n_ctx=256, n_slots=1), sampling=sampling),
    ):
        pass
