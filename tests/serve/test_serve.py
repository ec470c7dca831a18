"""The server, by OpenAI's own client and by clients that behave badly.

The oracle of a text is a completion without drafts, alone in a context whose passes keep to the
exact width.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import openai
import pytest
from command_line import run
from serving import ENDLESS, Served, new_client, running

from pyselfspec import Completion, Model, SamplingParams
from pyselfspec.serve import app, server
from pyselfspec.serve.engine.engine import N_MASKS
from pyselfspec.serve.protocol import middleware
from pyselfspec.serve.service import Service
from pyselfspec.serve.settings import Capacity
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.drafters import ngram
from pyselfspec.templates.template import ChatTemplate

PROMPT = "Once upon a time there was a king who had a daughter."
WORDS = " The king went home and the daughter went home and the king said to the daughter: "
SMALL = {"kind": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": SMALL, "required": ["kind", "tame"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("buy", "sell")
]
KEY = "open sesame"
JSON = {"Content-Type": "application/json"}
SERVE = (sys.executable, "-m", "pyselfspec", "serve", "-m", "demo", "--port", "0", "-t", "1")


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=2048, n_slots=6, n_queue=32)) as found:
        yield found


@pytest.fixture(scope="module")
def narrow(demo: Model) -> Iterator[Served]:
    """One slot, a queue of one, a key, little room."""
    capacity = Capacity(n_ctx=512, n_slots=1, n_queue=1)
    with running(demo, capacity=capacity, keys=(KEY,), n_bytes=20_000) as found:
        found.service.template = None
        yield found


def alone(model: Model, prompt: str, n: int, sampling: SamplingParams) -> Completion:
    """Without a server, and without drafts."""
    with model.context(n_ctx=512, n_batch=32, n_threads=1) as context:
        if not context.abilities.exact_width:
            pytest.skip("our kernels do not compute here")
        made = Completion(context, prompt, n_predict=n, draft=None, sampling=sampling, logprobs=2)
        list(made)
    return made


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(seed=seed)


def stream_of(served: Served, body: dict[str, Any], path: str = "/v1/completions") -> list[Any]:
    response = served.post(path, body | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_models(served: Served) -> None:
    client = served.openai()
    assert [each.id for each in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "pyselfspec"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_model_that_only_joins_texts_is_no_chat_model(demo: Model) -> None:
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1), template=None) as found:
        props = found.client.get(f"{found.url}/props").json()
    assert props["chat_template"] is False


def test_what_the_server_is(served: Served, demo: Model) -> None:
    props = served.client.get(f"{served.url}/props").json()
    assert props["n_layer"] == demo.n_layer and props["slots"] == 6
    assert (props["total_slots"], props["model_alias"]) == (6, "demo")
    assert props["model_path"] == demo.path.name and props["eos_token"]
    usual = props["default_generation_settings"]
    assert usual["n_ctx"] == props["n_ctx"] == demo.n_ctx_train
    assert usual["params"]["top_k"] == SamplingParams().top_k and "min_p" in usual["params"]
    assert props["chat_template"] is True, "the server was started with one for chats"
    assert {"ngram", "layer-skip"} <= set(props["sources"]) and "model" not in props["sources"]
    assert props["mask"]["skip_ffn"] == sorted(demo.draft_mask.skip_ffn)  # type: ignore[union-attr]
    assert served.client.get(f"{served.url}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("draft", ["auto", "ngram", "layer-skip", None])
def test_the_text_is_the_models_own(draft: str | None, served: Served, demo: Model) -> None:
    want = alone(demo, PROMPT, 40, sampled(7))
    got = served.openai().completions.create(
        model="demo",
        prompt=PROMPT,
        max_tokens=40,
        seed=7,
        extra_body={"pyselfspec": {"draft": draft}},
    )
    assert got.choices[0].text == want.text
    assert got.usage is not None and got.usage.completion_tokens == len(want.tokens)
    assert got.usage.prompt_tokens == len(want.prompt)


def test_streams_say_the_same(served: Served) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 3, "logprobs": 1}
    body["stream_options"] = {"include_usage": True}
    whole = served.post("/v1/completions", body).json()
    *chunks, last = stream_of(served, body)
    choice = whole["choices"][0]
    assert "".join(each["choices"][0]["text"] for each in chunks) == choice["text"]
    assert [each["choices"][0]["finish_reason"] for each in chunks][-1] == choice["finish_reason"]
    kept = [each["choices"][0]["logprobs"] or {} for each in chunks]
    for name in ("tokens", "text_offset"):
        assert [x for each in kept for x in each.get(name, [])] == choice["logprobs"][name]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_chats_stream_the_same(served: Served) -> None:
    client, messages = served.openai(), [{"role": "user", "content": "Tell me a tale."}]
    options: dict[str, Any] = {"model": "demo", "messages": messages, "seed": 5, "max_tokens": 30}
    whole = client.chat.completions.create(**options)
    pieces = list(client.chat.completions.create(**options, stream=True))
    text = "".join(each.choices[0].delta.content or "" for each in pieces)
    assert text == whole.choices[0].message.content
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_choices_are_those_of_seeds_that_count_up(served: Served) -> None:
    create = served.openai().completions.create
    several = create(model="demo", prompt=[PROMPT, "The king"], n=2, max_tokens=12, seed=20)
    each = [
        create(model="demo", prompt=prompt, max_tokens=12, seed=seed).choices[0].text
        for prompt in (PROMPT, "The king")
        for seed in (20, 21)
    ]
    assert [choice.text for choice in several.choices] == each
    assert len(set(each)) > 2


def test_stops(served: Served, demo: Model) -> None:
    want = alone(demo, PROMPT, 40, sampled(7)).text
    stop = want[25:31]
    got = served.openai().completions.create(
        model="demo", prompt=PROMPT, max_tokens=40, seed=7, stop=["never this", stop]
    )
    assert got.choices[0].text == want[: want.index(stop)]
    assert got.choices[0].finish_reason == "stop"


def test_logprobs_are_those_of_the_model(served: Served, demo: Model) -> None:
    """Against a pass over the whole text, and numpy."""
    body = {"prompt": PROMPT, "max_tokens": 20, "seed": 7, "logprobs": 3}
    got = served.post("/v1/completions", body).json()["choices"][0]
    prompt = demo.tokenize(PROMPT)
    tokens = alone(demo, PROMPT, 20, sampled(7)).tokens
    with demo.context(n_ctx=256, n_threads=1) as context:
        logits = context.decode([*prompt, *tokens]).logits[len(prompt) - 1 : -1].astype(np.float64)
    law = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = law[np.arange(20), tokens]
    np.testing.assert_allclose(got["logprobs"]["token_logprobs"], want, atol=0.2)
    best = [max(top, key=top.get) for top in got["logprobs"]["top_logprobs"]]
    clear = np.sort(logits)[:, -1] - np.sort(logits)[:, -2] > 0.5  # no near-ties
    likeliest = [demo.piece(int(i)).decode(errors="replace") for i in law.argmax(axis=1)]
    assert clear.any()
    assert [b for b, c in zip(best, clear, strict=True) if c] == [
        b for b, c in zip(likeliest, clear, strict=True) if c
    ]
    assert "".join(got["logprobs"]["tokens"]) == got["text"]


def test_chats_have_logprobs(served: Served) -> None:
    got = served.openai().chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Who?"}],
        max_tokens=8,
        seed=1,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = got.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    said = b"".join(bytes(each.bytes or ()) for each in logprobs.content)
    assert said.decode(errors="replace") == got.choices[0].message.content
    assert all(len(each.top_logprobs) == 2 for each in logprobs.content)


def test_tokens_are_shown_with_their_sources(served: Served) -> None:
    """By a drafter that is always asked for drafts, on words that repeat."""
    body = {"prompt": WORDS * 3, "max_tokens": 40, "temperature": 0}
    body["pyselfspec"] = {"draft": "ngram", "show": True}
    chunks = stream_of(served, body | {"stream_options": {"include_usage": True}})
    shown = [each["pyselfspec"]["tokens"] for each in chunks if "pyselfspec" in each]
    text = "".join(each["choices"][0]["text"] for each in chunks if each["choices"])
    assert "".join(piece for tokens in shown for piece, _ in tokens) == text
    assert {source for tokens in shown for _, source in tokens} <= {"ngram", "full"}
    stats = chunks[-1]["usage"]["pyselfspec"]
    n_copied = sum(source == "ngram" for tokens in shown for _, source in tokens)
    assert n_copied == stats["n_accepted"] == sum(stats["n_accepted_at"])
    assert stats["n_steps"] + stats["n_accepted"] == stats["n_generated"] == 40
    assert {"estimated_speedup", "mask"} <= stats.keys() and stats["mask"] is None


@pytest.mark.parametrize("named", [False, True])
def test_a_tool_must_be_called(named: bool, served: Served) -> None:
    choice: Any = {"type": "function", "function": {"name": "sell"}} if named else "required"
    got = served.openai().chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "I want an animal."}],
        tools=TOOLS,
        tool_choice=choice,
        max_tokens=200,
        seed=2,
    )
    assert got.choices[0].finish_reason == "tool_calls"
    [call] = got.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name in (("sell",) if named else ("buy", "sell"))
    arguments = json.loads(call.function.arguments)
    assert arguments["kind"] in ("cat", "dog") and isinstance(arguments["tame"], bool)


def test_six_texts_at_once_are_those_alone(served: Served, demo: Model) -> None:
    """Send prompts from short to long; every second one shares its beginning with another."""
    prompts = [PROMPT + WORDS * (3 * (i // 2)) for i in range(6)]
    n = 48

    def ask(i: int) -> str:
        body = {"prompt": prompts[i], "max_tokens": n, "seed": i}
        return str(served.post("/v1/completions", body).json()["choices"][0]["text"])

    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(ask, range(6)))
    assert got == [alone(demo, prompts[i], n, sampled(i)).text for i in range(6)]


def test_penalties_and_bias_reach_the_sampler(served: Served, demo: Model) -> None:
    [token] = demo.tokenize("e", add_special=False)[-1:]
    given = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repeat_last_n": 50}
    body = {"prompt": WORDS, "max_tokens": 32, "seed": 3, "logit_bias": {str(token): -8.5}}
    got = served.post("/v1/completions", body | given).json()["choices"][0]["text"]
    params = replace(sampled(3), logit_bias=((token, -8.5),), **given)
    assert got == alone(demo, WORDS, 32, params).text != alone(demo, WORDS, 32, sampled(3)).text


def test_what_was_read_is_not_read_again(served: Served, demo: Model) -> None:
    """By a text that goes on, and by one that only begins the same."""
    first = "A sentence that no other test of this file begins with. " + WORDS
    body = {"prompt": first, "max_tokens": 4, "seed": 1}
    served.post("/v1/completions", body)
    n = len(demo.tokenize(first))
    for prompt in (first, first + WORDS, first + "Something else."):
        usage = served.post("/v1/completions", body | {"prompt": prompt}).json()["usage"]
        reused = usage["prompt_tokens_details"]["cached_tokens"]
        assert n - 2 <= reused == usage["pyselfspec"]["n_prompt_reused"] < usage["prompt_tokens"]
        assert usage["prompt_tokens"] - reused <= usage["prompt_tokens"] - n + 2
    want = alone(demo, first + WORDS, 4, sampled(1)).text
    got = served.post("/v1/completions", body | {"prompt": first + WORDS}).json()
    assert got["choices"][0]["text"] == want


CHAT = {"messages": [{"role": "user", "content": "x"}]}
REFUSED: list[tuple[str, Any, str]] = [
    ("completions", {}, "prompt"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": [10**9]}, "vocabulary"),
    ("completions", {"prompt": "\ud800"}, "Unicode|unicode"),
    ("completions", {"prompt": "x", "stop": "\ud800"}, "^stop: it is not valid Unicode"),
    ("completions", {"prompt": "x", "stop": ["y", "\ud800"]}, "^stop.1: it is not valid Unicode"),
    ("chat/completions", CHAT | {"tool_choice": "\ud800"}, "not valid Unicode"),
    ("completions", {"prompt": ["x"] * 17}, "choices"),
    ("completions", {"prompt": "x", "echo": True, "logprobs": 1}, "echo"),
    ("completions", {"prompt": "x", "echo": True, "suffix": "y"}, "echo"),
    ("completions", {"prompt": "x", "suffix": "y"}, "not trained for fill-in-the-middle"),
    ("completions", {"prompt": "x", "n": 3, "best_of": 2}, "best_of"),
    ("completions", {"prompt": "x", "logit_bias": {"-5": 1}}, "logit_bias"),
    ("completions", {"prompt": "x", "logit_bias": {"9" * 99: 1}}, "logit_bias"),
    ("completions", {"prompt": "x", "max_tokens": -2}, "max_tokens"),
    ("completions", {"prompt": "x", "logit_bias": {"0" * 12 + "9" * 9: 1}}, "logit_bias"),
    ("completions", {"prompt": "x", "logit_bias": {"0" * 5000: 1}}, "logit_bias"),
    ("completions", {"prompt": "x", "presence_penalty": 1e300}, "presence_penalty"),
    ("completions", {"prompt": "x", "grammar": "root ::= ("}, "GBNF"),
    *[
        ("completions", {"prompt": "x", "pyselfspec": {"draft": draft}}, message)
        for draft, message in {
            "nobody": "there is no drafter 'nobody'; this server has auto, off, .*ngram",
            "ngram+head": "the drafter head needs a file.*: --draft head:FILE; this server has",
            "model:/etc/passwd": "there is no drafter 'model:/etc/passwd'; this server has auto",
        }.items()
    ],
    ("completions", {"prompt": "x", "pyselfspec": {"mask": {"skip_attn": [99]}}}, "99"),
    ("chat/completions", CHAT | {"top_logprobs": 2}, "logprobs"),
    ("chat/completions", CHAT | {"tool_choice": "required"}, "tools"),
    ("chat/completions", CHAT | {"response_format": {"type": "json_schema"}}, "json_schema"),
    ("embeddings", {"input": "x"}, "embeddings"),
]  # fmt: skip


def test_a_prompt_that_is_too_long_is_counted_to_its_end(served: Served, demo: Model) -> None:
    prompt = "word " * 3000
    refused = served.post("/v1/completions", {"prompt": prompt})
    n = len(demo.tokenize(prompt))
    assert refused.status_code == 400 and refused.json()["error"]["message"] == (
        f"the prompt has {n} tokens, the context {served.service.requests.n_ctx}; "
        "give a larger n_ctx (-c) or a shorter prompt"
    )
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("schema", [{"enum": []}, {"$ref": "#"}, {"not": {}}], ids=str)
def test_a_schema_that_is_not_supported_names_the_field(schema: Any, served: Served) -> None:
    wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
    tool = {"type": "function", "function": {"name": "buy", "parameters": schema}}
    for param, fields in (
        ("response_format", {"response_format": wanted}),
        ("tools", {"tools": [tool], "tool_choice": "required"}),
    ):
        refused = served.post("/v1/chat/completions", CHAT | fields)
        error = refused.json()["error"]
        assert refused.status_code == 400 and error["param"] == param, error
        assert error["message"].startswith("this JSON schema is not supported: ")


@pytest.mark.parametrize(("path", "body", "message"), REFUSED)
def test_what_is_refused(path: str, body: Any, message: str, served: Served) -> None:
    """Streams too have a status of their own for it."""
    for extra in ({}, {"stream": True}):
        content = json.dumps(body | extra).encode()
        headers = {"Content-Type": "application/json"}
        response = served.client.post(f"{served.url}/v1/{path}", content=content, headers=headers)
        error = response.json()["error"]
        assert response.status_code == 400 and error["type"] == "invalid_request_error"
        assert re.search(message, error["message"]), error["message"]
        assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b"[" * 15_000, "application/json"),
        (b"\xff\xfe", "application/json"),
    ],
)
def test_malformed_bodies(content: bytes, kind: str, narrow: Served) -> None:
    headers = {"Authorization": f"Bearer {KEY}"} | ({"Content-Type": kind} if kind else {})
    response = narrow.client.post(f"{narrow.url}/v1/completions", content=content, headers=headers)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_a_body_has_a_limit(narrow: Served) -> None:
    """Whether its length is said at the beginning or not."""
    content = json.dumps({"prompt": "x" * 20_000}).encode()
    for body in (content, iter([content[:9000], content[9000:]])):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        response = narrow.client.post(f"{narrow.url}/v1/completions", content=body, headers=headers)
        assert response.status_code == 413 and "20000 bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize("key", [None, "wrong", KEY[:-1], "ключ", KEY])
def test_a_key_is_needed(key: str | None, narrow: Served) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
    for path in ("v1/models", "props", "metrics"):
        response = narrow.client.get(f"{narrow.url}/{path}", headers=headers)
        assert response.status_code == (200 if key == KEY else 401)
    assert narrow.client.get(f"{narrow.url}/health").status_code == 200


def test_all_of_the_api_needs_the_key(narrow: Served) -> None:
    paths = narrow.client.get(f"{narrow.url}/openapi.json").json()["paths"]
    assert len(paths) > 12
    for path in paths.keys() - {"/health"}:
        for method in paths[path]:
            response = narrow.client.request(method, narrow.url + path, json={})
            assert response.status_code == 401, path


def test_names_of_foreign_sites_are_refused(served: Served) -> None:
    for host, status in (("evil.example", 403), ("localhost:1", 200), ("127.0.0.1", 200)):
        response = served.client.get(f"{served.url}/props", headers={"Host": host})
        assert response.status_code == status
    response = served.client.get(f"{served.url}/props", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in response.headers


def test_a_model_without_a_template_cannot_chat(narrow: Served) -> None:
    with pytest.raises(openai.BadRequestError, match=r"no chat template.*completions"):
        narrow.openai(KEY).chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "x"}]
        )


def long_text(n: int) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": n, "grammar": ENDLESS, "seed": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_slot(stream: bool, served: Served) -> None:
    n_before = served.metric("pyselfspec_generated_tokens_total")
    connection = HTTPConnection(urlsplit(served.url).netloc)
    body = json.dumps(long_text(450) | {"stream": stream})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    served.until(lambda: served.metric("pyselfspec_texts_running") == 1)
    connection.close()
    served.until(lambda: served.metric("pyselfspec_texts_running") == 0)
    assert served.metric("pyselfspec_generated_tokens_total") - n_before < 450


def test_a_full_queue_refuses(narrow: Served) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    body = long_text(400) | {"stream": True}
    url = f"{narrow.url}/v1/completions"
    with new_client() as client, ThreadPoolExecutor(1) as pool:
        client.headers.update(headers)
        with client.stream("POST", url, json=body) as response:
            lines = response.iter_lines()  # dropped, it would end the stream
            next(lines)
            waiting = pool.submit(client.post, url, json=long_text(5))
            narrow.until(lambda: narrow.service.engine.n_waiting == 1)
            refused = client.post(url, json=long_text(5))
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        assert waiting.result().status_code == 200  # the first one has gone


def test_texts_that_do_not_fit_together_wait_for_room(demo: Model) -> None:
    """Both are written to their end."""
    with (
        running(demo, capacity=Capacity(n_ctx=300, n_slots=3)) as served,
        ThreadPoolExecutor(3) as pool,
    ):
        asked = [pool.submit(served.post, "/v1/completions", long_text(180)) for _ in range(3)]
        texts = [each.result().json()["choices"][0] for each in asked]
    assert len({each["text"] for each in texts}) == 1
    assert {each["finish_reason"] for each in texts} == {"length"}


def test_an_answer_has_its_time(demo: Model) -> None:
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=1), timeout_s=0.1) as served:
        late = served.post("/v1/completions", long_text(450))
        assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
        events = served.post("/v1/completions", long_text(450) | {"stream": True}).text
        assert "data: [DONE]" not in events and '"code":"timeout"' in events
        served.until(lambda: served.metric("pyselfspec_texts_running") == 0)


@pytest.mark.parametrize("grace", ["60", "0"])
def test_a_signal_ends_the_server(grace: str) -> None:
    """Answers that have begun are finished or cut with a reason; the exit status is 0."""
    command = [*SERVE, "--json"]
    with subprocess.Popen(
        [*command, "--grace", grace], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        body = long_text(300) | {"stream": True}
        with (
            new_client() as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            lines = response.iter_lines()
            next(lines)
            os.kill(process.pid, signal.SIGTERM)
            if grace == "60":
                assert list(filter(None, lines))[-1] == "data: [DONE]"
            else:
                *_, last = filter(None, lines)
                assert "the server is shutting down" in last
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""


def test_a_signal_ends_a_server_whose_template_does_not_end(tmp_path: Path) -> None:
    """Requests that render it are answered, and hold up the end of the process no longer."""
    source = "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    (tmp_path / "hostile.jinja").write_text(source + "{{ f(60) }}")
    command = [*SERVE, "--json"]
    command += ["--chat-template", str(tmp_path / "hostile.jinja"), "--grace", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with new_client() as client, ThreadPoolExecutor(6) as pool:
            ask = partial(client.post, f"{url}/v1/chat/completions", json=CHAT)
            waiting = [pool.submit(ask) for _ in range(6)]
            while client.get(f"{url}/health").status_code != 200 or not waiting[0].running():
                pass
            time.sleep(0.3)
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0 and time.monotonic() - start < 10
            for each in waiting:
                assert each.exception() is not None or each.result().status_code >= 400


@pytest.mark.parametrize(("options", "warns"), [(["-np", "2"], True), (["-np", "1"], False)])
def test_serving_without_flash_attention_warns(options: list[str], warns: bool) -> None:
    """Several answers at once then are not those that the model gives alone."""
    command = [*SERVE, "-fa", "off"]
    with subprocess.Popen(
        [*command, "-c", "512", *options], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        while not said or "Ctrl-C stops" not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    warned = [line for line in said if line.startswith("Warning: without flash attention, ")]
    assert len(warned) == warns
    assert all("-np 1 answers one request at a time" in line for line in warned)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_under_load_leaves_no_traceback(number: int) -> None:
    """Open streams, one that nobody reads, and a request that never arrives whole."""
    command = [*SERVE, "--json"]
    with (
        subprocess.Popen(
            [*command, "--grace", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        ExitStack() as stack,
    ):
        assert process.stdout is not None and process.stderr is not None
        url = json.loads(process.stdout.readline())["url"]
        body = json.dumps(long_text(300) | {"stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        )
        head += "Content-Type: application/json\r\n\r\n"
        for sent in (body, body, body, body[:9], b""):
            client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
            stack.enter_context(client).sendall(head.encode() + sent)
        client = stack.enter_context(new_client())
        with client.stream("POST", f"{url}/v1/completions", content=body, headers=JSON) as response:
            next(response.iter_lines())
            os.kill(process.pid, number)
            assert process.wait(60) == 0
        errors = process.stderr.read().splitlines()
    *told, last = errors
    assert told[-1] == "Ctrl-C stops the server.", errors
    assert "requests cut off: 2" in last


@pytest.mark.parametrize("path", ["/" + "a" * 300, "/%00", "/%0a..", "/..%2f..%2fapp.py"])
def test_odd_paths_are_not_served(
    path: str, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    got = served.client.get(f"{served.url}{path}")
    assert got.status_code == 404, got.text
    message = got.json()["error"]["message"]
    assert "is not served" in message and message.isprintable()
    assert {each.name for each in caplog.records} <= {"httpx"}  # the client


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/nothing.js"])
def test_paths_that_are_not_served(method: str, path: str, served: Served) -> None:
    response = served.client.request(method, served.url + path, json={})
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert path in message and "not served; use /v1/chat/completions" in message


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
        ("PUT", "/index.html", "GET, HEAD"),
    ],
)
def test_paths_with_another_method(method: str, path: str, allowed: str, served: Served) -> None:
    response = served.client.request(method, served.url + path, json={})
    assert response.status_code == 405 and response.headers["allow"] == allowed
    assert f"{path} is for {allowed}, not {method}" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_a_body_that_is_not_said_to_be_json(kind: str | None, served: Served) -> None:
    """`curl -d` sends this content type, as many tutorials do."""
    response = served.client.post(
        f"{served.url}/v1/completions",
        content=b'{"prompt": "x"}',
        headers={} if kind is None else {"Content-Type": kind},
    )
    assert response.status_code == 400
    assert "curl: -H 'Content-Type: application/json'" in response.json()["error"]["message"]


def test_a_grammar_that_becomes_too_ambiguous_ends_one_answer(served: Served, demo: Model) -> None:
    """With a status where nothing was sent yet, else as the last event; others go on."""
    rules = 'root ::= "a" root "b" | "a" root "c" | "a"'
    letter = next(token for token in range(demo.n_vocab) if demo.piece(token) == b"a")
    hard = long_text(100) | {"grammar": rules, "logit_bias": {str(letter): 100}}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(served.post, "/v1/completions", long_text(100))
        whole = served.post("/v1/completions", hard)
        events = served.post("/v1/completions", hard | {"stream": True}).text.split("\n\n")
    assert whole.status_code == 400
    assert "too ambiguous to follow" in whole.json()["error"]["message"]
    *chunks, last, _ = events
    assert len(chunks) > 1 and "too ambiguous to follow" in json.loads(last[6:])["error"]["message"]
    alone = served.post("/v1/completions", long_text(100)).json()
    assert other.result().json()["choices"] == alone["choices"]


def test_the_start_of_a_server_and_its_log_of_requests() -> None:
    """Addresses on labelled lines; with -v, requests on stderr, so that stdout stays JSON."""
    command = [*SERVE, "--json"]
    with subprocess.Popen(
        [*command, "-v"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = iter(process.stderr.readline, "")
        loading = ""
        while not (line := next(lines)).startswith("Page: "):
            loading += line
        assert "print_info: arch" in loading and "create_tensor: loading tensor" not in loading
        url = json.loads(process.stdout.readline())["url"]
        assert line == f"Page: {url}\n"
        assert next(lines) == f"API:  {url}/v1, model demo\n"
        assert next(lines) == "Ctrl-C stops the server.\n"
        with new_client() as client:
            client.get(f"{url}/v1/models")
        os.kill(process.pid, signal.SIGINT)
        log = "".join(lines)
        assert "GET /v1/models" in log and "200" in log
        assert process.stdout.read() == ""
        assert process.wait(60) == 0


def test_every_token_has_its_logprobs(served: Served) -> None:
    """Tokens that end in the middle of a character are listed as bytes."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "seed": 1}
    body |= {"grammar": 'root ::= "日本語"', "logprobs": True}
    path = "/v1/chat/completions"
    chunks = [each["choices"][0] for each in stream_of(served, body, path)]
    for choice in (served.post(path, body).json()["choices"], chunks):
        entries = [x for each in choice for x in (each["logprobs"] or {"content": []})["content"]]
        assert b"".join(bytes(each["bytes"]) for each in entries).decode() == "日本語"


def test_who_has_gone_leaves_the_queue(demo: Model) -> None:
    """Also behind one that waits for its place."""
    with (
        running(demo, capacity=Capacity(n_ctx=512, n_slots=1, n_queue=2)) as served,
        new_client() as other,
        ThreadPoolExecutor(2) as pool,
    ):
        engine, url = served.service.engine, f"{served.url}/v1/completions"
        with served.client.stream("POST", url, json=long_text(450) | {"stream": True}) as response:
            lines = response.iter_lines()  # dropped, it would end the stream
            next(lines)
            head = pool.submit(other.post, url, json=long_text(2))
            served.until(lambda: engine.n_waiting == 1)
            with pytest.raises(httpx.ReadTimeout):
                other.post(url, json=long_text(2), timeout=0.1)
            served.until(lambda: engine.n_waiting == 1)
            assert engine.n_running == 1 and not head.done()
        assert head.result().status_code == 200


@pytest.mark.parametrize("body", [b"", b"7", b"[]"])
def test_a_body_that_is_no_object(body: bytes, served: Served) -> None:
    headers = {"Content-Type": "application/json"}
    answer = served.client.post(f"{served.url}/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the body must be a JSON object")


def called(service: Service, receive: Any, loop: Any = None) -> list[Any]:
    """Call the application in a new event loop; return the messages that it sends."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"content-type": "application/json", "host": "localhost"}
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(app.make(service)(scope, receive, send))
    return sent


class Clockwork(asyncio.SelectorEventLoop):
    """An event loop whose time goes on when it is told to."""

    now = 0.0

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize(("n_bytes", "status"), [(9, 400), (11, 408)])
def test_a_body_that_trickles_has_its_time(n_bytes: int, status: int, served: Served) -> None:
    """For all of it, however soon each byte follows the one before."""
    loop, looks = Clockwork(), count(1)

    async def receive() -> Any:
        loop.now += middleware.BODY_S / 10
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"{", "more_body": next(looks) < n_bytes}

    assert called(served.service, receive, lambda: loop)[0]["status"] == status


def test_a_request_may_ask_for_one_of_the_servers_drafters(demo: Model) -> None:
    """And for what the server itself was given."""
    drafting = DraftConfig(draft=f"model:{demo.path}+ngram")
    with running(demo, capacity=Capacity(n_ctx=192, n_slots=1), drafting=drafting) as served:
        for asked in ("model", "ngram", "ngram+model", "model+ngram"):
            body = {"prompt": PROMPT, "max_tokens": 2, "pyselfspec": {"draft": asked}}
            usage = served.post("/v1/completions", body).json()["usage"]
            assert set(usage["pyselfspec"]["draft"].split("+")) == set(asked.split("+"))
        body["pyselfspec"] = {"draft": "+".join(["ngram"] * 1000)}
        refused = served.post("/v1/completions", body).json()["error"]
        assert refused["param"] == "pyselfspec.draft" and len(refused["message"]) < 200


@pytest.mark.parametrize("template", ["chatml", "{{ messages }}{{ tools | tojson }}"])
def test_what_is_nested_too_deep_is_refused(template: str, served: Served, demo: Model) -> None:
    """In what travels as text, where no parser of bodies looks."""
    deep = json.loads('{"a":' * 400 + "{}" + "}" * 400)
    service, ours = served.service, served.service.template
    service.template = ChatTemplate.of(demo, template)
    try:
        for arguments in ("[" * 100_000, json.dumps(deep)):
            call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
            answer = {"role": "assistant", "tool_calls": [call]}
            body = {"messages": [{"role": "user", "content": "x"}, answer], "max_tokens": 2}
            assert served.post("/v1/chat/completions", body).status_code in (200, 400)
        tools = [{"function": {"name": "f", "parameters": deep}}]
        for choice in ("auto", "required"):
            body = CHAT | {"tools": tools, "tool_choice": choice, "max_tokens": 2}
            assert served.post("/v1/chat/completions", body).status_code in (200, 400)
    finally:
        service.template = ours


def test_only_masks_in_use_count(demo: Model) -> None:
    """There is room for a few; whoever cannot use one takes none of it."""
    asked = [{"skip_ffn": [i, j]} for i in range(demo.n_layer) for j in range(i)]
    refused, used, more = asked[:N_MASKS], asked[N_MASKS : 2 * N_MASKS], asked[2 * N_MASKS]
    with running(demo, capacity=Capacity(n_ctx=128, n_slots=1)) as served:

        def status(draft: str, mask: Any) -> int:
            body = {"prompt": "x", "max_tokens": 1, "pyselfspec": {"draft": draft, "mask": mask}}
            return served.post("/v1/completions", body).status_code

        assert {status("ngram", mask) for mask in refused} == {400}
        assert {status("layer-skip", mask) for mask in used} == {200}
        assert status("layer-skip", more) == 400
        assert status("layer-skip", used[0]) == 200


@pytest.mark.parametrize(
    ("host", "key", "warns"),
    [("0.0.0.0", "", True), ("0.0.0.0", KEY, False), ("127.0.0.1", "", False)],
)
def test_an_open_server_is_warned_of(
    host: str, key: str, warns: bool, demo: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "run", lambda made, _: made._ready())
    options = ["--host", host, "--port", "0", "-t", "1", "-c", "64"]
    done = run("serve", demo.path, *options, PYSELFSPEC_API_KEY=key)
    assert done.status == 0, done.stderr
    assert ("set a key" in done.stderr) == warns


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("k1\n", ("k1",)),
        (" k1 \r\n\nk 2", ("k1", "k 2")),
        ("# ours\nk1\n", ("k1",)),
        ("\n", "has no API key: write one"),
        ("# ours\n", "has no API key: write one"),
        ("k\u00e9\n", "an API key consists of ASCII characters"),
    ],
)
def test_each_line_of_a_file_is_a_key(
    text: str,
    keys: tuple[str, ...] | str,
    tmp_path: Path,
    demo: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Any] = []
    take = lambda service, *_, **__: taken.append(service.settings)  # noqa: E731
    monkeypatch.setattr(server, "make_server", take)
    monkeypatch.setattr(server, "run", lambda *_: None)
    (tmp_path / "keys").write_text(text, encoding="utf-8")
    options = ["--port", "0", "-t", "1", "-c", "64", "--api-key-file", tmp_path / "keys"]
    done = run("serve", demo.path, *options)
    if isinstance(keys, str):
        assert done.status and keys in done.stderr
    else:
        assert done.status == 0 and taken[0].keys == keys


PAGE = "https://example.org"


def test_any_of_several_keys_will_do_and_each_has_its_own_texts(demo: Model) -> None:
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1), keys=("k1", "k2")) as found:
        for key, status in (("k1", 200), ("k2", 200), ("k1k2", 401), ("k", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert found.client.get(f"{found.url}/props", headers=headers).status_code == status
        body = {"input": "x", "max_output_tokens": 1}
        name = found.post("/v1/responses", body, headers={"x-api-key": "k1"}).json()["id"]
        for key, status in (("k1", 200), ("k2", 404)):
            path = f"{found.url}/v1/responses/{name}"
            assert found.client.get(path, headers={"x-api-key": key}).status_code == status
            both = {"Authorization": "Bearer wrong", "x-api-key": key}
            assert found.client.get(path, headers=both).status_code == status
        both = {"Authorization": "Bearer k1", "x-api-key": "wrong"}
        assert found.client.get(path, headers=both).status_code == 200


def test_packages_for_browsers_may_send_their_headers(demo: Model) -> None:
    wanted = "authorization,content-type,x-stainless-os,x-stainless-retry-count,anthropic-beta"
    wanted += ",x-api-key,anthropic-version,anthropic-dangerous-direct-browser-access"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    capacity = Capacity(n_ctx=256, n_slots=1)
    with running(demo, capacity=capacity, origins=(PAGE,), keys=(KEY,)) as found:
        for origin, status in ((PAGE, 200), ("https://evil.example", 400)):
            answer = found.client.options(
                f"{found.url}/v1/messages", headers=asked | {"Origin": origin}
            )
            assert answer.status_code == status
            if status == 200:
                allowed = answer.headers["access-control-allow-headers"].lower().split(",")
                assert {each.strip() for each in allowed} >= set(wanted.split(","))


def test_whatever_can_be_read_can_be_asked_for_with_head(served: Served) -> None:
    paths = served.client.get(f"{served.url}/openapi.json").json()["paths"]
    readable = [path for path, found in paths.items() if "get" in found and "{" not in path]
    assert {"/health", "/v1/models", "/props", "/slots"} <= set(readable)
    for path in (*readable, "/", "/openapi.json", "/v1/models/demo"):
        answer = served.client.head(served.url + path)
        assert answer.status_code == 200 and answer.content == b"", path
        assert answer.headers.keys() == served.client.get(served.url + path).headers.keys()
    refused = served.client.head(f"{served.url}/v1/completions")
    assert refused.status_code == 405 and refused.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[
            ((name, value), f"Invalid value for '{name}': '{value}' is not a number")
            for name, value in (
                ("--max-body", "nan"),
                *[(name, value) for name in ("--grace", "--timeout") for value in ("inf", "nan")],
            )
        ],
        (
            ("--max-body", "inf"),
            "Invalid value for '--max-body': 'inf' is not a number above 0 and at most 1024",
        ),
        (
            ("--max-body", "1e308"),
            "Invalid value for '--max-body': '1e308' is not a number above 0 and at most 1024",
        ),
        (
            ("--cors", "foo"),
            "Invalid value for '--cors': 'foo' is not an origin; give scheme and host, like https://",
        ),
        (("--cors", "https://example.org/page"), "'https://example.org/page' is not an origin"),
        (("--alias", ""), "Invalid value for '--alias': the name is empty"),
        (("--api-key", "k"), "set $PYSELFSPEC_API_KEY, or give --api-key-file FILE"),
    ],
    ids=str,
)
def test_options_of_a_server_that_are_refused(
    options: tuple[str, str], message: str, demo: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "run", lambda *_: None)
    done = run("serve", demo.path, "--port", "0", "-t", "1", "-c", "64", *options)
    assert done.status == 2 and done.traceback is None
    *_, last = done.stderr.splitlines()
    assert message in last


def test_origins_that_a_server_takes(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    take = lambda service, *_, **__: taken.append(service.settings)  # noqa: E731
    monkeypatch.setattr(server, "make_server", take)
    monkeypatch.setattr(server, "run", lambda *_: None)
    origins = ("https://example.org", "http://localhost:3000", "*")
    cors = [part for origin in origins for part in ("--cors", origin)]
    done = run("serve", demo.path, "--port", "0", "-t", "1", "-c", "64", *cors, "--max-body", "0.5")
    assert done.status == 0, done.stderr
    assert taken[0].origins == origins and taken[0].n_bytes == 1 << 19


def test_a_text_that_closes_badly_gives_its_slot_back(
    demo: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its answer to whoever asked."""

    def failing(_self: Any) -> None:
        raise OSError("this drafter does not close")

    body = {"prompt": PROMPT, "max_tokens": 3, "seed": 1}
    with running(demo, capacity=Capacity(n_ctx=128, n_slots=1)) as served:
        with monkeypatch.context() as patched:
            patched.setattr(ngram.NgramDrafter, "close", failing)
            first = served.post("/v1/completions", body, timeout=10)
        again = served.post("/v1/completions", body, timeout=10)
    assert first.status_code == again.status_code == 200
    assert first.json()["choices"] == again.json()["choices"]


def test_a_pass_that_fails_leaves_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reason is in the log alone, and each place that knows of it logs it once."""

    def failing() -> Any:
        raise RuntimeError("secret")

    body = {"prompt": PROMPT, "max_tokens": 3}
    with new_client() as client:
        url = f"{served.url}/v1/completions"
        with monkeypatch.context() as patched:
            patched.setattr(served.service.engine._batch, "run_pass", failing)
            failed = client.post(url, json=body)
        assert failed.status_code == 500 and "secret" not in failed.text
        assert client.post(url, json=body).status_code == 200
    assert [each.message for each in caplog.records] == ["a pass failed", "a request failed"]
