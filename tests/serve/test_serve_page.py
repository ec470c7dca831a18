"""The server's additions to OpenAI's API for the page: its drafters, and continued answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import serving
from serving import Served
from tiny_mamba import write_mamba

from pyselfspec import Model
from pyselfspec.runtime.abilities import Abilities
from pyselfspec.serve.drafter_labels import WORDS, describe_sources
from pyselfspec.serve.engine.jobs import MODEL
from pyselfspec.serve.settings import Capacity
from pyselfspec.serve.static_files import FOLDER
from pyselfspec.speculate import drafters

QUESTION = {"role": "user", "content": "Tell me a tale."}
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with serving.running(demo, capacity=Capacity(n_ctx=768, n_slots=2)) as served:
        yield served


def test_labels_and_colours_are_those_of_drafters() -> None:
    for name in WORDS.keys() - {MODEL}:
        drafters.load(name)
    labels = [label for label, _ in WORDS.values()]
    assert len(set(labels)) == len(labels)
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    coloured = set(re.findall(r'^\[data-source="([\w-]+)"\] \{ --c', style, re.MULTILINE))
    assert coloured == WORDS.keys()
    script = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js"))
    assert not {name for name in WORDS.keys() - {"model", MODEL} if f'"{name}"' in script}


def test_a_drafter_without_words_has_its_name_and_the_default_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafters, "names", lambda: ("echo",))
    assert describe_sources(("echo",))[1] == {
        "name": "echo", "label": "echo", "meaning": "Drafted by echo", "works": True
    }  # fmt: skip
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    assert re.search(r"^\.from, \.swatch, \.fill \{ --c: ", style, re.MULTILINE)


def test_what_is_offered_can_draft_and_what_is_not_is_refused(served: Served) -> None:
    props = served.client.get(f"{served.url}/props").json()
    offered = {each["name"]: each for each in props["drafters"]}
    assert offered.keys() == {MODEL} | set(drafters.names())
    works = {name for name, each in offered.items() if each["works"]}
    assert {"ngram", "layer-skip"} <= works and not works & {"head", "model", MODEL}
    for name in sorted(offered):
        body = {"prompt": "Once upon a time", "pyselfspec": {"draft": name}} | GREEDY
        answer = served.post("/v1/completions", body)
        assert answer.status_code == (200 if name in works else 400), (name, answer.text)
        if name not in works:
            assert "; this server has auto, off, " in answer.json()["error"]["message"]


def test_nothing_is_offered_where_drafts_cannot_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Abilities, "can_draft", False)
    with (
        Model(write_mamba(tmp_path / "mamba.gguf")) as model,
        serving.running(model, capacity=Capacity(n_ctx=192, n_slots=1), template=None) as served,
    ):
        assert served.client.get(f"{served.url}/props").json()["sources"] == []
        body = {"prompt": [1, 2, 3], "pyselfspec": {"draft": "auto"}} | GREEDY
        assert served.post("/v1/completions", body).status_code == 200
        body["pyselfspec"] = {"draft": "layer-skip"}
        assert served.post("/v1/completions", body).status_code == 400


def test_the_mask_that_drafted_is_told_with_the_answer(served: Served, demo: Model) -> None:
    body = {"prompt": "Once upon a time", "pyselfspec": {"draft": "layer-skip"}} | GREEDY
    mask = served.post("/v1/completions", body).json()["usage"]["pyselfspec"]["mask"]
    assert demo.draft_mask is not None
    assert mask["n_layer"] == demo.n_layer
    assert mask["skip_attn"] == sorted(demo.draft_mask.skip_attn)
    assert mask["skip_ffn"] == sorted(demo.draft_mask.skip_ffn)
    body["pyselfspec"] = {"draft": "ngram"}
    assert served.post("/v1/completions", body).json()["usage"]["pyselfspec"]["mask"] is None


def test_the_models_size_is_told(served: Served, demo: Model) -> None:
    props = served.client.get(f"{served.url}/props").json()
    assert props["n_params"] == demo.file.n_params and props["type"] == demo.file.file_type
    assert props["n_bytes"] == demo.path.stat().st_size
    assert props["n_share"] == 384


def test_an_answer_that_has_begun_goes_on(served: Served, demo: Model) -> None:
    """Return the plain text after the prompt of a chat and the beginning of its answer."""
    template = served.service.template
    assert template is not None
    begun = "Once upon a time there was a <|im_end|> king, who"
    # this tokenizer puts a space before every text; behind a prompt there is none
    newline, after = (
        demo.tokenize(text, add_special=False, parse_special=False) for text in ("\n", "\n" + begun)
    )
    prompt = template.tokens([QUESTION]) + after[len(newline) :]
    assert demo.detokenize(after[len(newline) :]) == begun
    want = served.post("/v1/completions", {"prompt": prompt} | GREEDY).json()["choices"][0]["text"]
    messages = [QUESTION, {"role": "assistant", "content": begun}]
    for fields in ({"pyselfspec": {"continue": True}}, {"pyselfspec": {"draft": None}}, {}):
        body = {"messages": messages} | fields | GREEDY
        got = served.post("/v1/chat/completions", body).json()
        assert got["choices"][0]["message"]["content"] == want
        assert got["usage"]["prompt_tokens"] == len(prompt)
    shown = served.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert shown == template.text([QUESTION]) + begun
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    for new in (
        {"pyselfspec": {"continue": False}},
        {"messages": [*messages[:1], messages[1] | {"tool_calls": [call]}]},
    ):
        body = {"messages": messages} | new | GREEDY
        other = served.post("/v1/chat/completions", body).json()
        assert other["usage"]["prompt_tokens"] != len(prompt), "a new answer begins"


@pytest.mark.parametrize(
    "messages",
    [
        [QUESTION],
        [QUESTION, {"role": "assistant", "content": ""}],
        [{"role": "assistant", "content": "Once"}],
    ],
)
def test_what_is_no_begun_answer_cannot_go_on(messages: list[object], served: Served) -> None:
    body = {"messages": messages, "pyselfspec": {"continue": True}}
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages"
