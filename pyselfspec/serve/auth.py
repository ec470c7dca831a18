"""Access checks: the API key, and the Host header, which keeps out pages of other sites."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from starlette.requests import Request

from .errors import ApiError

N_HOST = 100  # characters of a header that an error repeats
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


def require_key(request: Request, keys: Collection[str]) -> None:
    """Raise ApiError unless the request has one of these keys, where there are any. Compares in
    constant time."""
    given = _given_key(request).encode(errors="replace")
    if keys and not any([hmac.compare_digest(given, key.encode()) for key in keys]):
        raise ApiError(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer KEY",
            code="invalid_api_key",
        )


def _given_key(request: Request) -> str:
    """Return the key of a request, in the header of OpenAI's or of Anthropic's API; "" if none."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def owner_of(request: Request) -> str:
    """Return a name for the sender of a request: a hash of the key, "" without one."""
    key = _given_key(request)
    return hashlib.sha256(key.encode(errors="replace")).hexdigest() if key else ""


def require_host(request: Request, allowed: Collection[str]) -> None:
    """Raise ApiError unless the Host header is an allowed name, against DNS rebinding.

    allowed: host names in lower case; empty allows all.
    """
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if allowed and name.lower() not in allowed:
        raise ApiError(
            403, f"the Host header is {host[:N_HOST]!r}; use one of {', '.join(allowed)}"
        )
