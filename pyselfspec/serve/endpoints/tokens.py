"""POST /tokenize and /detokenize: texts as the model sees them, in the format of llama-server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from ...runtime import vocabulary
from ...runtime.model import Model
from ..engine.workers import aside
from ..protocol.errors import json_response
from .routers import Serving, router

ROUTER = router()


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


@ROUTER.post("/tokenize")
async def post_tokenize(service: Serving, body: TokenizeRequest) -> Response:
    """Return the tokens of a text."""
    return json_response({"tokens": await aside(_tokens, service.model, body)})


@ROUTER.post("/detokenize")
async def post_detokenize(service: Serving, body: DetokenizeRequest) -> Response:
    """Return the text of tokens."""
    return json_response({"content": await aside(_text, service.model, body.tokens)})


def _tokens(model: Model, body: TokenizeRequest) -> list[Any]:
    tokens = model.tokenize(
        body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return tokens
    return [{"id": token, "piece": _json_piece(model, token)} for token in tokens]


def _text(model: Model, tokens: Sequence[int]) -> str:
    model.require_tokens(tokens)
    return b"".join(_piece(model, token) for token in tokens).decode(errors="replace")


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
