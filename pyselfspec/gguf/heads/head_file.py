"""A checked draft head, and the checks that heads of all kinds go through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import ArgumentError, ModelFileError
from ..file import NOT_FOR_WEIGHTS, TOKEN_EMBEDDING, GgufFile
from ..header import BROKEN, Header, Value, read_header, short

OUTPUT = "output.weight"
OWN_TOKENS = "d2t"  # by token of the head: the model's token


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """How heads of one kind read their model.

    fuses: whether their states come from those of several blocks, which the head first combines;
        others take the model's states as they are.
    n_first: number of rows at the beginning of a text whose states are zeros.
    shares_cells: whether they attend to K and V of the model, and have none.
    n_block: rows of the pass that drafts a block of tokens: the text's last token, and masks; 0 for
        heads that draft one token after another.
    first_row: the one of these that gives the first token.
    mask_token: the id of a mask.
    is_causal: whether rows of a block see those before them only.
    scores_candidates: whether a row of a block scores a few tokens by the token before it.
    has_confidence: whether a row of a block predicts that its token is accepted.
    n_chained: number of blocks in a model's own file, of which block k drafts the token k + 1 after
        the next one.
    """

    fuses: bool = False
    n_first: int = 0
    shares_cells: bool = False
    n_block: int = 0
    first_row: int = 0
    mask_token: int = 0
    is_causal: bool = True
    scores_candidates: bool = False
    has_confidence: bool = False
    n_chained: int = 1

    @property
    def needs_room(self) -> bool:
        """Whether it may need K/V cells for a few more rows than the model."""
        return bool(self.n_first or self.n_block)


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A checked head.

    blocks: blocks of the model whose entering states the head reads; the block after the last one
        stands for the states that leave the model.
    n_features: number of values of these states for one token.
    n_state: number of values of the states that its rows take and leave; 0 for blocks, which leave
        none.
    n_bytes_read: weight bytes that drafting one token reads; of a block its part.
    has_own_tokens: whether it has a vocabulary of its own, usually a part of the model's.
    """

    file: GgufFile
    kind: HeadFormat
    blocks: tuple[int, ...]
    n_features: int
    n_state: int
    n_bytes_read: int
    has_own_tokens: bool = False


def value(header: Header, name: str, default: Value | None = None) -> Value | None:
    """Return the value of a key of the file's architecture."""
    return header.metadata.get(f"{header.metadata['general.architecture']}.{name}", default)


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


def require_states(n: Value | None, target: GgufFile) -> None:
    """Require that a head takes states of as many values as its model's."""
    if n != target.n_embd:
        raise ArgumentError(
            f"is a head for a model with states of {short(n)} values, but {target.path.name} has "
            f"{target.n_embd}"
        )


def require_width(header: Header, file: GgufFile) -> None:
    """Require that the states of a head are as wide as it is."""
    n_out = value(header, "embedding_length_out")
    if n_out not in (None, file.n_embd):
        raise ModelFileError(
            f"{file.architecture}.embedding_length_out is {short(n_out)}, but its states have "
            f"{file.n_embd} values; {BROKEN}"
        )


def require_own_tokens(header: Header, file: GgufFile) -> None:
    """Require that a table of the head's own tokens contains valid token ids."""
    table = next((tensor for tensor in file.tensors if tensor.name == OWN_TOKENS), None)
    if table is None:
        return
    if table.type != "I64" or len(table.shape) != 1:
        raise ModelFileError(
            f"tensor {table.name!r} is {table.type} of shape {list(table.shape)}, but must be a "
            "list of I64: convert the head again, and do not quantize it"
        )
    with header.path.open("rb") as data:
        data.seek(header.starts[table.name])
        tokens = np.fromfile(data, "<i8", table.n_elements)
    strange = tokens[(tokens < 0) | (tokens >= file.n_vocab)]
    if strange.size:
        raise ModelFileError(
            f"tensor {table.name!r} names token {strange[0]}, allowed is 0 to {file.n_vocab - 1}; "
            f"{BROKEN}"
        )


def require_blocks(header: Header, target: GgufFile, n: int | None = None) -> tuple[int, ...]:
    """Return the blocks of the model whose entering states a head reads.

    n: how many there must be; default: any number.
    """
    listed = value(header, "target_layers")
    blocks = listed if isinstance(listed, tuple) else ()
    numbers = tuple(block for block in blocks if isinstance(block, int))
    if not numbers or len(numbers) != (len(blocks) if n is None else n):
        raise ModelFileError(
            f"{header.metadata['general.architecture']}.target_layers is {short(listed)}, not "
            f"{'a list of' if n is None else n} blocks; {BROKEN}"
        )
    strange = [block for block in numbers if not 1 <= block <= target.n_layer]
    if strange:
        raise ArgumentError(
            f"reads the states entering block {strange[0]}, but {target.path.name} has states at "
            f"1 to {target.n_layer}"
        )
    return numbers


def bytes_read(file: GgufFile, target: GgufFile, *by_row: str) -> int:
    """Return the bytes read in one pass: all tensors except the embedding and those of by_row, of
    which few rows are read, and the model's output if the head has none."""
    few = {TOKEN_EMBEDDING, *by_row}
    own = sum(tensor.n_bytes for tensor in file.tensors if tensor.name not in few)
    uses_target_output = not any(tensor.name == OUTPUT for tensor in file.tensors)
    return own + (target.head_bytes if uses_target_output else 0)
