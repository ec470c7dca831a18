"""The models that a server of several may load: names, files, and the memory they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import hub
from ...errors import ArgumentError, ModelFileError
from ...gguf import file as gguf_file
from ...gguf import heads
from ...runtime.context_options import N_CTX
from ...runtime.embedding import pooling_of
from ...runtime.loading import growth
from ...runtime.memory import needed_bytes
from ..model_card import FileCard

N_NAME = 128  # characters


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that may be loaded. n_bytes: estimate of the memory that it takes."""

    name: str
    path: Path
    n_bytes: int
    file: FileCard


def listed(
    pairs: Sequence[str],
    folder: Path | None,
    n_ctx: int | None,
    n_slots: int,
    pooling: str | None = None,
) -> list[Listed]:
    """Return the models of NAME=MODEL pairs, then those of a folder by the names of their files.

    pairs: MODEL is a path or a name, see `hub`. n_ctx: context of each, None for the default one of
    n_slots slots. pooling: of each, None for what its file says. Raises ArgumentError for a name
    that is given twice or not as it should be, ModelFileError for a pair's file that is no model.
    Files of a folder that are no models, and draft heads, are left out.
    """
    found: dict[str, Listed] = {}
    for pair in pairs:
        name, _, given = pair.partition("=")
        if not name.strip() or not given or len(name) > N_NAME or not name.isprintable():
            raise ArgumentError(f"--model {pair[:N_NAME]!r}: give NAME=MODEL")
        if name in found:
            raise ArgumentError(f"--model gives the name {name!r} twice; give different names")
        found[name] = _listed(name, hub.model_path(given), n_ctx, n_slots, pooling)
    for path in sorted(folder.glob("*.gguf")) if folder else ():
        if path.stem not in found:
            try:
                found[path.stem] = _listed(path.stem, path, n_ctx, n_slots, pooling)
            except ModelFileError:
                continue
    if not found:
        raise ArgumentError(f"{folder} holds no model that can be loaded; give --model NAME=MODEL")
    return list(found.values())


def _listed(name: str, path: Path, n_ctx: int | None, n_slots: int, pooling: str | None) -> Listed:
    file = gguf_file.check(path)
    if heads.is_head(file.architecture):
        raise ModelFileError(f"{path} is a draft head, which cannot generate text alone")
    n_ctx = n_ctx or n_slots * min(N_CTX, file.context_length or N_CTX)
    card = FileCard.of(file, pooling or pooling_of(file))
    n_bytes = needed_bytes(file, n_ctx, "f16", "f16") + growth(file)
    return Listed(name, path, n_bytes, card)
