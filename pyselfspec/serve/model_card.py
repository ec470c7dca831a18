"""Descriptions of a model, for the services of completions and of embeddings."""

from __future__ import annotations

from typing import Any

from .. import __version__
from ..runtime.model import Model
from ..util import build


def card(name: str, created_at: int) -> dict[str, Any]:
    """Return the entry of a model in OpenAI's list of models. created_at: seconds since 1970."""
    return {"id": name, "object": "model", "created": created_at, "owned_by": "pyselfspec"}


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
