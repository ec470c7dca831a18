"""Middleware: limits of a request's body, HEAD requests, and web pages of other origins (CORS)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import HTTPException
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_S = 60.0  # seconds for the whole body


class BodyLimit:
    """ASGI middleware that refuses bodies of more than n_bytes, or slower than BODY_S."""

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

        too_large = HTTPException(413, f"the body has more than {self._n_bytes} bytes; send less")

        async def limited() -> Message:
            nonlocal n_left, has_all
            if declared > self._n_bytes:
                raise too_large
            try:
                async with asyncio.timeout_at(None if has_all else end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"the body did not arrive within {BODY_S:.0f} seconds"
                ) from None
            n_left -= len(message.get("body", b""))
            has_all = not message.get("more_body", False)
            if n_left < 0:
                raise too_large
            return message

        await self._app(scope, limited, send)


class HeadAsGet:
    """ASGI middleware that answers HEAD like GET; uvicorn leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def allow_origins(app: Starlette, origins: Sequence[str]) -> None:
    """Let pages of these origins send requests, with any header: programs add some of their own, as
    OpenAI's and Anthropic's packages for browsers do (x-stainless-os, anthropic-beta)."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
        )
