"""Ollama's API: its translation without a model, the server, and Ollama's own client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from png_files import png
from serving import ENDLESS, Served, new_client, running
from tiny_mmproj import write

from pyselfspec import Model, SamplingParams
from pyselfspec.serve.endpoints.ollama_request import (
    ApiChatRequest,
    GenerateRequest,
    keep_seconds,
    prompt_to_chat,
    served_name,
    to_chat,
    to_completion,
)
from pyselfspec.serve.protocol import events
from pyselfspec.serve.protocol.errors import ApiError
from pyselfspec.serve.settings import Capacity

HELLO = [{"role": "user", "content": "Tell me a tale."}]
SAMPLING = {"temperature": 0.9, "top_k": 30, "seed": 7, "repeat_penalty": 1.1}
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": HELLO,
    "options": SAMPLING | {"num_predict": 20},
}
SMALL = {"kind": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": SMALL, "required": ["kind", "tame"]}
PICTURE = base64.b64encode(png(1)).decode()
TOOL = {"type": "function", "function": {"name": "buy", "parameters": SCHEMA}}
REASONING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "assistant: {% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def served(demo: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    mmproj = write(tmp_path_factory.mktemp("mmproj") / "p.gguf", demo.n_embd, "gemma3", seed=1)
    with running(demo, capacity=Capacity(n_ctx=2048, n_slots=2), mmproj=mmproj) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    return pytest.importorskip("ollama").Client(served.url)


def answer(served: Served, path: str, body: Any) -> Any:
    response = served.post(path, {"stream": False} | body)
    assert response.status_code == 200, response.text
    return response.json()


def lines(served: Served, path: str, body: Any) -> list[Any]:
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in response.text.splitlines()]


# without a model


def test_a_chat_with_tools_images_and_reasoning() -> None:
    call = {"function": {"name": "buy", "arguments": {"kind": "cat"}}}
    chat = to_chat(
        ApiChatRequest.model_validate(
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "This?", "images": ["QUJD"]},
                    {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
                    {"role": "tool", "content": "bought", "tool_name": "buy"},
                ],
                "tools": [TOOL],
                "format": "json",
                "think": "high",
                "keep_alive": "5m",
                "options": {"num_predict": -2, "stop": "x", "num_ctx": 4096, "top_k": None},
            }
        )
    )
    function = {"name": "buy", "arguments": '{"kind": "cat"}'}
    image = {"type": "image_url", "image_url": {"url": "data:image;base64,QUJD"}}
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [image, {"type": "text", "text": "This?"}]},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [{"function": function}],
        },
        {"role": "tool", "content": "bought", "name": "buy"},
    ]
    assert chat.stream and chat.most_tokens == -1 and chat.stops == ("x",) and chat.top_k is None
    assert chat.reasoning_effort == "high" and chat.chat_template_kwargs == {
        "enable_thinking": True
    }
    assert chat.response_format is not None and chat.response_format.wanted == {"type": "object"}


def test_a_prompt_becomes_a_chat_or_a_completion() -> None:
    asked = GenerateRequest.model_validate({"prompt": "Hi", "system": "Be brief.", "think": False})
    chat = prompt_to_chat(asked)
    assert [each["role"] for each in chat.messages] == ["system", "user"]
    assert chat.chat_template_kwargs == {"enable_thinking": False}
    with pytest.raises(ApiError, match="has no system"):
        to_completion(asked)
    raw = to_completion(GenerateRequest.model_validate({"prompt": "a", "suffix": "b"}))
    assert (raw.prompt, raw.suffix, raw.most_tokens) == ("a", "b", -1)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (300, 300), ("300", 300), ("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), ("500ms", 0.5),
        (0, 0), ("0", 0), (-1, float("inf")), ("-1", float("inf")), ("-1m", float("inf")),
        (10**400, 1e300), (None, None), (True, None), ("soon", None), ("5", 5), ("m", None),
        ([], None), (float("nan"), None), ("9" * 400, 1e300),
    ],
)  # fmt: skip
def test_how_long_a_model_is_kept(given: Any, seconds: float | None) -> None:
    assert keep_seconds(given) == seconds


def test_names_have_a_tag_or_none() -> None:
    names = ["a", "b:latest"]
    assert [served_name(each, names) for each in (None, "", "a:latest", "b:latest")] == [
        "a", "a", "a", "b:latest",
    ]  # fmt: skip
    wrong: Any
    for wrong in ("b", "a:7b", 7, [], "x\n"):
        with pytest.raises(ApiError, match=r"^model '.*' not found$"):
            served_name(wrong, names)


# the server


def test_the_text_is_that_of_chat_completions(served: Served) -> None:
    asked = {"messages": HELLO, "max_tokens": 20} | SAMPLING
    choice = answer(served, "/v1/chat/completions", asked)["choices"][0]
    said = answer(served, "/api/chat", CHAT)
    assert said["message"] == {"role": "assistant", "content": choice["message"]["content"]}
    assert said["done"] and said["done_reason"] == choice["finish_reason"] == "length"
    assert said["eval_count"] == 20 and said["prompt_eval_count"] > 5
    assert said["total_duration"] >= said["eval_duration"] > 10_000
    *parts, last = lines(served, "/api/chat", CHAT)
    assert "".join(each["message"]["content"] for each in parts) == said["message"]["content"]
    assert not any(each["done"] for each in parts) and last["done"]
    assert last["message"]["content"] == "" and last["eval_count"] == 20
    made = answer(
        served,
        "/api/generate",
        {"prompt": HELLO[0]["content"], "options": CHAT["options"], "model": "demo:latest"},
    )
    assert made["response"] == said["message"]["content"]


def test_raw_prompts_are_completed(served: Served) -> None:
    asked = {"prompt": "Once upon a time", "max_tokens": 12} | SAMPLING
    text = answer(served, "/v1/completions", asked)["choices"][0]["text"]
    options = SAMPLING | {"num_predict": 12}
    body = {"prompt": "Once upon a time", "raw": True, "options": options}
    assert answer(served, "/api/generate", body)["response"] == text
    assert "".join(each["response"] for each in lines(served, "/api/generate", body)) == text
    body["options"] = options | {"stop": [text[3:6]]}
    stopped = answer(served, "/api/generate", body)
    assert stopped["response"] == text[:3] and stopped["done_reason"] == "stop"


def test_a_model_without_a_template_completes_prompts(demo: Model) -> None:
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=1), template=None) as found:
        found.service.template = None
        body = {"prompt": "Once upon", "options": {"temperature": 0, "num_predict": 5}}
        plain = answer(found, "/api/generate", body)["response"]
        assert plain == answer(found, "/api/generate", body | {"raw": True})["response"]
        assert "chat template" in found.post("/api/chat", CHAT).json()["error"]
        assert answer(found, "/api/show", {"model": "demo"})["capabilities"] == ["completion"]


def test_formats(served: Served) -> None:
    options = {"num_predict": 60, "temperature": 0}
    said = answer(served, "/api/chat", CHAT | {"format": SCHEMA, "options": options})
    assert json.loads(said["message"]["content"])["kind"] in ("cat", "dog")
    for more in ({}, {"raw": True}):
        body = {"prompt": "A pet", "format": SCHEMA, "options": options} | more
        assert set(json.loads(answer(served, "/api/generate", body)["response"])) == set(SMALL)
    text = answer(served, "/api/chat", CHAT | {"format": "json"})["message"]["content"]
    assert text.lstrip().startswith("{")


def test_reasoning_has_a_field_of_its_own(demo: Model) -> None:
    capacity = Capacity(n_ctx=512, n_slots=1)
    with running(demo, capacity=capacity, template=REASONING) as found:
        assert "thinking" in answer(found, "/api/show", {})["capabilities"]
        message = answer(found, "/api/chat", CHAT)["message"]
        assert message["thinking"] and message["content"] == ""
        prompt = {"prompt": "Hello", "options": CHAT["options"]}
        assert answer(found, "/api/generate", prompt)["thinking"]
        assert "thinking" not in answer(found, "/api/chat", CHAT | {"think": False})["message"]


def test_requests_that_only_load_the_model(served: Served) -> None:
    loaded = answer(served, "/api/chat", {"model": "demo", "messages": []})
    assert loaded["done_reason"] == "load" and loaded["message"]["content"] == ""
    loaded = answer(served, "/api/generate", {"model": "demo", "keep_alive": "5m"})
    assert loaded["done_reason"] == "load" and loaded["response"] == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("chat", CHAT | {"model": "x"}, 404, "model 'x' not found"),
        ("generate", {"model": "x", "prompt": "a"}, 404, "model 'x' not found"),
        ("show", {"model": "x"}, 404, "model 'x' not found"),
        ("chat", CHAT | {"options": {"top_k": "x"}}, 400, "options.top_k: give an integer"),
        ("chat", CHAT | {"options": {"mirostat": 1}}, 400, "mirostat is not supported"),
        ("chat", CHAT | {"options": 5}, 400, "options: give an object"),
        ("chat", CHAT | {"format": "xml"}, 400, "format: give"),
        ("chat", CHAT | {"format": {"enum": []}}, 400, ""),
        ("chat", CHAT | {"think": 5}, 400, "think: give"),
        ("chat", CHAT | {"messages": [{"role": "x"}]}, 400, "messages.0.role: give 'system'"),
        ("chat", CHAT | {"messages": [{"content": "x"}]}, 400, "messages.0.role: it is required"),
        ("chat", CHAT | {"messages": [HELLO[0] | {"images": ["?"]}]}, 400, "messages[0]"),
        ("generate", {"prompt": "a", "template": "x"}, 400, "template is not supported"),
        ("generate", {"prompt": "a", "context": [1]}, 400, "context is not supported"),
        ("generate", {"prompt": "a", "suffix": "b"}, 400, "demo"),
        ("generate", {"prompt": "a", "raw": True, "images": ["QUJD"]}, 400, "a prompt without"),
        ("generate", {"prompt": "x " * 5000}, 400, "the prompt has"),
        ("embed", {"input": "x"}, 400, "demo generates text"),
        ("pull", {"model": "x"}, 404, "/api/pull is not served"),
    ],
)
def test_errors_are_a_line_of_text(
    path: str, body: Any, status: int, message: str, served: Served
) -> None:
    refused = served.post(f"/api/{path}", body)
    error = refused.json()
    assert refused.status_code == status, error
    assert set(error) == {"error"} and error["error"].startswith(message), error
    assert "\n" not in error["error"]


def test_a_stream_that_waits_for_a_slot_keeps_its_lines(
    demo: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "START_S", 0.02)
    monkeypatch.setattr(events, "PING_S", 0.02)
    long = {"prompt": "Once", "max_tokens": 400, "n": 8, "grammar": ENDLESS, "stream": True}
    with (
        running(demo, capacity=Capacity(n_ctx=512, n_slots=1, n_queue=20)) as found,
        new_client() as first,
        first.stream("POST", f"{found.url}/v1/completions", json=long) as busy,
    ):
        begun = busy.iter_lines()
        next(begun)
        with found.client.stream("POST", f"{found.url}/api/chat", json=CHAT) as waiting:
            pieces = waiting.iter_text()
            text = next(pieces) + next(pieces)
            assert text.strip() == ""
            busy.close()
            text += "".join(pieces)
    assert [json.loads(line)["done"] for line in text.splitlines()][-1] is True


def test_paths_of_llama_server(served: Served) -> None:
    assert served.client.get(f"{served.url}/v1/health").json() == {"status": "ok"}
    assert served.client.get(f"{served.url}/models").json()["data"][0]["id"] == "demo"
    chat = {"messages": HELLO, "max_tokens": 5, "seed": 1}
    texts = {
        answer(served, path, chat)["choices"][0]["message"]["content"]
        for path in ("/chat/completions", "/v1/chat/completions")
    }
    assert len(texts) == 1
    prompt = {"prompt": "Once upon a time", "n_predict": 6, "seed": 3}
    text = answer(served, "/v1/completions", prompt)["choices"][0]["text"]
    for path in ("/completion", "/completions"):
        found = answer(served, path, prompt)
        assert found["content"] == text and found["tokens_predicted"] == 6 and found["stop"]
    streamed = served.post("/completion", prompt | {"stream": True}).text.split("\n\n")
    pieces = [json.loads(each.removeprefix("data: ")) for each in streamed if each]
    assert "".join(each["content"] for each in pieces) == text
    assert served.post("/completion", {"prompt": [[1]]}).status_code == 400


# Ollama's own client


def test_descriptions_by_ollamas_client(client: Any, demo: Model) -> None:
    [listed] = client.list().models
    assert listed.model == "demo" and listed.size == demo.file.n_bytes and len(listed.digest) == 64
    assert listed.details.family == demo.file.architecture
    [loaded] = client.ps().models
    assert loaded.model == "demo" and loaded.expires_at > listed.modified_at
    shown = client.show("demo")
    assert {"completion", "tools", "vision"} <= set(shown.capabilities)
    assert shown.modelinfo[f"{demo.file.architecture}.block_count"] == demo.n_layer
    assert shown.modified_at == listed.modified_at


def test_texts_by_ollamas_client(client: Any) -> None:
    whole = client.chat("demo", HELLO, options=CHAT["options"])
    chunks = list(client.chat("demo", HELLO, options=CHAT["options"], stream=True))
    assert "".join(each.message.content for each in chunks) == whole.message.content
    assert chunks[-1].done and chunks[-1].eval_count == whole.eval_count == 20
    made = client.generate("demo", HELLO[0]["content"], options=CHAT["options"], keep_alive="5m")
    assert made.response == whole.message.content
    pieces = client.generate("demo", HELLO[0]["content"], options=CHAT["options"], stream=True)
    assert "".join(each.response for each in pieces) == made.response
    with pytest.raises(pytest.importorskip("ollama").ResponseError, match="not found") as caught:
        client.chat("other", HELLO)
    assert caught.value.status_code == 404


def test_formats_and_images_by_ollamas_client(client: Any, served: Served) -> None:
    options = {"num_predict": 60, "temperature": 0}
    found = client.chat("demo", HELLO, format=SCHEMA, options=options)
    assert json.loads(found.message.content)["kind"] in ("cat", "dog")
    texts = {
        client.generate("demo", "What is this? It is", images=[png(seed)], options=options).response
        for seed in range(3)
    }
    assert len(texts) > 1
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "text", "text": "What is this?"},
    ]
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 60}
    choice = answer(served, "/v1/chat/completions", asked | {"temperature": 0})["choices"][0]
    message = {"role": "user", "content": "What is this?", "images": [PICTURE]}
    said = client.chat("demo", [message], options=options).message.content
    assert said == choice["message"]["content"]


def test_tools_by_ollamas_client(demo: Model) -> None:
    """The server's grammar makes the model call a function."""
    ollama = pytest.importorskip("ollama")
    call = json.dumps({"name": "buy", "arguments": {"kind": "cat", "tame": True}})
    text = json.dumps(f"<tool_call>{call}</tool_call>")
    sampling = SamplingParams(grammar=f"root ::= {text}")
    with running(demo, capacity=Capacity(n_ctx=1024, n_slots=1), sampling=sampling) as found:
        client = ollama.Client(found.url)
        whole = client.chat("demo", HELLO, tools=[TOOL])
        chunks = list(client.chat("demo", HELLO, tools=[TOOL], stream=True))
        for called in (whole.message, next(c.message for c in chunks if c.message.tool_calls)):
            [made] = called.tool_calls
            assert made.function.name == "buy" and called.content == ""
            assert made.function.arguments == {"kind": "cat", "tame": True}
        assert chunks[-1].done and chunks[-1].done_reason == "stop"
        result = {"role": "tool", "tool_name": "buy", "content": "bought"}
        again = [*HELLO, whole.message, result]
        assert client.chat("demo", again, tools=[TOOL]).message.tool_calls


def test_embeddings(encoder: Served) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(encoder.url)
    texts = ["the king", "the sea"]
    rows = answer(encoder, "/v1/embeddings", {"input": texts})["data"]
    found = client.embed("demo", texts)
    assert found.embeddings == [each["embedding"] for each in rows]
    assert found.prompt_eval_count > 0
    assert client.embed("demo", "the king").embeddings == [rows[0]["embedding"]]
    assert client.embeddings("demo", "the king").embedding == rows[0]["embedding"]
    assert client.show("demo").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match="is an embedding model"):
        client.chat("demo", HELLO)
    with pytest.raises(ollama.ResponseError, match="model 'x' not found"):
        client.embed("x", "a")
