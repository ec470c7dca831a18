"""The forms of the APIs that a server has, and what they mean for its errors."""

from __future__ import annotations

from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ...errors import SelfSpecError
from ..protocol.errors import ApiError, error_response
from ..protocol.events import ClientGone, no_response
from ..protocol.writers import OPENAI, ApiForm
from . import messages, ollama_request

# Exceptions that requests cause. All others are logged too.
EXPECTED = (ApiError, SelfSpecError, HTTPException, RequestValidationError, RecursionError)


def form_of(request: Request) -> ApiForm:
    """Return the form of the API of a request."""
    if ollama_request.has_path(request):
        return ollama_request.FORM
    is_message = messages.is_for(request) or messages.has_path(request)
    return messages.FORM if is_message else OPENAI


def handle_errors(app: Starlette) -> None:
    """Let an application answer errors, each in the form of its request's API."""

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error, form_of(request).error_body)

    for kind in (*EXPECTED, Exception):
        app.add_exception_handler(kind, on_error)
    for gone in (ClientGone, ClientDisconnect):
        app.add_exception_handler(gone, no_response)
