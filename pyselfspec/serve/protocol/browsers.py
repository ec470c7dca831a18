"""Requests from web pages of other origins (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware


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
