"""Errors in the format of OpenAI's API: a JSON object with a message, and an HTTP status."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ...errors import ContextFullError, DecodeError, ModelFileError, SelfSpecError
from ...templates.rendering import RenderingEndedError
from ..engine.jobs import BusyError, ShutdownError, TooLateError
from .field_errors import described

log = logging.getLogger(__name__)

TYPES = {  # by status
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_SERVER_ERROR = "server_error"
_NOT_OBJECT = "the body must be a JSON object, sent as Content-Type: application/json"
_NO_JSON = (
    "the request lacks the header Content-Type: application/json (curl: -H 'Content-Type: "
    "application/json'); it is required to keep other web pages from sending requests"
)
RETRY_S = 1  # after which a client may send a refused request again


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every response with a status of 400 or above."""

    error: ErrorDetails


class ApiError(Exception):
    """A refused request. status: of HTTP. param: the field with the error. code: OpenAI's."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, _SERVER_ERROR if self.status >= 500 else TYPES[400])
        details = ErrorDetails(message=str(self), type=kind, param=self.param, code=self.code)
        return ErrorBody(error=details).model_dump()


def unsupported(param: str, message: str) -> ApiError:
    """Return the error for a field that OpenAI's API has and this server does not support."""
    return ApiError(400, message, param=param, code="unsupported_value")


def invalid(param: str, message: str) -> ApiError:
    """Return the error for a field whose value is not allowed."""
    return ApiError(400, message, param=param)


def leave_out(where: str, kind: Any) -> None:
    """Note in the log that a part of a request is left out. kind: its type."""
    log.warning("%s has the type %.40r, which is not supported; it is left out", where, kind)


def require_string(given: Mapping[str, Any], key: str, where: str) -> str:
    """Return a string of a part of a request. Raises ApiError where it is none. where: the part."""
    value = given.get(key)
    if not isinstance(value, str):
        raise invalid(where, f"{where}.{key} must be a string")
    return value


def as_api_error(error: Exception) -> ApiError:
    """Return the error for a client. Details of internal errors are only logged."""
    match error:
        case ApiError():
            return error
        case BusyError():
            return ApiError(429, str(error), code="busy")
        case ShutdownError() | RenderingEndedError():
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
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                reason = first.get("ctx", {}).get("error", "")
                return ApiError(400, f"the body is not JSON: {reason}")
            if first["type"] in ("model_attributes_type", "missing") and first["loc"] == ("body",):
                return ApiError(400, _NO_JSON if isinstance(error.body, bytes) else _NOT_OBJECT)
            where, message = described(error.errors(), error.body)
            return ApiError(400, f"{where}: {message}" if where else message, param=where or None)
        case RecursionError():
            return ApiError(400, "something in the request is nested too deep")
    log.error("a request failed", exc_info=error)
    return ApiError(500, "internal error; the server's log has the details")


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(to_json(content), status, headers, "application/json")


def to_json(content: Any) -> bytes:
    """Encode as JSON in UTF-8. Lone surrogates become question marks."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(errors="replace")


def error_response(
    error: Exception, body_of: Callable[[ApiError], dict[str, Any]] = ApiError.body
) -> Response:
    """Return the response to any exception of an endpoint. body_of: writes an error in the format
    of the endpoint's protocol."""
    found = as_api_error(error)
    headers = {"Retry-After": str(RETRY_S)} if found.status in (429, 503) else {}
    if found.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and error.headers:
        headers |= dict(error.headers)
    return json_response(body_of(found), found.status, headers)
