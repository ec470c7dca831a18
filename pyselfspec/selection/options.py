"""What can be said about the text that masks are scored on, and where scores are kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from .objectives import CACHE_BYTES, WINDOW


class Options(TypedDict, total=False):
    """On what masks are scored, and where scores are kept; all of them may be left out.

    text: what to score on. A path is read; default: the sample that comes with the package, whose
        second halves the model writes itself for objectives about drafts.
    text_name: how the file of results calls it.
    chunks: of text, to score on; default: as the objective says, see objectives.About.
    n_ctx: tokens in a chunk, the second half is scored; default: 512, or the model's context.
    window: tokens in a masked pass of agreement; default: 32.
    seed: of everything random, the model's own text included; default: 0.
    out: file of results, taken up again when it exists; default: in the user's data folder, by
        model, text and objective.
    cache_bytes: most memory for hidden states that masks share; default: 512 MiB.
    context: options of the Context to make, such as n_threads.
    command: for provenance; default: the command line of this process.
    """

    text: str | Path | None
    text_name: str | None
    chunks: int | None
    n_ctx: int | None
    window: int
    seed: int
    out: Path | None
    cache_bytes: int
    context: Mapping[str, Any]
    command: str | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The same with the defaults."""

    text: str | Path | None = None
    text_name: str | None = None
    chunks: int | None = None
    n_ctx: int | None = None
    window: int = WINDOW
    seed: int = 0
    out: Path | None = None
    cache_bytes: int = CACHE_BYTES
    context: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
