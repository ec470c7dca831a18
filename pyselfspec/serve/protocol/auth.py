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
    """Raise ApiError unless the request has one of these keys, where there are any. The key becomes
    that of the request's owner."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""  # as in OpenAI's API
    sent = (bearer, request.headers.get("x-api-key"))  # as in Anthropic's
    given = [each.encode(errors="replace") for each in sent if each]
    # compares with every key, so that the time does not depend on which is right
    right = [each for each in given if any([hmac.compare_digest(each, k.encode()) for k in keys])]
    right = right if keys else given
    if keys and not right:
        raise ApiError(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer KEY",
            code="invalid_api_key",
        )
    request.state.key = right[0] if right else b""


def owner_of(request: Request) -> str:
    """Return a name for the sender of a request that has passed require_key: a hash of the key, ""
    without one."""
    key: bytes = request.state.key
    return hashlib.sha256(key).hexdigest() if key else ""


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
