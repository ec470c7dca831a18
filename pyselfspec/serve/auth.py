"""Who may ask: whoever knows the key, if there is one, and no web page of somebody else's."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.requests import Request

from .errors import ApiError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


def require_key(request: Request, key: str | None) -> None:
    """Raise ApiError unless the request has the key. The time that this takes tells nothing."""
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode(errors="replace"), key.encode())
    if scheme.lower() != "bearer" or not right:
        raise ApiError(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer KEY",
            code="invalid_api_key",
        )


def require_host(request: Request, allowed: Collection[str]) -> None:
    """Raise ApiError for a request to another name than this machine's: a page of a foreign site
    whose name was made to point here (DNS rebinding). allowed: names; none: all are."""
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if allowed and name.lower() not in allowed:
        raise ApiError(403, "this server answers to the name of this machine only")
