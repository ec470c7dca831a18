"""Routers of endpoints: the application's service, access checks, and errors in the schema."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request

from ..embeddings.embedding_service import EmbeddingService
from ..protocol.auth import require_host, require_key
from ..protocol.errors import ErrorBody
from ..protocol.writers import SSE
from ..service import Service

STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {SSE: {}}}}


async def _service(request: Request) -> Any:
    return request.app.state.service


async def _check_host(request: Request) -> None:
    require_host(request, request.app.state.service.settings.hosts)


async def _check_access(request: Request) -> None:
    await _check_host(request)
    require_key(request, request.app.state.service.settings.keys)


# Arguments of endpoints: the service of a model that writes text, one that makes embeddings, any.
Writing = Annotated[Service, Depends(_service)]
Embedding = Annotated[EmbeddingService, Depends(_service)]
Serving = Annotated[Service | EmbeddingService, Depends(_service)]


def errors(body: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the responses to requests that fail, for the schema. body: of these responses."""
    return {
        "4XX": {"model": body, "description": "The request is invalid or refused."},
        "5XX": {"model": body, "description": "The server failed."},
    }


def router(*, is_open: bool = False) -> APIRouter:
    """Return a router for the endpoints of a file. is_open: they need no key."""
    check = _check_host if is_open else _check_access
    return APIRouter(dependencies=[Depends(check)], responses=errors(ErrorBody))
