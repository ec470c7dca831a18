"""Responses of a model's server, passed on; of one that is being loaded, after pings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..endpoints import messages, ollama_request, responses, stored_responses
from ..endpoints.error_form import error_form
from ..protocol.errors import ApiError, as_api_error, to_json
from ..protocol.events import PING_S, START_S, ClientGone
from ..protocol.writers import HEADERS, NDJSON, SSE, LineWriter, ResponseWriter
from .process import Forwarded

STREAMED = ("/api/chat", "/api/generate")  # Ollama's paths that stream unless a request says no


def wants_stream(request: Request, fields: dict[str, Any]) -> bool:
    """Return whether a request, with the fields of its body, asks for a stream."""
    default = request.scope["path"] in STREAMED
    return request.method == "POST" and fields.get("stream", default) is True


class Forwarding(StreamingResponse):
    """The response of a model's server, closed however it ends, also before its first byte.
    stopped: the error of a stream whose server ends before it."""

    def __init__(
        self,
        answer: Forwarded,
        stack: AsyncExitStack,
        request: Request,
        head: tuple[int, list[tuple[bytes, bytes]]],
        stopped: ApiError,
    ) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.pieces():
                    yield piece
            except OSError:
                if not self.is_stream:
                    raise
                yield error_event(request, stopped)

        status, headers = head
        self.pieces = pieces()
        super().__init__(self.pieces, status)
        self.raw_headers = headers
        kind = self.headers.get("content-type", "").partition(";")[0]
        self.is_stream = kind in (SSE, NDJSON)
        self._stack = stack

    async def close(self) -> None:
        """Close a response that is not sent."""
        await self._stack.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def respond(request: Request, answer: asyncio.Task[Forwarding]) -> Response:
    """Return an answer; after START_S seconds without one, a stream that waits for it."""
    done, _ = await asyncio.wait([answer], timeout=START_S)
    return answer.result() if done else Waiting(request, answer)


class Waiting(StreamingResponse):
    """A stream that begins before its answer is there: pings, then the answer, of which an error is
    an event."""

    def __init__(self, request: Request, answer: asyncio.Task[Forwarding]) -> None:
        kind = NDJSON if ollama_request.has_path(request) else SSE
        super().__init__(self._pieces(request), media_type=kind, headers=HEADERS)
        self._answer = answer

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        try:
            while not (await asyncio.wait([self._answer], timeout=PING_S))[0]:
                yield _ping(request)
            found = self._answer.result()
            if found.is_stream:
                async for piece in found.pieces:
                    yield piece
                return
            body = json.loads(b"".join([piece async for piece in found.pieces]))
            if found.status_code >= 400:
                error = body["error"]
                if isinstance(error, str):  # as in Ollama's API
                    error = {"message": error}
                raise ApiError(
                    found.status_code,
                    error["message"],
                    param=error.get("param"),
                    code=error.get("code"),
                )
            yield _event(request, body)
        except ClientGone:
            return
        except Exception as error:
            yield error_event(request, as_api_error(error))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            was_running = self._answer.cancel()
            if not was_running and not self._answer.exception():
                await self._answer.result().close()


def _ping(request: Request) -> bytes:
    if ollama_request.has_path(request):
        return LineWriter.PING
    return messages.MessageWriter.PING if messages.has_path(request) else ResponseWriter.PING


def error_event(request: Request, error: ApiError) -> bytes:
    """Return an error as an event of a stream, in the API of the request."""
    if request.scope["path"] == stored_responses.PATH:
        return _event(request, responses.error_event(error))
    return _event(request, error_form(request)(error))


def _event(request: Request, body: dict[str, Any]) -> bytes:
    if ollama_request.has_path(request):
        return to_json(body) + b"\n"
    name = f"event: {body['type']}\n".encode() if "type" in body else b""
    return name + b"data: " + to_json(body) + b"\n\n"
