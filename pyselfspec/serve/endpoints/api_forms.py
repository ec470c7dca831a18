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


def path_form(request: Request) -> ApiForm:
    """Return the form of the API that has the path of a request, in which its stream is."""
    if ollama_request.has_path(request):
        return ollama_request.FORM
    return messages.FORM if messages.has_path(request) else OPENAI


def error_form(request: Request) -> ApiForm:
    """Return the form of the errors of a request: on paths of OpenAI's API, that of the client."""
    form = path_form(request)
    return messages.FORM if form is OPENAI and messages.is_for(request) else form


def handle_errors(app: Starlette) -> None:
    """Let an application answer errors, each in the form of its request's API."""

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error, error_form(request).error_body)

    for kind in (*EXPECTED, Exception):
        app.add_exception_handler(kind, on_error)
    for gone in (ClientGone, ClientDisconnect):
        app.add_exception_handler(gone, no_response)
