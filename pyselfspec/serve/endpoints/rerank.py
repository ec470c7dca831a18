"""POST /v1/rerank: scores of documents for a query, in the format of Jina's API, which
llama-server and others share."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.embedding import pair_tokens
from ...runtime.model import Model
from ..embeddings.embedding_service import EmbeddingService
from ..protocol.errors import json_response
from ..protocol.events import until_disconnect
from .routers import Embedding, router

ROUTER = router()

PATHS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
N_DOCUMENTS = 1024


class DocumentText(BaseModel):
    """A document as an object."""

    text: str


class RerankRequest(BaseModel):
    """POST /v1/rerank. top_n: most results, all by default. return_documents: repeat the text of
    each document in its result."""

    query: str = Field(min_length=1)
    documents: Annotated[list[str | DocumentText], Field(min_length=1, max_length=N_DOCUMENTS)]
    model: str | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False

    @property
    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


async def post_rerank(service: Embedding, body: RerankRequest, request: Request) -> Response:
    """Return the scores of documents for a query."""
    service.require_kind(scores=True)
    pairs = await asyncio.to_thread(_pairs, service, service.model, body)
    work = service.engine.embed(pairs, service.settings.timeout_s)
    scores = [float(row[0]) for row in await until_disconnect(request, work)]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
    n_tokens = sum(map(len, pairs))
    return json_response(
        {
            "object": "list",
            "model": service.settings.name,
            "results": [_result(body, i, scores[i]) for i in order],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


for _path in PATHS:
    ROUTER.post(_path)(post_rerank)


def _result(body: RerankRequest, i: int, score: float) -> dict[str, Any]:
    found: dict[str, Any] = {"index": i, "relevance_score": score}
    if body.return_documents:
        found["document"] = {"text": body.texts[i]}
    return found


def _pairs(service: EmbeddingService, model: Model, body: RerankRequest) -> list[list[int]]:
    service.tokens_of(body.query, "query")  # its length counts for every document
    found = []
    for i, text in enumerate(body.texts):
        service.tokens_of(text, f"documents.{i}")
        tokens = pair_tokens(model, body.query, text)
        service.require_length(tokens, f"documents.{i}, with the query,")
        found.append(tokens)
    return found
