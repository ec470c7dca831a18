"""Several models behind one address, in processes of their own, by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import anthropic
import gguf
import httpx
import openai
import pytest
from routing import FakeProcess, listed_as, loaded
from serving import new_client
from starlette.requests import Request
from tiny_encoder import write_encoder

from pyselfspec.errors import ArgumentError, UnknownModelError
from pyselfspec.serve.endpoints.api_forms import path_form
from pyselfspec.serve.protocol.errors import ApiError
from pyselfspec.serve.router import forwarding
from pyselfspec.serve.router.app import RouterApp
from pyselfspec.serve.router.models import Listed, listed
from pyselfspec.serve.router.pool import Pool
from pyselfspec.serve.settings import Settings

KEY = "open sesame"
ORIGIN = "https://example.org"
ASK: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


class Router:
    """A running server of several models."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.client = new_client()
        self.client.headers["Authorization"] = f"Bearer {KEY}"
        self.openai = openai.OpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=new_client()
        )

    def status(self) -> dict[str, str]:
        data = self.client.get(f"{self.url}/v1/models").json()["data"]
        return {each["id"]: each["status"]["value"] for each in data}


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory, demo_path: Path) -> Iterator[Router]:
    """Three models of which about two fit. Its log must have no fault, also when it ends."""
    folder, log = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("log") / "log.txt"
    shutil.copy(demo_path, folder / "third.gguf")
    write_encoder(folder / "encoder.gguf", gguf.PoolingType.MEAN)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    (size,) = {each.n_bytes for each in listed([f"a={demo_path}"], None, 512, 1)}
    command = [sys.executable, "-m", "pyselfspec", "serve", "--json", "--port", "0"]
    command += ["--model", f"first={demo_path}", f"--model=second={demo_path}"]
    command += ["--models-dir", str(folder), "-c", "512", "-np", "1", "-t", "1"]
    command += ["--max-memory", str(2.5 * size / (1 << 30)), "--chat-template", "chatml"]
    command += ["--cors", ORIGIN]
    env = os.environ | {"PYSELFSPEC_API_KEY": KEY}
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env
        ) as process,
    ):
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            yield Router(process, said["url"])
            assert log.read_text().count("Page: ") == 1, "of this server, not of those behind it"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM, 143)
    said = log.read_text()
    assert "Traceback" not in said and "Fatal" not in said, said


def test_the_list_is_truthful(router: Router) -> None:
    assert set(router.status()) == {"first", "second", "third", "encoder"}
    data = router.client.get(f"{router.url}/v1/models").json()["data"]
    tags = router.client.get(f"{router.url}/api/tags").json()["models"]
    for found in (data, tags):  # so that programs can tell what to chat with
        said = {each.get("id") or each["name"]: each["capabilities"] for each in found}
        assert said.pop("encoder") == ["embedding"]
        assert set(map(tuple, said.values())) == {("completion",)}
    assert router.openai.models.retrieve("third").id == "third"
    with pytest.raises(openai.NotFoundError, match="first, second"):
        router.openai.completions.create(model="fourth", **ASK)


def test_models_are_loaded_on_demand_and_the_least_used_is_unloaded(router: Router) -> None:
    texts = set()
    for name in ("first", "second", "first", "third"):
        texts.add(router.openai.completions.create(model=name, **ASK).choices[0].text)
        assert router.status()[name] == "loaded"
    assert len(texts) == 1, "the three are copies"
    assert router.status() | {"encoder": ""} == {
        "first": "loaded", "second": "unloaded", "third": "loaded", "encoder": "",
    }  # fmt: skip


def test_embeddings_beside_text(router: Router) -> None:
    found = router.openai.embeddings.create(model="encoder", input="the king")
    assert len(found.data[0].embedding) == 64
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
        router.openai.completions.create(model="encoder", **ASK)


def test_streams_and_the_model_of_a_request_without_one(router: Router) -> None:
    whole = router.openai.completions.create(model="first", **ASK).choices[0].text
    stream = router.openai.completions.create(model="first", stream=True, **ASK)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole
    answer = router.client.post(f"{router.url}/v1/completions", json=ASK).json()
    assert answer["model"] == "first" and answer["choices"][0]["text"] == whole
    props = router.client.get(f"{router.url}/props", params={"model": "third"}).json()
    assert props["model"] == "third"


def test_many_requests_for_several_models(router: Router) -> None:
    names = [("first", "second", "third")[i % 3] for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        made = pool.map(lambda n: router.openai.completions.create(model=n, **ASK), names)
        answers = [(each.model, each.choices[0].text) for each in made]
    assert [model for model, _ in answers] == names and len({text for _, text in answers}) == 1


def test_keep_alive_unloads(router: Router) -> None:
    body = ASK | {"model": "first", "keep_alive": 0}
    assert router.client.post(f"{router.url}/v1/completions", json=body).status_code == 200
    end = time.monotonic() + 30
    while router.status()["first"] != "unloaded":
        assert time.monotonic() < end
        time.sleep(0.2)


def test_refusals(router: Router) -> None:
    post = router.client.post
    bad = {"Authorization": "Bearer wrong"}
    assert post(f"{router.url}/v1/completions", json=ASK, headers=bad).status_code == 401
    assert router.client.get(f"{router.url}/v1/models", headers=bad).status_code == 401
    assert post(f"{router.url}/v1/completions", content=b"no json").status_code == 400
    assert post(f"{router.url}/v1/completions", json=ASK | {"model": 7}).status_code == 404
    for wrong in ("soon", "", {}, True):
        body = ASK | {"model": "first", "keep_alive": wrong}
        found = post(f"{router.url}/v1/completions", json=body)
        assert found.status_code == 400 and "keep_alive: give" in found.text
    assert router.client.get(f"{router.url}/health", headers=bad).json() == {"status": "ok"}


def test_the_page_and_pages_of_others_need_no_key_to_ask(router: Router) -> None:
    """Browsers have none when they open the page, or ask what a page may send."""
    with new_client() as client:
        page = client.get(f"{router.url}/")
        assert page.status_code == 200 and "content-security-policy" in page.headers
        assert client.get(f"{router.url}/app.js").status_code == 200
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-stainless-os",
        }
        path = f"{router.url}/v1/completions"
        answer = client.options(path, headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        asked["Origin"] = "https://evil.example"
        assert client.options(path, headers=asked).status_code == 400
        assert client.get(f"{router.url}/props").status_code == 401
    answer = router.client.post(path, json=ASK | {"model": "first"}, headers={"Origin": ORIGIN})
    assert answer.headers.get_list("access-control-allow-origin") == [ORIGIN]
    assert router.client.head(f"{router.url}/health").status_code == 200
    assert router.client.head(f"{router.url}/v1/models").status_code == 200
    assert router.client.head(f"{router.url}/props").status_code == 200


def test_a_response_is_found_whichever_model_keeps_it(router: Router) -> None:
    made = router.openai.responses.create(model="third", input="Hello", max_output_tokens=2)
    router.openai.completions.create(model="first", **ASK)
    assert router.openai.responses.retrieve(made.id).id == made.id
    [item] = router.openai.responses.input_items.list(made.id)
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "Hello"}]
    router.openai.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        router.openai.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match=f"no response '{made.id}' of"):
        router.openai.responses.input_items.list(made.id)
    assert router.openai.responses.input_tokens.count(input="Hello").input_tokens > 1


def test_a_client_that_leaves_within_its_request(router: Router) -> None:
    """The log must not have it as a fault, see the fixture."""
    address = urlsplit(router.url)
    assert address.hostname and address.port
    with socket.create_connection((address.hostname, address.port)) as client:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        )
        client.sendall(f"{head}Content-Length: 99\r\n\r\n{{".encode())
    assert router.status()


def test_an_empty_name_is_the_first_model(router: Router) -> None:
    found = router.client.post(f"{router.url}/v1/completions", json=ASK | {"model": ""})
    assert found.status_code == 200 and found.json()["model"] == "first"


def test_anthropics_clients_get_their_form(router: Router) -> None:
    client = anthropic.Anthropic(
        base_url=router.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    )
    names = ["first", "second", "encoder", "third"]
    assert [each.id for each in client.models.list()] == names
    assert client.models.retrieve("second").display_name == "second"
    with pytest.raises(anthropic.NotFoundError, match="there is no model") as caught:
        client.messages.create(model="x", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    body: Any = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "not_found_error"


def test_ollamas_clients_choose_the_model(router: Router) -> None:
    def post(path: str, **fields: Any) -> httpx.Response:
        return router.client.post(f"{router.url}/api/{path}", json={"stream": False} | fields)

    def names(path: str) -> list[str]:
        models = router.client.get(f"{router.url}/api/{path}").json()["models"]
        return [each["name"] for each in models]

    assert names("tags") == list(router.status())
    assert "version" in router.client.get(f"{router.url}/api/version").json()
    options = {"num_predict": 12, "temperature": 0}
    want = router.openai.completions.create(model="first", **ASK).choices[0].text
    for name in ("third", "second:latest"):
        asked = {"model": name, "prompt": ASK["prompt"], "raw": True, "options": options}
        found = post("generate", **asked).json()
        assert found["response"] == want and found["model"] == name.removesuffix(":latest")
    assert "second" in names("ps") and "encoder" not in names("ps")
    messages = [{"role": "user", "content": "Hello"}]
    said = post("chat", model="second", messages=messages, options=options)
    assert said.json()["message"]["content"]
    assert post("show", name="second").json()["model_info"]["general.parameter_count"] > 0
    unknown = post("chat", model="fourth", messages=messages)
    assert unknown.status_code == 404 and unknown.json() == {"error": "model 'fourth' not found"}
    assert len(post("embed", model="encoder", input="the king").json()["embeddings"][0]) == 64
    assert post("generate", model="encoder", keep_alive="0s").status_code == 400
    end = time.monotonic() + 30
    while "encoder" in names("ps"):
        assert time.monotonic() < end
        time.sleep(0.2)
    bad = {"Authorization": "Bearer wrong"}
    refused = router.client.get(f"{router.url}/api/tags", headers=bad)
    assert refused.status_code == 401 and isinstance(refused.json()["error"], str)
    assert router.client.get(f"{router.url}/v1/health").json() == {"status": "ok"}


# the pieces


async def _break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a model's server does that stops within a stream."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n")
    writer.write(b'transfer-encoding: chunked\r\n\r\nf\r\ndata: {"a":1}\n\n\r\n')
    await writer.drain()
    writer.close()


async def _text_through_router(answer: Any, path: str, *, dies: bool = False) -> str:
    """Return what a router passes on of a stream that a model's server answers with. dies: the
    first process of the model ends before the request comes."""
    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    ports = [listener.sockets[0].getsockname()[1]]
    if dies:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            ports.insert(0, closed.getsockname()[1])

    async def start(_model: Listed) -> FakeProcess:
        process = FakeProcess()
        process.port = ports.pop(0)
        return process

    pool = Pool([listed_as("a", 1)], start, max_bytes=None, keep_s=None)
    transport = httpx.ASGITransport(RouterApp(pool, Settings("a")).make())
    async with listener, httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return (await client.post(path, json={"stream": True})).text


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/chat/completions", None), ("/v1/messages", "error"), ("/v1/responses", "error")],
)
def test_a_stream_whose_model_stops_ends_with_an_error(path: str, name: str | None) -> None:
    text = asyncio.run(_text_through_router(_break_off, path))
    first, event, rest = text.split("\n\n")
    assert first == 'data: {"a":1}' and rest == ""
    *names, data = event.splitlines()
    assert names == ([] if name is None else [f"event: {name}"])
    found = json.loads(data.removeprefix("data: "))
    assert (found.get("error") or found)["message"] == "a has stopped; try again"


def test_a_request_to_a_process_that_has_just_ended_starts_another() -> None:
    text = asyncio.run(_text_through_router(_break_off, "/v1/completions", dies=True))
    assert text.startswith('data: {"a":1}\n\n')


def test_a_stream_of_lines_whose_model_stops_ends_with_an_error() -> None:
    async def check() -> str:
        async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n")
            writer.write(b'transfer-encoding: chunked\r\n\r\n8\r\n{"a":1}\n\r\n')
            await writer.drain()
            writer.close()

        return await _text_through_router(stop, "/api/chat")

    assert asyncio.run(check()) == '{"a":1}\n{"error":"a has stopped; try again"}\n'


WAITING = {
    "/v1/completions": ": ping\n\n",
    "/v1/messages": 'event: ping\ndata: {"type":"ping"}\n\n',
    "/api/chat": " ",
}


async def _while_loading(path: str, answer: bytes | ApiError, monkeypatch: Any) -> list[str]:
    """Return the parts of a stream whose model is loaded only when a ping has come. answer: of the
    model's server, or the error of loading."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(answer, bytes)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def start(_model: Listed) -> FakeProcess:
        await has_pinged.wait()
        if isinstance(answer, ApiError):
            raise answer
        process = FakeProcess()
        process.port = listener.sockets[0].getsockname()[1]
        return process

    async def receive() -> Any:
        if not asked:
            asked.append(path)
            return {"type": "http.request", "body": b'{"stream": true}', "more_body": False}
        return await asyncio.Future()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message["body"]:
            parts.append(message["body"].decode())
            has_pinged.set()

    monkeypatch.setattr(forwarding, "START_S", 0.01)
    monkeypatch.setattr(forwarding, "PING_S", 0.02)
    has_pinged, asked, parts = asyncio.Event(), list[str](), list[str]()
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": [(b"content-type", b"application/json")]}
    listener = await asyncio.start_server(reply, "127.0.0.1", 0)
    pool = Pool([listed_as("a", 1)], start, max_bytes=None, keep_s=None)
    async with listener:
        await RouterApp(pool, Settings("a")).make()(scope, receive, send)
    assert pool.entries["a"].n_users == 0
    return [part for part in parts if part != parts[0]] + [parts[0]]


@pytest.mark.parametrize("path", WAITING)
def test_a_stream_pings_while_its_model_is_loaded(path: str, monkeypatch: Any) -> None:
    kind = b"application/x-ndjson" if path == "/api/chat" else b"text/event-stream"
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\ncontent-length: 4\r\n\r\nabc\n"
    found = asyncio.run(_while_loading(path, answer, monkeypatch))
    assert found == ["abc\n", WAITING[path]]


@pytest.mark.parametrize("path", WAITING)
def test_pings_depend_on_the_path_alone(path: str) -> None:
    """A client of OpenAI's API would read another ping as a part of the answer."""
    headers = [(b"anthropic-version", b"2023-06-01")]
    request = Request({"type": "http", "path": path, "headers": headers})
    assert path_form(request).ping.decode() == WAITING[path]


@pytest.mark.parametrize("path", WAITING)
def test_an_error_after_pings_is_an_event(path: str, monkeypatch: Any) -> None:
    error = {"message": "bad", "param": "prompt", "code": "too_long"}
    said = json.dumps({"error": "bad" if path == "/api/chat" else error})
    head = (
        f"HTTP/1.1 400 X\r\ncontent-type: application/json\r\ncontent-length: {len(said)}\r\n\r\n"
    )
    bad = ApiError(400, "bad", param="prompt", code="too_long")
    for answer in ((head + said).encode(), bad):
        event, ping = asyncio.run(_while_loading(path, answer, monkeypatch))
        body = json.loads(event.strip().splitlines()[-1].removeprefix("data: "))
        found = body["error"]
        assert (found if path == "/api/chat" else found["message"]) == "bad"
        assert path != "/v1/completions" or found | error == found
        assert ping == WAITING[path] and event.startswith("event: error\n") == ("messages" in path)


def test_at_the_end_requests_do_not_wait_for_models() -> None:
    async def check() -> None:
        async def start(_model: Listed) -> FakeProcess:
            pool.end()
            return await asyncio.Future()

        pool = Pool([listed_as("a", 1)], start, max_bytes=None, keep_s=None)
        with pytest.raises(ApiError, match="the server is shutting down"):
            async with pool.using("a", 1):
                pass
        assert pool.entries["a"].n_users == 0

    asyncio.run(check())


def test_a_model_is_loaded_even_if_its_client_leaves() -> None:
    async def check() -> None:
        async def start(_model: Listed) -> FakeProcess:
            await asyncio.sleep(0.02)
            return FakeProcess()

        async def use() -> None:
            async with pool.using("a", 1):
                pass

        pool = Pool([listed_as("a", 1)], start, max_bytes=None, keep_s=None)
        task = asyncio.create_task(use())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.05)
        assert loaded(pool) == {"a"} and pool.entries["a"].n_users == 0

    asyncio.run(check())


def test_names_of_models(demo_path: Path, tmp_path: Path) -> None:
    for pairs in (["a"], ["=b"], ["a="], [f"a={demo_path}", f"a={demo_path}"]):
        with pytest.raises(ArgumentError):
            listed(pairs, None, None, 1)
    with pytest.raises(ArgumentError, match="holds no model"):
        listed([], tmp_path, None, 1)
    assert [each.path for each in listed(["a=demo"], None, None, 1)] == [demo_path]
    with pytest.raises(UnknownModelError, match="unknown model 'nope'"):
        listed(["a=nope"], None, None, 1)


def pool_of(max_bytes: int, keep_s: float | None = None) -> tuple[Pool, list[str]]:
    started: list[str] = []

    async def start(model: Listed) -> FakeProcess:
        started.append(model.name)
        return FakeProcess()

    models = [listed_as(name, 10) for name in "abc"]
    return Pool(models, start, max_bytes=max_bytes, keep_s=keep_s), started


def test_a_model_in_use_stays_loaded() -> None:
    async def check() -> SimpleNamespace:
        pool, started = pool_of(20)
        async with pool.using("a", 1):
            async with pool.using("b", 1):
                with pytest.raises(ApiError, match="not enough memory to load c"):
                    async with pool.using("c", 0.05):
                        pass
            async with pool.using("c", 1):
                assert loaded(pool) == {"a", "c"}
        return SimpleNamespace(started=started)

    assert asyncio.run(check()).started == ["a", "b", "c"]


def test_a_model_that_never_fits_is_refused() -> None:
    async def check() -> None:
        pool, _ = pool_of(5)
        with pytest.raises(ApiError, match="--max-memory"):
            async with pool.using("a", 1):
                pass

    asyncio.run(check())


def test_a_process_that_has_ended_is_started_again() -> None:
    async def check() -> list[str]:
        pool, started = pool_of(30)
        async with pool.using("a", 1) as running:
            await running.end()
        async with pool.using("a", 1):
            pass
        return started

    assert asyncio.run(check()) == ["a", "a"]


def test_models_are_unloaded_after_a_while() -> None:
    async def check() -> None:
        pool, _ = pool_of(30, keep_s=0.0)
        async with pool.using("a", 1):
            await pool.unload_old()
            assert loaded(pool) == {"a"}
        await pool.unload_old()
        assert not loaded(pool)

    asyncio.run(check())


def test_memory_is_free_only_when_a_process_has_ended() -> None:
    """Meanwhile, requests for its model wait as well."""

    class SlowProcess(FakeProcess):
        async def end(self) -> None:
            await may_end.wait()
            await super().end()

    async def check() -> None:
        started: list[str] = []

        async def start(model: Listed) -> SlowProcess:
            started.append(model.name)
            return SlowProcess()

        async def use(name: str) -> None:
            async with pool.using(name, 1):
                pass

        pool = Pool([listed_as(name, 10) for name in "ab"], start, max_bytes=10, keep_s=0.0)
        await use("a")
        tasks = [asyncio.create_task(work) for work in (pool.unload_old(), use("a"), use("b"))]
        await asyncio.sleep(0.05)
        assert started == ["a"] and not loaded(pool)
        may_end.set()
        await asyncio.gather(*tasks)
        assert sorted(started) == ["a", "a", "b"]

    may_end = asyncio.Event()
    asyncio.run(check())
