"""The service of a model that makes embeddings or scores pairs of texts, and writes no text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...runtime.embedding import RANK
from ...runtime.model import Model
from .. import model_card
from ..metrics import Metrics
from ..model_card import FileCard
from ..protocol.errors import ApiError, invalid, unsupported
from ..settings import Settings
from .embedding_engine import EmbeddingEngine


class EmbeddingService:
    """A model that is being served for its embeddings or scores."""

    def __init__(self, engine: EmbeddingEngine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = Metrics(engine)
        self.created_at = int(time.time())

    @property
    def model(self) -> Model:
        return self.engine.context.model

    def require_kind(self, *, scores: bool) -> None:
        """Raise ApiError unless the model makes what is asked for: scores or vectors."""
        pooling, name = self.engine.context.pooling, self.settings.name
        if scores and pooling != RANK:
            raise unsupported("model", f"{name} makes embeddings, not scores; use /v1/embeddings")
        if not scores and pooling == RANK:
            raise unsupported("model", f"{name} scores documents; use /v1/rerank")
        if pooling == "none":
            raise unsupported("model", f"{name} has no pooling layer; choose one with --pooling")

    def refusal(self) -> ApiError:
        """Return the error for an endpoint that needs a model that writes text."""
        if self.engine.context.pooling == RANK:
            return unsupported("model", f"{self.settings.name} is a reranker; use /v1/rerank")
        return unsupported(
            "model", f"{self.settings.name} is an embedding model; use /v1/embeddings"
        )

    def tokens_of(self, text: str, where: str) -> list[int]:
        """Return the tokens of a text, as far as they are allowed and one more. where: its field.
        Raises ApiError as require_length does."""
        tokens = self.model.first_tokens(text, self.engine.context.n_ctx + 1)
        self.require_length(tokens, where)
        return tokens

    def require_length(self, tokens: Sequence[int], where: str) -> None:
        """Raise ApiError for a text without tokens or with too many. where: its field."""
        n_ctx = self.engine.context.n_ctx
        if not tokens:
            raise invalid(where, f"{where} has no tokens; give at least one")
        if len(tokens) > n_ctx:
            raise ApiError(
                400,
                f"{where} has more than {n_ctx} tokens; give a shorter text",
                param=where,
                code="context_length_exceeded",
            )

    def end(self, grace_s: float) -> None:
        """Accept no more requests, and finish the queued ones."""
        self.engine.end(grace_s)

    def file_card(self) -> FileCard:
        """Return the description of the model's file."""
        return FileCard.of(self.model.file, self.engine.context.pooling)

    def props(self) -> dict[str, Any]:
        """Return a description of model and server, for GET /props."""
        context = self.engine.context
        return {
            "model": self.settings.name,
            **model_card.facts(self.model),
            "n_ctx": context.n_ctx,
            "pooling": context.pooling,
            "n_values": context.width,
        }
