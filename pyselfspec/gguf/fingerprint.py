"""Names for models and texts in files of results: equal names mean equal contents."""

from __future__ import annotations

import hashlib

from .file import GgufFile
from .header import read_header

WHOLE = 64 * 2**20  # bytes; larger files are sampled
STRIDE = 2**20
SAMPLE = 2**12


def of_model(file: GgufFile) -> str:
    """Return a SHA-256 over sizes and contents, 64 hexadecimal digits.

    Only 4 KiB in every MiB of large files are read, to save time: models that differ do so nearly
    everywhere. Only the first part of split models is read.
    """
    digest = hashlib.sha256(f"{file.n_bytes} {file.n_params}\n".encode())
    with file.path.open("rb") as data:
        size = data.seek(0, 2)
        step, n = (STRIDE, SAMPLE) if size > WHOLE else (STRIDE, STRIDE)
        for offset in range(0, size, step):
            data.seek(offset)
            digest.update(data.read(n))
    return digest.hexdigest()


def of_vocabulary(file: GgufFile) -> str:
    """Return a SHA-256 over the tokens in the order of their ids, 64 hexadecimal digits; for a
    model without the texts of tokens, over their number."""
    tokens = read_header(file.path).metadata.get("tokenizer.ggml.tokens")
    digest = hashlib.sha256(f"{file.n_vocab}\n".encode())
    for token in tokens if isinstance(tokens, tuple) else ():
        text = token if isinstance(token, bytes) else str(token).encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return digest.hexdigest()


def of_text(text: str) -> str:
    """Return the SHA-256 of the UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
