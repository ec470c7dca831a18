"""Routers of endpoints: the application's service, access checks, and errors in the schema; and
threads for requests that generate nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ParamSpec, TypeVar

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request

from ..embeddings.embedding_service import EmbeddingService
from ..protocol.auth import require_host, require_key
from ..protocol.errors import ErrorBody
from ..protocol.writers import SSE
from ..service import Service

P = ParamSpec("P")
T = TypeVar("T")

N_THREADS = 2
# Requests such as /tokenize take as long as their texts; requests for answers do not wait for them.
_threads = ThreadPoolExecutor(N_THREADS, "pyselfspec tokens")
STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {SSE: {}}}}


async def _service(request: Request) -> Any:
    return request.app.state.service


# Arguments of endpoints: the service of a model that writes text, one that makes embeddings, any.
Writing = Annotated[Service, Depends(_service)]
Embedding = Annotated[EmbeddingService, Depends(_service)]
Serving = Annotated[Service | EmbeddingService, Depends(_service)]


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns in a thread for requests that generate nothing."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, lambda: function(*args, **kwargs))


def errors(body: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the responses to requests that fail, for the schema. body: of these responses."""
    return {
        "4XX": {"model": body, "description": "The request is invalid or refused."},
        "5XX": {"model": body, "description": "The server failed."},
    }


def router(*, is_open: bool = False) -> APIRouter:
    """Return a router for the endpoints of a file. is_open: they need no key."""

    async def check(request: Request) -> None:
        settings = request.app.state.service.settings
        require_host(request, settings.hosts)
        if not is_open:
            require_key(request, settings.keys)

    return APIRouter(dependencies=[Depends(check)], responses=errors(ErrorBody))
