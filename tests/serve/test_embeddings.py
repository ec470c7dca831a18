"""Embeddings and scores, by OpenAI's own client. The oracle computes the model in numpy."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import openai
import pytest
import tiny_nextn
from fixture_types import TinyModel, TinyPath
from lora_adapters import write_adapter
from serving import Served, running, running_embeddings
from tiny_encoder import CLS, SEP, Weights, ids_of, rows_of, score_of, write_encoder

from pyselfspec import Model
from pyselfspec.errors import ArgumentError, DecodeError, UnsupportedError
from pyselfspec.runtime.embedding import EmbeddingContext, pooling_of
from pyselfspec.serve.endpoints.embeddings import N_INPUTS
from pyselfspec.serve.settings import Capacity

TEXTS = ["the king went home", "a dog", "the queen went home the queen"]
NEAR = 2e-3  # flash attention keeps K and V in half precision
CAPACITY = Capacity(n_queue=4)


class Encoder:
    """A served encoder with its weights."""

    def __init__(self, served: Served, weights: Weights) -> None:
        self.served, self.weights = served, weights


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    path = tmp_path_factory.mktemp("encoder") / "encoder.gguf"
    weights = write_encoder(path, gguf.PoolingType.MEAN)
    with Model(path) as model, running_embeddings(model, capacity=CAPACITY) as served:
        yield Encoder(served, weights)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    path = tmp_path_factory.mktemp("ranker") / "ranker.gguf"
    weights = write_encoder(path, gguf.PoolingType.RANK)
    with Model(path) as model, running_embeddings(model, capacity=CAPACITY) as served:
        yield Encoder(served, weights)


def unit(row: Any) -> Any:
    return row / np.sqrt((row**2).sum())


def pooled(rows: Any, pooling: str) -> Any:
    return {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_rows_are_pooled(pooling: str, tmp_path: Path) -> None:
    kind = gguf.PoolingType[pooling.upper()]
    weights = write_encoder(tmp_path / "encoder.gguf", kind)
    with Model(tmp_path / "encoder.gguf") as model, EmbeddingContext(model, n_threads=1) as made:
        assert pooling_of(model.file) == made.pooling == pooling
        for text in TEXTS:
            assert model.tokenize(text) == ids_of(text)
            want = pooled(rows_of(weights, ids_of(text)), pooling)
            assert np.abs(made.embed(ids_of(text)) - want).max() < NEAR * 4


def test_pooling_of_the_command_line(encoder: Encoder, tmp_path: Path) -> None:
    weights = write_encoder(tmp_path / "encoder.gguf", gguf.PoolingType.MEAN)
    with Model(tmp_path / "encoder.gguf") as model:
        with EmbeddingContext(model, n_threads=1, pooling="none") as made:
            rows = rows_of(weights, ids_of(TEXTS[0]))
            assert np.abs(made.embed(ids_of(TEXTS[0])) - rows).max() < NEAR * 4
        with pytest.raises(ArgumentError, match="no head that scores"):
            EmbeddingContext(model, pooling="rank")


def test_vectors_have_length_one(encoder: Encoder) -> None:
    found = encoder.served.openai().embeddings.create(model="demo", input=TEXTS)
    assert [each.index for each in found.data] == [0, 1, 2]
    assert found.usage.prompt_tokens == sum(len(ids_of(text)) for text in TEXTS)
    for text, each in zip(TEXTS, found.data, strict=True):
        want = unit(rows_of(encoder.weights, ids_of(text)).mean(0))
        assert np.abs(np.array(each.embedding) - want).max() < NEAR


def test_forms_of_input_and_output_agree(encoder: Encoder) -> None:
    """The client asks for base64 by default. A text is the same alone and beside others."""
    client = encoder.served.openai()
    given: list[Any] = [TEXTS[0], [TEXTS[0]], ids_of(TEXTS[0]), [ids_of(TEXTS[0])], TEXTS]
    found = [client.embeddings.create(model="demo", input=each).data[0] for each in given]
    floats = client.embeddings.create(model="demo", input=TEXTS[0], encoding_format="float")
    assert all(each.embedding == floats.data[0].embedding for each in found)
    body = {"input": TEXTS[0], "encoding_format": "base64"}
    said = encoder.served.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    values = np.frombuffer(base64.b64decode(said), "<f4")
    assert values.tolist() == floats.data[0].embedding


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"dimensions": 8}, "dimensions"),
        ({"input": ""}, None),
        ({"input": []}, "input"),
        ({"input": "the " * 70}, "input"),
        ({"input": ["a dog", "the " * 70]}, "input.1"),
        ({"input": [99]}, None),
        ({"input": [TEXTS[0]] * (N_INPUTS + 1)}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_bad_requests(change: dict[str, Any], param: str | None, encoder: Encoder) -> None:
    got = encoder.served.post("/v1/embeddings", {"input": TEXTS[0]} | change)
    if change == {"input": ""}:
        assert got.status_code == 200, "the first and the last token are left"
        return
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    if change.get("input") == [TEXTS[0]] * (N_INPUTS + 1):
        assert error["message"] == "input: at most 2,048 values"
    assert error["message"] and (param is None or error["param"] == param)


def test_dimensions_of_the_model(encoder: Encoder) -> None:
    found = encoder.served.openai().embeddings.create(model="demo", input="a dog", dimensions=64)
    assert len(found.data[0].embedding) == 64


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_documents_are_ordered_by_their_scores(path: str, ranker: Encoder) -> None:
    query, documents = "the king", ["bread", "the queen went home", {"text": "a dog"}]
    texts = ["bread", "the queen went home", "a dog"]
    body = {"query": query, "documents": documents, "return_documents": True}
    found = ranker.served.post(path, body).json()
    scores = [score_of(ranker.weights, [*ids_of(query), *ids_of(text)[1:]]) for text in texts]
    order = sorted(range(3), key=lambda i: -scores[i])
    assert [each["index"] for each in found["results"]] == order
    for each in found["results"]:
        assert abs(each["relevance_score"] - scores[each["index"]]) < 4 * NEAR
        assert each["document"] == {"text": texts[each["index"]]}
    first = ranker.served.post(path, body | {"top_n": 1}).json()["results"]
    assert first == found["results"][:1]


def test_a_pair_begins_and_ends_as_its_model_was_trained(ranker: Encoder) -> None:
    body = {"query": "the king", "documents": ["a dog"]}
    used = ranker.served.post("/rerank", body).json()["usage"]["prompt_tokens"]
    assert used == len([CLS, 0, 0, SEP, 0, 0, SEP])


@pytest.mark.parametrize(
    "body", [{}, {"query": "a"}, {"query": "a", "documents": []}, {"query": "", "documents": ["a"]}]
)
def test_rerank_refuses(body: dict[str, Any], ranker: Encoder) -> None:
    assert ranker.served.post("/v1/rerank", body).status_code == 400


def test_each_model_keeps_to_its_endpoints(encoder: Encoder, ranker: Encoder, demo: Model) -> None:
    message = [{"role": "user", "content": "a dog"}]
    for served, path, body, door in (
        (encoder.served, "/v1/completions", {"prompt": "a"}, "/v1/embeddings"),
        (encoder.served, "/v1/chat/completions", {"messages": message}, "/v1/embeddings"),
        (encoder.served, "/v1/messages", {"messages": message, "max_tokens": 1}, "/v1/embeddings"),
        (encoder.served, "/v1/rerank", {"query": "a", "documents": ["a"]}, "/v1/embeddings"),
        (ranker.served, "/v1/embeddings", {"input": "a"}, "/v1/rerank"),
    ):
        got = served.post(path, body)
        assert got.status_code == 400 and door in got.json()["error"]["message"], got.text
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1)) as found:
        for path in ("/v1/embeddings", "/v1/rerank", "/rerank", "/v1/reranking"):
            got = found.post(path, {"input": "a", "query": "a", "documents": ["a"]})
            assert got.status_code == 400
            assert "made for embeddings" in got.json()["error"]["message"]


def test_other_routes(encoder: Encoder) -> None:
    client = encoder.served.openai()
    [listed] = client.models.list()
    assert listed.to_dict()["capabilities"] == ["embedding"]
    props = encoder.served.client.get(f"{encoder.served.url}/props").json()
    assert props["pooling"] == "mean" and props["n_values"] == 64
    tokens = encoder.served.post("/tokenize", {"content": "a dog", "add_special": True}).json()
    assert tokens["tokens"] == ids_of("a dog")
    n_before = encoder.served.metric("pyselfspec_prompt_tokens_total")
    client.embeddings.create(model="demo", input="a dog")
    assert encoder.served.metric("pyselfspec_prompt_tokens_total") == n_before + 4
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="demo", prompt="a")


def test_a_model_that_writes_text_can_serve_embeddings(demo: Model) -> None:
    """By --pooling; the drop-in's own class is the oracle."""
    from pyselfspec.llama.llama import Llama

    with EmbeddingContext(demo, n_ctx=64, n_threads=1, pooling="mean") as made:
        tokens = demo.tokenize("Once upon a time")
        found = unit(made.embed(tokens))
    llama = Llama(
        str(demo.path), embedding=True, n_ctx=64, n_threads=1, pooling_type=1, verbose=False
    )
    want = np.array(llama.embed("Once upon a time", normalize=True))
    llama.close()
    assert np.abs(found - want).max() < NEAR  # it computes without flash attention


def test_texts_end_where_positions_do(tmp_path: Path) -> None:
    write_encoder(tmp_path / "encoder.gguf", gguf.PoolingType.MEAN)
    capacity = Capacity(n_queue=4, n_ctx=512)
    with (
        Model(tmp_path / "encoder.gguf") as model,
        running_embeddings(model, capacity=capacity) as served,
        pytest.raises(openai.BadRequestError, match="more than 64 tokens"),
    ):
        served.openai().embeddings.create(model="demo", input="king " * 100)


def test_models_with_several_states_per_token(tmp_path: Path) -> None:
    """Before, the first text ended the process."""
    path = tiny_nextn.write(
        tmp_path / "m.gguf", tiny_nextn.weights(tiny_nextn.DEEPSEEK4), tiny_nextn.DEEPSEEK4
    )
    with Model(path) as model, pytest.raises(UnsupportedError, match="4 states per token"):
        EmbeddingContext(model, n_threads=1, pooling="mean")


def test_adapters_of_the_model(tiny_path: TinyPath, tiny: TinyModel, tmp_path: Path) -> None:
    file = write_adapter(tmp_path / "a.gguf", tiny(), 0)

    def row(*lora: tuple[Path, float]) -> Any:
        with Model(tiny_path(), lora=lora) as model:
            with EmbeddingContext(model, n_threads=1, pooling="none") as made:
                return made.embed([5, 6, 7])

    bare, one, two = row(), row((file, 1.0)), row((file, 2.0))
    assert np.abs(one - bare).max() > 0.01 and np.abs(two - one).max() > 0.01
    assert np.array_equal(row((file, 0.0)), bare)


def test_a_context_that_does_not_fit_into_memory_is_refused(demo: Model) -> None:
    with pytest.raises(DecodeError, match=r"takes .* of memory, and .* are free; give a smaller"):
        EmbeddingContext(demo, n_ctx=10**7)
