"""Descriptions of a model, for the services of completions and of embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from .. import __version__
from ..gguf.file import GgufFile
from ..runtime.embedding import RANK
from ..runtime.model import Model
from ..util import build


@dataclass(frozen=True, slots=True)
class FileCard:
    """A model file, as lists of models describe it. changed_at: seconds since 1970, 0 for a
    file that has been removed. capabilities: in Ollama's words."""

    architecture: str
    file_type: str
    n_params: int
    n_bytes: int
    changed_at: float
    capabilities: tuple[str, ...]

    @classmethod
    def of(cls, file: GgufFile, pooling: str | None) -> Self:
        """Describe a checked file. pooling: with which it is served, None for one that generates
        text."""
        try:
            changed_at = file.path.stat().st_mtime
        except OSError:
            changed_at = 0.0
        return cls(
            architecture=file.architecture,
            file_type=file.file_type,
            n_params=file.n_params,
            n_bytes=file.n_bytes,
            changed_at=changed_at,
            capabilities=capabilities(pooling),
        )

    @property
    def params_text(self) -> str:
        """The number of parameters, such as 7.6B or 134.5M."""
        n = self.n_params
        return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.1f}M"


def capabilities(pooling: str | None) -> tuple[str, ...]:
    """Return what a model is for, in Ollama's words, which have none for scores. pooling: with
    which it is served, None for one that generates text."""
    if pooling is None:
        return ("completion",)
    return () if pooling == RANK else ("embedding",)


def card(name: str, created_at: int, file: FileCard) -> dict[str, Any]:
    """Return the entry of a model in OpenAI's list of models. created_at: seconds since 1970."""
    return {
        "id": name,
        "object": "model",
        "created": created_at,
        "owned_by": "pyselfspec",
        "capabilities": file.capabilities,
    }


def facts(model: Model) -> dict[str, Any]:
    """Return the shape, size and type of a model, and the build that runs it."""
    file = model.file
    return {
        "architecture": file.architecture,
        "n_layer": model.n_layer,
        "n_embd": model.n_embd,
        "n_vocab": model.n_vocab,
        "n_params": file.n_params,
        "n_bytes": file.n_bytes,
        "type": file.file_type,
        "n_ctx_train": model.n_ctx_train,
        "version": __version__,
        "build": build.BUILD_ID,
    }
