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

from ..endpoints import responses, stored_responses
from ..endpoints.api_forms import error_form, path_form
from ..protocol.errors import ApiError, as_api_error
from ..protocol.events import PING_S, START_S, ClientGone
from ..protocol.writers import HEADERS, NDJSON, SSE
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
        kind = path_form(request).media_type
        super().__init__(self._pieces(request), media_type=kind, headers=HEADERS)
        self._answer = answer

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        try:
            while not (await asyncio.wait([self._answer], timeout=PING_S))[0]:
                yield path_form(request).ping
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
            yield path_form(request).encode(body)
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


def error_event(request: Request, error: ApiError) -> bytes:
    """Return an error as an event of a stream, in the API of the request."""
    is_response, form = request.scope["path"] == stored_responses.PATH, error_form(request)
    return form.encode(responses.error_event(error) if is_response else form.error_body(error))
