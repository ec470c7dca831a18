"""Options of scans and searches: the text to score masks on, and where scores are kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from .objectives import CACHE_BYTES, WINDOW


class ScanOptions(TypedDict, total=False):
    """Keyword arguments of ``scan`` and ``search``; each is optional.

    text: text to score masks on, or the path of a text file; default: the bundled sample, of which
        the model rewrites the second half of every chunk for objectives about drafts.
    text_name: name of the text in the file of results.
    chunks: number of chunks to score on; default: the objective's, see objectives.About.
    n_ctx: tokens per chunk, of which the second half is scored; default: 512, or the model's
        context length if it is smaller.
    window: tokens of a masked pass of the objective agreement; default: 32.
    seed: of strategies and of text that the model generates; default: 0.
    results: file of results, resumed if it exists; default: in the user's data folder, by model,
        text and objective.
    cache_bytes: memory limit for hidden states that masks share; default: 512 MiB.
    context: options of the Context to create, such as n_threads.
    command: command line for the file of results; default: that of this process.
    """

    text: str | Path | None
    text_name: str | None
    chunks: int | None
    n_ctx: int | None
    window: int
    seed: int
    results: Path | None
    cache_bytes: int
    context: Mapping[str, Any]
    command: str | None


@dataclass(frozen=True, slots=True)
class ScanConfig:
    """Options of a scan or a search with their defaults, see ScanOptions."""

    text: str | Path | None = None
    text_name: str | None = None
    chunks: int | None = None
    n_ctx: int | None = None
    window: int = WINDOW
    seed: int = 0
    results: Path | None = None
    cache_bytes: int = CACHE_BYTES
    context: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
