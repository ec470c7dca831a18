"""POST /tokenize, /detokenize and /apply-template: prompts as the model sees them, in the format of
llama-server."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from ...runtime import vocabulary
from ...runtime.model import Model
from ..chats import chat_text, require_template
from ..errors import json_response
from ..schemas import ChatRequest
from ..service import Service
from ..tools import ToolUse


class TokenizeRequest(BaseModel):
    """POST /tokenize. add_special: with the model's own first and last tokens. parse_special: read
    special tokens in the text. with_pieces: return the text of each token too."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    tokens: list[int]


async def tokenize(model: Model, body: TokenizeRequest) -> Response:
    """Handle a request for the tokens of a text."""
    tokens: list[Any] = await asyncio.to_thread(
        model.tokenize, body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if body.with_pieces:
        tokens = [{"id": token, "piece": _json_piece(model, token)} for token in tokens]
    return json_response({"tokens": tokens})


async def detokenize(model: Model, body: DetokenizeRequest) -> Response:
    """Handle a request for the text of tokens. Raises ArgumentError for unknown ids."""
    model.require_tokens(body.tokens)
    pieces = (_piece(model, token) for token in body.tokens)
    return json_response({"content": b"".join(pieces).decode(errors="replace")})


async def apply_template(service: Service, body: ChatRequest) -> Response:
    """Handle a request for the prompt of a chat."""
    body.require_supported()
    template, use = require_template(service), ToolUse.of(body)
    return json_response({"prompt": await asyncio.to_thread(chat_text, template, body, use)})


def _piece(model: Model, token: int) -> bytes:
    """Return the bytes of a token; control tokens have their names."""
    return model.piece(token) or vocabulary.control_text(model, token).encode()


def _json_piece(model: Model, token: int) -> str | list[int]:
    """Return the text of a token, or its bytes if they are no text."""
    piece = _piece(model, token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
