"""POST /tokenize and /detokenize: texts as the model sees them, in the format of llama-server."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from ...runtime import vocabulary
from ...runtime.model import Model
from ..protocol.errors import json_response
from .routers import Serving, aside, router

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
    model = service.model

    def text() -> str:
        model.require_tokens(body.tokens)
        return b"".join(_piece(model, token) for token in body.tokens).decode(errors="replace")

    return json_response({"content": await aside(text)})


def _tokens(model: Model, body: TokenizeRequest) -> list[Any]:
    ids = model.tokenize(
        body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return ids
    found = []
    for token in ids:
        piece = _piece(model, token)
        try:
            found.append({"id": token, "piece": piece.decode()})
        except UnicodeDecodeError:  # a part of a character
            found.append({"id": token, "piece": list(piece)})
    return found


def _piece(model: Model, token: int) -> bytes:
    """Return the bytes of a token; control tokens have their names."""
    return model.piece(token) or vocabulary.control_text(model, token).encode()
