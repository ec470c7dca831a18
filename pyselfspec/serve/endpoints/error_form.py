"""The form of errors, which each API has its own of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from ..protocol.errors import ApiError
from . import messages, ollama_request


def error_form(request: Request) -> Callable[[ApiError], dict[str, Any]]:
    """Return the function that writes an error in the API of a request."""
    if ollama_request.has_path(request):
        return ollama_request.error_body
    is_message = messages.is_for(request) or messages.has_path(request)
    return messages.error_body if is_message else ApiError.body
