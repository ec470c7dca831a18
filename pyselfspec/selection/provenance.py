"""Headers and default paths of files of results."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..gguf import fingerprint
from ..runtime.context import Context
from ..util import build, paths
from .chunks import Text
from .objectives import About

# Header fields that the default file name depends on, see results.SAME.
IDENTITY = (
    "build", "fingerprint", "objective", "n_ctx", "window", "attention", "text_sha256", "seed"
)  # fmt: skip


def header_of(
    context: Context,
    about: About,
    n_ctx: int,
    window: int,
    text: Text,
    seed: int | None,
    command: str,
) -> dict[str, Any]:
    """Return the header of a file of results.

    n_ctx: tokens per chunk. seed: of text that the model generates; None if it generates none.
    """
    model = context.model
    return {
        "version": __version__,
        "build": build.BUILD_ID,
        "model": paths.shown(model.path.name),
        "fingerprint": model.fingerprint,
        "n_layer": model.n_layer,
        "objective": about.results,
        "n_ctx": n_ctx,
        "window": window if about.results == "agreement" else None,
        "attention": context.options.attention,
        "text": paths.shown(text.name),
        "text_sha256": fingerprint.of_text(text.content),
        "seed": seed,
        "command": paths.shown(command),
        "date": time.strftime("%Y-%m-%d"),
    }


def default_path(header: Mapping[str, Any]) -> Path:
    """Return the path for scores with this header. Creates its folder in the user's data folder."""
    key = hashlib.sha256(json.dumps([header[name] for name in IDENTITY]).encode()).hexdigest()
    folder = paths.data("scans")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{Path(header['model']).stem}-{header['objective']}-{key[:12]}.jsonl"
