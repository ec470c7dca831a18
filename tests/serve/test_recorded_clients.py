"""Requests as programs send them that the tests cannot run, and what they read in the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chat_models
import pytest
from serving import Served, running

from pyselfspec import Model
from pyselfspec.serve.settings import Capacity

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
TIMINGS = (
    "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
    "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
)  # fmt: skip
EXTRA = [{"text": "x = 1\n", "time": [1, 5], "filename": "a.py"}]


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a tiny model with tokens for filling in."""
    path: Path = tmp_path_factory.mktemp("fill") / "fill.gguf"
    with (
        Model(chat_models.write(path, "chatml", user_defined=MARKS, space=False)) as model,
        running(model, capacity=Capacity(n_ctx=512, n_slots=1)) as found,
    ):
        yield found


def ok(served: Served, path: str, body: dict[str, Any]) -> Any:
    found = served.post(path, body)
    assert found.status_code == 200, found.text
    return found.json()


def got(served: Served, path: str) -> Any:
    found = served.client.get(f"{served.url}{path}")
    assert found.status_code == 200, found.text
    return found.json()


def test_llama_vim(filler: Served) -> None:
    """It reads fields by their paths, which it names in the request."""
    fields = [f"timings/{name}" for name in TIMINGS]
    fields += ["content", "truncated", "tokens_cached", "generation_settings/n_ctx"]
    asked = {
        "input_prefix": "def add(a, b):\n", "input_suffix": "\n\nprint(add(1, 2))\n",
        "input_extra": EXTRA, "prompt": "    return ", "n_predict": 16, "n_indent": 4,
        "top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
        "response_fields": fields,
    }  # fmt: skip
    found = ok(filler, "/infill", asked)
    assert set(found) == set(fields)
    assert isinstance(found["content"], str) and found["truncated"] is False
    assert 0 < found["timings/predicted_n"] <= 16 and found["timings/predicted_per_second"] > 0
    again = ok(filler, "/infill", asked | {"response_fields": None})
    n_prompt = again["tokens_evaluated"]
    assert found["timings/prompt_n"] <= n_prompt
    assert found["tokens_cached"] == n_prompt + found["timings/predicted_n"]
    assert again["timings"]["cache_n"] + again["timings"]["prompt_n"] == n_prompt


def test_llama_vim_warms_up(filler: Served) -> None:
    """It sends other files before it needs an answer, so that they have been read by then."""
    texts = {"input_prefix": "", "input_suffix": "", "prompt": "", "input_extra": EXTRA}
    limits = {"t_max_prompt_ms": 1, "t_max_predict_ms": 1, "n_predict": 0, "temperature": 0.0}
    more = {"stream": False, "samplers": [], "cache_prompt": True, "response_fields": [""]}
    assert ok(filler, "/infill", texts | limits | more) == {}
    whole = ok(filler, "/infill", texts | {"n_predict": 1})
    assert whole["timings"]["cache_n"] == whole["tokens_evaluated"] - 1


def test_open_webui_chats(served: Served) -> None:
    """It lists the models, streams an answer with its usage, and asks for a title and tags."""
    [model] = got(served, "/v1/models")["data"]
    name, question = model["id"], {"role": "user", "content": "Tell me a tale."}
    asked = {
        "model": name, "messages": [question], "stream": True, "max_tokens": 8,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    lines = served.post("/v1/chat/completions", asked).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    said = "".join(delta.get("content") or "" for delta in deltas)
    assert said and chunks[-1]["usage"]["completion_tokens"] == 8
    task = "### Task:\nGenerate a title of 3-5 words, as JSON.\n<chat_history>\n</chat_history>"
    task = {"role": "user", "content": task}
    title = {
        "model": name, "messages": [task], "stream": False, "max_completion_tokens": 8,
        "metadata": {"task": "title_generation", "chat_id": "1"},
    }  # fmt: skip
    found = ok(served, "/v1/chat/completions", title)["choices"][0]["message"]
    assert found["role"] == "assistant" and isinstance(found["content"], str)


def test_open_webui_by_ollamas_api(served: Served) -> None:
    assert got(served, "/api/version")["version"].count(".") == 2
    [model] = got(served, "/api/tags")["models"]
    assert {"name", "model", "size", "digest", "details", "modified_at"} <= set(model)
    assert [each["model"] for each in got(served, "/api/ps")["models"]] == [model["model"]]
    shown = ok(served, "/api/show", {"name": model["model"]})
    assert "completion" in shown["capabilities"] and "details" in shown
    asked = {
        "model": model["model"], "messages": [{"role": "user", "content": "Tell me a tale."}],
        "options": {"num_predict": 8, "num_ctx": 2048}, "keep_alive": "5m",
    }  # fmt: skip
    answer = served.post("/api/chat", asked | {"stream": True})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(line["message"]["content"] for line in lines)
    assert {"eval_count", "eval_duration", "prompt_eval_count", "total_duration"} <= set(lines[-1])
    whole = ok(served, "/api/chat", asked | {"stream": False, "format": "json"})
    assert whole["done"] and whole["message"]["role"] == "assistant"


def test_open_webui_embeds_documents(encoder: Served) -> None:
    asked = {"input": ["a dog", "the king"], "model": "demo", "encoding_format": "float"}
    data = ok(encoder, "/v1/embeddings", asked)["data"]
    assert [each["index"] for each in data] == [0, 1]
    assert len(data[0]["embedding"]) == len(data[1]["embedding"]) > 0
