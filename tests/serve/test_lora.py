"""LoRA adapters of a server: chosen by request, several at once, each text as alone.

The oracle is a model that was opened with the adapter, decoding plainly in a context of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import write_adapter
from serving import Served, running

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.serve.settings import Capacity

PROMPT = "Once upon a time there was a king. The king said: Once upon a time there was"
N_PREDICT = 24


@pytest.fixture(scope="module")
def files(demo: Model, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / f"{i}.gguf", demo, i, size=0.1) for i in range(2)]


@pytest.fixture(scope="module")
def wanted(demo_path: Path, files: list[Path]) -> dict[str, str]:
    """Texts by the scales of both adapters."""
    found = {}
    for scales in ("0 0", "1 0", "0 1", "0.5 2"):
        numbers = map(float, scales.split())
        lora = list(zip(files, numbers, strict=True))
        with Model(demo_path, lora=lora) as model, model.context(n_threads=1) as context:
            text = Completion(context, PROMPT, None, n_predict=N_PREDICT, sampling=GREEDY)
            found[scales] = "".join(text)
    assert len(set(found.values())) == len(found)
    return found


@pytest.fixture
def served(demo_path: Path, files: list[Path]) -> Iterator[Served]:
    with (
        Model(demo_path, lora=[(files[0], 1.0), (files[1], 0.0)]) as model,
        running(model, capacity=Capacity(n_ctx=1024, n_slots=4)) as found,
    ):
        yield found


def body(scales: str | None, draft: str | None = "auto") -> dict[str, Any]:
    made: dict[str, Any] = {"prompt": PROMPT, "max_tokens": N_PREDICT, "temperature": 0}
    made["pyselfspec"] = {"draft": draft}
    if scales is not None:
        made["lora"] = [{"id": i, "scale": float(s)} for i, s in enumerate(scales.split())]
    return made


def text(served: Served, request: dict[str, Any]) -> str:
    answer = served.post("/v1/completions", request)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize("draft", [None, "ngram", "auto"])
def test_texts_at_once_with_different_adapters(
    draft: str | None, served: Served, wanted: dict[str, str]
) -> None:
    order = [*wanted, *reversed(wanted), *wanted]
    with ThreadPoolExecutor(len(order)) as pool:
        found = list(pool.map(lambda scales: text(served, body(scales, draft)), order))
    assert found == [wanted[scales] for scales in order]


def test_the_scales_of_the_server_change(served: Served, wanted: dict[str, str]) -> None:
    url = f"{served.url}/lora-adapters"
    assert [(each["id"], each["scale"]) for each in served.client.get(url).json()] == [
        (0, 1.0),
        (1, 0.0),
    ]
    assert text(served, body(None)) == wanted["1 0"]
    changed = served.post("/lora-adapters", [{"id": 1, "scale": 1.0}])
    assert changed.json() == {"success": True}
    assert [each["scale"] for each in served.client.get(url).json()] == [0.0, 1.0]
    assert text(served, body(None)) == wanted["0 1"]
    assert text(served, body("1 0")) == wanted["1 0"]
    assert served.post("/lora-adapters", []).status_code == 200
    assert text(served, body(None)) == wanted["0 0"]


def test_chats_and_messages_take_adapters(served: Served) -> None:
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 24,
        "temperature": 0,
    }
    path = "/v1/chat/completions"

    def said(**lora: Any) -> str:
        answer = served.post(path, chat | lora).json()
        return str(answer["choices"][0]["message"]["content"])

    assert said() == said(lora=[{"id": 0, "scale": 1.0}]) != said(lora=[])


@pytest.mark.parametrize(
    "lora",
    [
        [{"id": 2, "scale": 1.0}],
        [{"id": 0, "scale": 1.0}, {"id": 0, "scale": 1.0}],
        [{"id": -1, "scale": 1.0}],
        [{"id": 0}],
        {"id": 0, "scale": 1.0},
        [{"id": 0, "scale": "x"}],
    ],
)
def test_adapters_that_are_refused(lora: Any, served: Served) -> None:
    for path, request in (
        ("/v1/completions", body(None) | {"lora": lora}),
        ("/lora-adapters", lora),
    ):
        answer = served.post(path, request)
        assert answer.status_code == 400, answer.text
        assert "\n" not in answer.json()["error"]["message"]


def test_a_server_without_adapters_says_so(demo: Model) -> None:
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1)) as served:
        assert served.client.get(f"{served.url}/lora-adapters").json() == []
        answer = served.post("/v1/completions", body("1"))
        assert answer.status_code == 400
        assert "none is loaded with the model" in answer.json()["error"]["message"]


@pytest.mark.parametrize("scale", [1e39, -1e6])
def test_scales_out_of_range(scale: float, served: Served) -> None:
    """Before, requests were answered with 500 until the scale was set back."""
    lora = [{"id": 0, "scale": scale}]
    for path, request in (
        ("/lora-adapters", lora),
        ("/v1/completions", body(None) | {"lora": lora}),
    ):
        answer = served.post(path, request)
        assert answer.status_code == 400, path
        assert "scale of a LoRA adapter is -1000 to 1000" in answer.text
