"""Text to packed token rows. The row that a step reads depends on seed and step alone."""

from __future__ import annotations

import io
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm
from numpy.typing import NDArray

Tokens = NDArray[np.uint16]

SAMPLE_LINES = 400_000  # paragraphs the tokenizer is learnt from
MIN_TOKENS = 10_000


class DataError(ValueError):
    """Text that cannot be trained on; the message is for the user."""


def read_text(path: Path) -> str:
    """A text file, packed with xz or plain."""
    try:
        raw = path.read_bytes()
        return (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
    except (UnicodeDecodeError, lzma.LZMAError):
        raise DataError(f"{path}: not UTF-8 text") from None


def make_tokenizer(text: str, n_vocab: int, out: Path) -> None:
    """A byte-fallback BPE of n_vocab tokens, learnt from the text."""
    model = io.BytesIO()
    lines = (line for line in text.splitlines()[:SAMPLE_LINES] if line)
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type="bpe",
            vocab_size=n_vocab,
            byte_fallback=True,
            character_coverage=0.9999,
            required_chars="\n",  # an ordinary piece: only special ones change what follows them
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 20,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(f"no vocabulary of {n_vocab} tokens from this text: {error}") from None
    part = out.with_name(out.name + ".part")
    part.write_bytes(model.getvalue())
    os.replace(part, out)


def tokenize(text: str, tokenizer: Any, bos: bool = True) -> Tokens:
    """Every document (two blank lines divide them) behind a BOS token."""
    documents = text.split("\n\n\n")
    rows = tokenizer.encode(documents, add_bos=bos)
    return np.concatenate([np.asarray(row, dtype=np.uint16) for row in rows])


def packed(tokens: Tokens, sequence: int) -> Tokens:
    """uint16 [rows, sequence + 1]: input and, one further, target."""
    n_row = (len(tokens) - 1) // sequence
    if len(tokens) < MIN_TOKENS or not n_row:
        raise DataError(
            f"{len(tokens)} tokens of text: training needs {max(MIN_TOKENS, sequence + 1)} or more"
        )
    starts = np.arange(n_row) * sequence
    rows: Tokens = tokens[starts[:, None] + np.arange(sequence + 1)]
    return rows


def rows_of_step(n_row: int, n_batch: int, step: int, seed: int) -> NDArray[np.int64]:
    """Which rows a step reads: each once per pass over the text, in a new order each pass."""
    at = np.arange(step * n_batch, (step + 1) * n_batch)
    orders = {
        int(turn): np.random.default_rng([seed, int(turn)]).permutation(n_row)
        for turn in np.unique(at // n_row)
    }
    return np.array([orders[int(i // n_row)][i % n_row] for i in at])
