"""Reads a text and splits it into equal chunks of tokens, like llama.cpp's perplexity program.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import ArgumentError
from ..util import paths

N_CHUNK = 512  # tokens in a chunk


def cut(tokens: Sequence[int], n_ctx: int, start_token: int | None) -> list[tuple[int, ...]]:
    """Return chunks of n_ctx tokens; the rest at the end is dropped.

    start_token: replaces the first token of each chunk; None for models without such a token.

    Raises ArgumentError for a text shorter than one chunk.
    """
    if n_ctx < 4:
        raise ArgumentError(f"a chunk has 4 tokens or more, got {n_ctx}")
    if len(tokens) < n_ctx:
        raise ArgumentError(
            f"the text has {len(tokens)} tokens, one chunk takes {n_ctx}; "
            "give a longer text or a smaller n_ctx (--chunk-size)"
        )
    starts = range(0, len(tokens) - n_ctx + 1, n_ctx)
    chunks = [tuple(tokens[start : start + n_ctx]) for start in starts]
    if start_token is None:
        return chunks
    return [(start_token, *chunk[1:]) for chunk in chunks]


def first_scored(n_ctx: int) -> int:
    """Return the index of the first scored token of a chunk; tokens before it are context only."""
    return n_ctx // 2


def sample_text() -> str:
    """Return the bundled sample text."""
    return paths.SAMPLE_TEXT.read_text(encoding="utf-8")


class Text(NamedTuple):
    """A text and its name for messages and files of results."""

    name: str
    content: str


def text_of(text: str | Path | None, name: str | None = None) -> Text:
    """Return a text with its name: a file's contents, a string, or for None the bundled sample.

    Raises ArgumentError for contents that are not UTF-8 or have NUL characters.
    """
    if text is None:
        return Text("sample", sample_text())
    if isinstance(text, Path):
        name = name or str(text)
        try:
            text = text.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ArgumentError(f"{name} is not UTF-8 text: {error}") from None
    name = name or "given"
    if "\0" in text:
        raise ArgumentError(f"{name} is not a text: it has NUL characters")
    return Text(name, text)
