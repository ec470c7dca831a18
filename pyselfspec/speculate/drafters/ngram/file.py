"""A file of earlier texts: token ids of one vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ....errors import ArgumentError
from ....util import records
from ....util.files import locked, require_no_model

WAIT_S = 10.0  # for another process that saves to the same file


@dataclass(frozen=True, slots=True)
class Texts:
    FORMAT: ClassVar[int] = 1

    vocabulary: str  # its digest
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(token < 0 for token in self.tokens):
            raise ArgumentError("token ids are whole numbers, 0 or more")


def load(path: Path, vocabulary: str, n_vocab: int) -> tuple[int, ...]:
    """Return the tokens in a file; an empty result if it does not exist yet.

    Raises ArgumentError for a file of another kind or of another vocabulary.
    """
    require_no_model(path)
    if not path.exists():
        return ()
    what, fix = "file of texts to copy from", "give a file of this drafter, or a new name"
    found = records.load(path, Texts, what=what, fix=fix)
    if found.vocabulary != vocabulary or max(found.tokens, default=0) >= n_vocab:
        raise ArgumentError(
            f"{path} holds texts in another vocabulary; give a file for models with this "
            "vocabulary, or a new name"
        )
    return found.tokens


def add(path: Path, vocabulary: str, n_vocab: int, new: Sequence[int], n_kept: int) -> None:
    """Append tokens to a file and keep the latest n_kept. Several processes may do so at once.

    Raises ArgumentError as ``load`` does, and if another process locks the file for long or no lock
    can be made.
    """
    with locked(path, "go on without; this text was not added to it", wait_s=WAIT_S):
        tokens = (*load(path, vocabulary, n_vocab), *new)[-n_kept:]
        records.save(path, Texts(vocabulary, tokens))
