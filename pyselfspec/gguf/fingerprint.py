"""Names for models and texts in files of results: equal names mean equal contents."""

from __future__ import annotations

import hashlib

from .file import GgufFile
from .header import read_header

WHOLE = 64 * 2**20  # bytes; larger files are sampled
STRIDE = 2**20
SAMPLE = 2**12


def of_model(file: GgufFile) -> str:
    """SHA-256 over sizes and contents, 64 hexadecimal digits.

    Of large files 4 KiB in every MiB are read: models differ nearly everywhere if they differ at
    all, and nobody wants to wait for a hash. Of split models the first part stands for all.
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
    """SHA-256 over the tokens in the order of their ids, 64 hexadecimal digits; of a model without
    tokens, over how many it has."""
    tokens = read_header(file.path).metadata.get("tokenizer.ggml.tokens")
    digest = hashlib.sha256(f"{file.n_vocab}\n".encode())
    for token in tokens if isinstance(tokens, tuple) else ():
        text = token if isinstance(token, bytes) else str(token).encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return digest.hexdigest()


def of_text(text: str) -> str:
    """SHA-256 of the UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
