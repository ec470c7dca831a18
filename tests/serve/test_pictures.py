"""Pictures in chats, messages and responses: the same text with and without drafts, and read once.

The oracle is a completion in a context of its own, on a prompt that is put together by hand.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from png_files import png
from serving import Served, running
from tiny_mmproj import N_ROWS, write

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.runtime.projector import Projector
from pyselfspec.serve.settings import Capacity
from tools.models import tiny_gguf

N_PREDICT = 24
ASKED = "What is this? It is a picture. What is this? It is"
CHAT = "/v1/chat/completions"
SHOWN = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}assistant: "


@pytest.fixture(scope="module", params=sorted(N_ROWS))
def mmproj(request: Any, demo: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mmproj") / "p.gguf", demo.n_embd, request.param, seed=1)


@pytest.fixture(scope="module")
def served(demo: Model, mmproj: Path) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=2048, n_slots=4), mmproj=mmproj) as found:
        yield found


def url_of(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(data)}}


def body(*seeds: int, **fields: Any) -> dict[str, Any]:
    return asking(*map(png, seeds), **fields)


def asking(*files: bytes, draft: str | None = "auto", **fields: Any) -> dict[str, Any]:
    content = [*map(part, files), {"type": "text", "text": ASKED}]
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": N_PREDICT,
        "temperature": 0,
        "pyselfspec": {"draft": draft},
    } | fields


def answer(served: Served, request: dict[str, Any]) -> Any:
    found = served.post(CHAT, request)
    assert found.status_code == 200, found.text
    return found.json()


def said(served: Served, request: dict[str, Any]) -> str:
    return str(answer(served, request)["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def wanted(demo: Model, mmproj: Path) -> dict[int, str]:
    """Texts by picture, from prompts in ChatML that are put together here."""
    found = {}
    for seed in range(3):
        with (
            Projector(demo, mmproj, n_threads=1) as projector,
            demo.context(n_ctx=512, n_threads=1) as context,
        ):
            picture = projector.read(png(seed))
            head = demo.tokenize("<|im_start|>user\n")
            tail = f"{ASKED}<|im_end|>\n<|im_start|>assistant\n"
            joint = demo.tokenize("\n", add_special=False)
            rest = demo.tokenize("\n" + tail, add_special=False)[len(joint) :]
            prompt = [*head, *picture.tokens, *rest]
            made = Completion(
                context,
                prompt,
                None,
                n_predict=N_PREDICT,
                sampling=GREEDY,
                pictures=[picture],
                stop=["<|im_end|>"],
            )
            found[seed] = "".join(made)
    assert len(set(found.values())) > 1
    return found


@pytest.mark.parametrize("draft", [None, "auto", "ngram", "layer-skip", "ngram+layer-skip"])
def test_texts_at_once_about_different_pictures(
    draft: str | None, served: Served, wanted: dict[int, str]
) -> None:
    order = [0, 1, 2, 1, 0, 2, 2, 0]
    with ThreadPoolExecutor(len(order)) as pool:
        found = list(pool.map(lambda seed: said(served, body(seed, draft=draft)), order))
    assert found == [wanted[seed] for seed in order]


def test_a_picture_is_evaluated_once(served: Served) -> None:
    def n_cached(*seeds: int) -> tuple[int, int]:
        usage = answer(served, body(*seeds))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    n_cached(7)
    cached, n = n_cached(7)
    assert cached == n - 1
    n_asked = len(served.service.model.tokenize(ASKED))
    assert n_cached(8)[0] <= n - n_asked - N_ROWS["gemma3"]
    assert n_cached(7, 9)[1] > n + N_ROWS["gemma3"] - 1


def test_messages_and_responses_take_pictures(served: Served, wanted: dict[int, str]) -> None:
    data = base64.b64encode(png(1)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": ASKED}]
    request = {"messages": [{"role": "user", "content": content}], "max_tokens": N_PREDICT}
    counted = served.post("/v1/messages/count_tokens", request).json()["input_tokens"]
    made = served.post("/v1/messages", request | {"temperature": 0}).json()
    assert "".join(each.get("text", "") for each in made["content"]) == wanted[1]
    assert (
        made["usage"]["input_tokens"] + made["usage"].get("cache_read_input_tokens", 0) == counted
    )
    parts = [
        {"type": "input_image", "image_url": url_of(png(2))},
        {"type": "input_text", "text": ASKED},
    ]
    request = {"input": [{"role": "user", "content": parts}], "max_output_tokens": N_PREDICT}
    made = served.post("/v1/responses", request | {"temperature": 0}).json()
    assert made["output"][0]["content"][0]["text"] == wanted[2]


def test_results_of_tools_have_pictures(served: Served) -> None:
    """The answer is the one to the same picture in a chat completion."""
    asked = {"role": "user", "content": "Look."}
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": "1", "type": "function", "function": function}]
    result = {"role": "tool", "tool_call_id": "1", "content": [part(png(1))]}
    messages = [asked, {"role": "assistant", "content": "I do.", "tool_calls": calls}, result]
    wanted = said(served, body() | {"messages": messages})
    source = {"type": "base64", "media_type": "image/png", "data": url_of(png(1)).split(",")[1]}
    blocks = [{"type": "image", "source": source}]
    used = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    messages = [
        asked,
        {"role": "assistant", "content": [{"type": "text", "text": "I do."}, used]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": blocks}],
        },
    ]
    request = {"messages": messages, "max_tokens": N_PREDICT, "temperature": 0}
    assert served.post("/v1/messages", request).json()["content"][0]["text"] == wanted
    items = [
        asked,
        {"role": "assistant", "content": "I do."},
        {"type": "function_call", "call_id": "1"} | function,
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": [{"type": "input_image", "image_url": url_of(png(1))}],
        },
    ]
    request = {"input": items, "max_output_tokens": N_PREDICT, "temperature": 0}
    made = served.post("/v1/responses", request).json()
    assert made["output"][0]["content"][0]["text"] == wanted


def test_the_official_client_sends_pictures(served: Served, wanted: dict[int, str]) -> None:
    content: Any = body(0)["messages"]
    made = served.openai().chat.completions.create(
        model="demo", messages=content, max_tokens=N_PREDICT, temperature=0
    )
    assert made.choices[0].message.content == wanted[0]
    shown = served.post("/apply-template", body(0)).json()["prompt"]
    assert shown.count("<__media__>") == 1
    assert served.client.get(f"{served.url}/props").json()["modalities"]["vision"] is True


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (image("https://example.org/a.png"), "fetches none from other addresses"),
        (image("file:///etc/passwd"), "fetches none from other addresses"),
        (image(None), "fetches none"),
        ({"type": "image_url"}, "fetches none"),
        (image("data:image/png;base64,####"), "not base64"),
        (image("data:image/png,abc"), "not base64"),
        (image("data:image/png;base64,aGVsbG8="), "no known format"),
        (image(url_of(png(0)[:70])), "cannot be decoded"),
        ({"type": "input_audio", "input_audio": {}}, "only parts of text are supported"),
    ],
)
def test_pictures_that_are_refused(given: Any, words: str, served: Served) -> None:
    content = [given, part(png(0)), {"type": "text", "text": ASKED}]
    found = served.post(CHAT, body() | {"messages": [{"role": "user", "content": content}]})
    assert found.status_code == 400, found.text
    assert words in found.json()["error"]["message"]
    assert "\n" not in found.json()["error"]["message"]


def test_the_context_limits_how_many_pictures_there_are(tmp_path: Path) -> None:
    n_ctx, n_most = 2048, 2048 // min(N_ROWS.values())
    path = tiny_gguf.write(tmp_path / "toy.gguf", n_ctx=n_ctx)
    capacity = Capacity(n_ctx=n_ctx, n_slots=1)
    with Model(path) as model:
        mmproj = write(tmp_path / "p.gguf", model.n_embd)
        with running(model, capacity=capacity, mmproj=mmproj) as served:
            assert answer(served, body(*range(20)))["usage"]["prompt_tokens"] < n_ctx
            found = served.post(CHAT, body(*range(n_most)))
            assert found.status_code == 400
            assert found.json()["error"]["code"] == "context_length_exceeded"
            assert len(served.service.projector._kept) < n_most, "those that do not fit are unread"


def test_webp_is_read_with_pillow(served: Served, wanted: dict[int, str], monkeypatch: Any) -> None:
    """The answer is the one to the same pixels in a PNG file."""
    image: Any = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image.open(io.BytesIO(png(1))).save(made, "WEBP", lossless=True)
    assert said(served, asking(made.getvalue())) == wanted[1]
    cut = served.post(CHAT, asking(made.getvalue()[:-200]))
    assert cut.status_code == 400 and "Pillow says" in cut.json()["error"]["message"]
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused = served.post(CHAT, asking(made.getvalue() + b"\0"))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].endswith("or send PNG, JPEG, GIF or BMP")


def test_a_server_without_a_projector_says_so(demo: Model) -> None:
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1)) as served:
        found = served.post(CHAT, body(0))
        assert found.status_code == 400
        assert "start it with --mmproj" in found.json()["error"]["message"]


@pytest.mark.parametrize("template", ["chatml", "{% if tools %}{% endif %}" + SHOWN])
def test_an_agent_goes_on_after_a_picture_that_the_server_cannot_read(
    template: str, demo: Model
) -> None:
    """A note in its place tells the model, where a tool has returned it."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}

    def messages(content: Any) -> list[dict[str, Any]]:
        asked = {"role": "user", "content": "Look."}
        used = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [asked, used, {"role": "tool", "tool_call_id": "1", "content": content}]

    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1), template=template) as served:
        texts = [
            said(served, body() | {"messages": messages(content)})
            for content in ([part(png(0))], "[an image, which this server cannot read]")
        ]
        assert texts[0] == texts[1]
