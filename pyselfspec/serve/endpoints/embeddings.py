"""POST /v1/embeddings: vectors of texts, in the format of OpenAI's API."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from ..embeddings.embedding_service import EmbeddingService
from ..protocol.errors import json_response, unsupported
from ..protocol.events import until_disconnect
from .routers import Embedding, router

ROUTER = router()

N_INPUTS = 2048  # texts of a request, as OpenAI allows
Tokens = Annotated[list[int], Field(max_length=1 << 20)]
Inputs = Annotated[list[str], Field(min_length=1, max_length=N_INPUTS)]
TokenInputs = Annotated[list[Tokens], Field(min_length=1, max_length=N_INPUTS)]


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings. input: a text or token ids, or a list of either. dimensions: only the
    model's own number."""

    input: str | Tokens | Inputs | TokenInputs
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None


@ROUTER.post("/v1/embeddings")
async def post_embeddings(service: Embedding, body: EmbeddingRequest, request: Request) -> Response:
    """Return the vectors of texts."""
    rows, n_tokens = await vectors(service, request, body.input, body.dimensions)
    data: list[dict[str, Any]] = []
    for row in rows:
        vector: str | list[float] = row.tolist()
        if body.encoding_format == "base64":
            vector = base64.b64encode(row.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": len(data), "embedding": vector})
    return json_response(
        {
            "object": "list",
            "data": data,
            "model": service.settings.name,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


async def vectors(
    service: EmbeddingService, request: Request, given: Any, dimensions: int | None
) -> tuple[list[NDArray[np.float32]], int]:
    """Return the vector of each text and the number of their tokens. given: the field "input" of
    EmbeddingRequest. Raises ApiError for what the model does not make, and ClientGone."""
    service.require_kind(scores=False)
    width = service.engine.context.width
    if dimensions not in (None, width):
        raise unsupported(
            "dimensions", f"{service.settings.name} makes vectors of {width}; leave out dimensions"
        )
    texts = await asyncio.to_thread(_tokens, service, given)
    work = service.engine.embed(texts, service.settings.timeout_s)
    rows = [normalised(row) for row in await until_disconnect(request, work)]
    return rows, sum(map(len, texts))


def normalised(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a vector of length 1 in the same direction, float32 [width]; zeros stay zeros."""
    length = float(np.sqrt(np.sum(row.astype(np.float64) ** 2)))
    return row if length == 0 else (row / length).astype(np.float32)


def _tokens(service: EmbeddingService, given: Any) -> list[list[int]]:
    """Return the tokens of each text. Raises ApiError, and ArgumentError for unknown token ids."""
    is_one = isinstance(given, str) or not given or isinstance(given[0], int)
    many = [given] if is_one else given
    found = []
    for i, text in enumerate(many):
        where = "input" if len(many) == 1 else f"input.{i}"
        if isinstance(text, str):
            found.append(service.tokens_of(text, where))
            continue
        service.require_length(text, where)
        service.model.require_tokens(text)
        found.append(list(text))
    return found
