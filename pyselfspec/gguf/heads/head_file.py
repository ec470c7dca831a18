"""A checked draft head, and the checks that heads of all kinds go through."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ArgumentError, ModelFileError
from ..file import NOT_FOR_WEIGHTS, GgufFile
from ..header import Header, Value, read_header, short


@dataclass(frozen=True, slots=True)
class Kind:
    """How heads of one kind read their model.

    fuses: whether their states come from those of several blocks, which the head first combines;
        others take the model's states as they are.
    n_first: number of rows at the beginning of a text whose states are zeros.
    shares_cells: whether they attend to K and V of the model, and have none.
    """

    fuses: bool = False
    n_first: int = 0
    shares_cells: bool = False


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A checked head.

    blocks: blocks of the model whose entering states the head reads; the block after the last one
        stands for the states that leave the model.
    n_features: number of values of these states for one token.
    n_state: number of values of the states that its rows take and leave.
    n_bytes_read: weight bytes that drafting one token reads.
    has_own_tokens: whether it has a vocabulary of its own, usually a part of the model's.
    """

    file: GgufFile
    kind: Kind
    blocks: tuple[int, ...]
    n_features: int
    n_state: int
    n_bytes_read: int
    has_own_tokens: bool = False


def value(header: Header, name: str) -> Value | None:
    """Return the value of a key of the file's architecture."""
    return header.metadata.get(f"{header.metadata['general.architecture']}.{name}")


def require_types(file: GgufFile, *own: str) -> None:
    """Require types that llama.cpp can compute with, except of tensors that have own checks."""
    for tensor in file.tensors:
        if tensor.name in own:
            continue
        one_row = len(tensor.shape) == 1
        if one_row and tensor.type != "F32":
            raise ModelFileError(f"tensor {tensor.name!r} is {tensor.type}, but must be F32")
        if not one_row and tensor.type in NOT_FOR_WEIGHTS:
            raise ModelFileError(
                f"tensor {tensor.name!r} is {tensor.type}, which is no type for weights: "
                "convert the head again"
            )


def require_vocabulary(header: Header, file: GgufFile, target: GgufFile) -> None:
    """Require that a head has the vocabulary of its model."""
    if file.n_vocab != target.n_vocab:
        raise ArgumentError(
            f"has a vocabulary of {file.n_vocab} tokens, but {target.path.name} has "
            f"{target.n_vocab}"
        )
    key = "tokenizer.ggml.tokens"
    own, other = header.metadata.get(key), read_header(target.path).metadata.get(key)
    if not (isinstance(own, tuple) and isinstance(other, tuple)):
        return  # ids only
    for token, (a, b) in enumerate(zip(own, other, strict=True)):
        if a != b:
            raise ArgumentError(
                f"has another vocabulary than {target.path.name}: token {token} is {short(a)} and "
                f"{short(b)}"
            )
