"""POST /v1/rerank: scores of documents for a query, in the format of Jina's API, which
llama-server and others share."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.embedding import pair_tokens
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

    def read() -> list[list[int]]:
        service.tokens_of(body.query, "query")  # its length counts for every document
        found = []
        for i, text in enumerate(body.texts):
            service.tokens_of(text, f"documents.{i}")
            found.append(pair_tokens(service.model, body.query, text))
            service.require_length(found[-1], f"documents.{i}, with the query,")
        return found

    pairs = await asyncio.to_thread(read)
    work = service.engine.embed(pairs, service.settings.timeout_s)
    scores = [float(row[0]) for row in await until_disconnect(request, work)]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    for each in results if body.return_documents else ():
        each["document"] = {"text": body.texts[each["index"]]}
    n_tokens = sum(map(len, pairs))
    return json_response(
        {
            "object": "list",
            "model": service.settings.name,
            "results": results,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


for _path in PATHS:
    ROUTER.post(_path)(post_rerank)
