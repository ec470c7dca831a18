"""Prompts as the model sees them: tokens of texts, texts of tokens, and rendered templates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Served, running

from pyselfspec import Model
from pyselfspec.serve.endpoints import tokens
from pyselfspec.serve.settings import Capacity

TEXT = 'Ein König, 日本語 and "tags" <b>.'
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Who are you?"}]}


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1)) as found:
        yield found


def test_tokens_of_a_text(served: Served, demo: Model) -> None:
    for special in (False, True):
        body = {"content": TEXT, "add_special": special}
        got = served.post("/tokenize", body).json()["tokens"]
        assert got == demo.tokenize(TEXT, add_special=special)


def test_pieces_make_the_text(served: Served) -> None:
    """Pieces that are no characters are lists of bytes."""
    pieces = served.post("/tokenize", {"content": TEXT, "with_pieces": True}).json()["tokens"]
    joined = b"".join(
        bytes(each["piece"]) if isinstance(each["piece"], list) else each["piece"].encode()
        for each in pieces
    )
    assert joined.decode().strip() == TEXT
    tokens = [each["id"] for each in pieces]
    assert served.post("/detokenize", {"tokens": tokens}).json()["content"].strip() == TEXT


def test_control_tokens_have_their_names(served: Served, demo: Model) -> None:
    assert demo.start_token is not None
    got = served.post("/detokenize", {"tokens": [demo.start_token]}).json()["content"]
    assert demo.tokenize(got, add_special=False) == [demo.start_token]


def test_a_rendered_template_has_the_tokens_of_the_chat(served: Served, demo: Model) -> None:
    prompt = served.post("/apply-template", CHAT).json()["prompt"]
    assert prompt.startswith("<|im_start|>user\nWho are you?") and prompt.endswith("assistant\n")
    usage = served.post("/v1/chat/completions", CHAT | {"max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == len(demo.tokenize(prompt))


def test_answers_do_not_wait_for_tokens(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many long texts are being tokenized."""
    may_go_on = threading.Event()

    def slow_tokens(_model: Model, _body: Any) -> list[int]:
        assert may_go_on.wait(60)
        return []

    monkeypatch.setattr(tokens, "_tokens", slow_tokens)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(served.post, "/tokenize", {"content": TEXT}) for _ in range(8)]
        try:
            assert served.post("/v1/chat/completions", CHAT | {"max_tokens": 1}).status_code == 200
            assert not any(each.done() for each in waiting)
        finally:
            may_go_on.set()
        assert {each.result().status_code for each in waiting} == {200}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("tokenize", {}, "content"),
        ("tokenize", {"content": "\ud800"}, "Unicode|unicode"),
        ("detokenize", {"tokens": [10**9]}, "vocabulary"),
        ("detokenize", {"tokens": [-1]}, "vocabulary"),
        ("detokenize", {"tokens": "x"}, "tokens"),
        ("apply-template", {"messages": []}, "messages"),
    ],
)
def test_what_is_refused(path: str, body: Any, message: str, served: Served) -> None:
    import json
    import re

    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    response = served.client.post(f"{served.url}/{path}", content=content, headers=headers)
    error = response.json()["error"]["message"]
    assert response.status_code == 400 and re.search(message, error) and "\n" not in error
