"""Errors as OpenAI's clients know them: an object with a message, and the status that says whose
fault it is."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import ContextFullError, DecodeError, ModelFileError, SelfSpecError
from .jobs import BusyError, ShutdownError, TooLateError

log = logging.getLogger(__name__)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_SERVER_ERROR = "server_error"
_NOT_OBJECT = "the body is a JSON object, sent as Content-Type: application/json"
_NO_JSON = (
    "the request lacks the header Content-Type: application/json (curl: -H 'Content-Type: "
    "application/json'); it is required so that no web page can send requests unnoticed"
)
RETRY_S = 1  # after which a client may ask a busy server again


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """What every status of 400 and above comes with."""

    error: ErrorDetails


class ApiError(Exception):
    """A request that is refused, and why. param: the field that is at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, _SERVER_ERROR if self.status >= 500 else _TYPES[400])
        details = ErrorDetails(message=str(self), type=kind, param=self.param, code=self.code)
        return ErrorBody(error=details).model_dump()


def unsupported(param: str, message: str) -> ApiError:
    """A value that other servers may know."""
    return ApiError(400, message, param=param, code="unsupported_value")


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error. Of faults of the server it hears no details."""
    match error:
        case ApiError():
            return error
        case BusyError():
            return ApiError(429, str(error), code="busy")
        case ShutdownError():
            return ApiError(503, str(error), code="busy")
        case TooLateError():
            return ApiError(504, str(error), code="timeout")
        case ContextFullError():
            return ApiError(400, str(error), code="context_length_exceeded")
        case DecodeError() | ModelFileError():
            log.error("%s", error)
            return ApiError(500, str(error))
        case SelfSpecError():
            return ApiError(400, str(error))
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
        case RequestValidationError():
            return _of_validation(error)
        case RecursionError():
            return ApiError(400, "something in the request is nested too deep")
    log.error("a request failed", exc_info=error)
    return ApiError(500, "the server has made a mistake; its log says more")


def _of_validation(error: RequestValidationError) -> ApiError:
    """The first of its complaints, with the field's name."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', '')}")
    if first["type"] == "model_attributes_type" and first["loc"] == ("body",):
        return ApiError(400, _NO_JSON if isinstance(error.body, bytes) else _NOT_OBJECT)
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{where}: {message}" if where else message, param=where or None)


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(to_json(content), status, headers, "application/json")


def to_json(content: Any) -> bytes:
    """Half characters, which JSON can carry and UTF-8 cannot, become question marks."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(errors="replace")


async def handle(_request: Request, error: Exception) -> Response:
    """For all exceptions that leave an endpoint."""
    found = as_api_error(error)
    headers = {"Retry-After": str(RETRY_S)} if found.status in (429, 503) else {}
    if found.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and error.headers:
        headers |= dict(error.headers)
    return json_response(found.body(), found.status, headers)
