"""A text, and how it is cut into equal chunks of tokens, as llama.cpp's perplexity program does.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import ArgumentError
from ..util import paths

N_CHUNK = 512  # tokens in a chunk


def cut(tokens: Sequence[int], n_ctx: int, start_token: int | None) -> list[tuple[int, ...]]:
    """Chunks of n_ctx tokens; what is left over at the end is dropped.

    start_token: takes the place of the first token of each chunk, for models whose texts begin
    with one.

    Raises ArgumentError for a text shorter than one chunk.
    """
    if n_ctx < 4:
        raise ArgumentError(f"a chunk has 4 tokens or more, got {n_ctx}")
    if len(tokens) < n_ctx:
        raise ArgumentError(
            f"the text has {len(tokens)} tokens, one chunk takes {n_ctx}; "
            "give a longer text or a smaller n_ctx"
        )
    starts = range(0, len(tokens) - n_ctx + 1, n_ctx)
    chunks = [tuple(tokens[start : start + n_ctx]) for start in starts]
    if start_token is None:
        return chunks
    return [(start_token, *chunk[1:]) for chunk in chunks]


def first_scored(n_ctx: int) -> int:
    """Tokens before this one are context only."""
    return n_ctx // 2


def sample_text() -> str:
    """The text that comes with the package."""
    return paths.SAMPLE_TEXT.read_text(encoding="utf-8")


class Text(NamedTuple):
    name: str
    content: str


def text_of(text: str | Path | None, name: str | None = None) -> Text:
    """A text with its name. A path is read, None is the sample.

    Raises ArgumentError for what is no text.
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
        raise ArgumentError(f"{name} is no text: it has NUL characters")
    return Text(name, text)
