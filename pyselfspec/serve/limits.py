"""Limits of a request's body: its size, and the time that it may take to arrive."""

from __future__ import annotations

import asyncio

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_S = 60.0  # seconds, for all of it


class BodyLimit:
    """ASGI middleware. n_bytes: of a body at most."""

    def __init__(self, app: ASGIApp, n_bytes: int) -> None:
        self._app = app
        self._n_bytes = n_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        declared = int(length) if length.isdigit() else 0
        n_left, has_all = self._n_bytes, False
        end = asyncio.get_running_loop().time() + BODY_S

        async def limited() -> Message:
            nonlocal n_left, has_all
            if declared > self._n_bytes:
                raise self._too_large()
            try:
                async with asyncio.timeout_at(None if has_all else end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body took too long to arrive") from None
            n_left -= len(message.get("body", b""))
            has_all = not message.get("more_body", False)
            if n_left < 0:
                raise self._too_large()
            return message

        await self._app(scope, limited, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"a request has at most {self._n_bytes} bytes")
