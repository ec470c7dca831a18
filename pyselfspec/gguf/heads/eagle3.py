"""Heads of EAGLE-3 (Li et al., https://arxiv.org/abs/2503.01840) as llama.cpp's converter writes
them."""

from __future__ import annotations

import numpy as np

from ...errors import ArgumentError, ModelFileError
from ..file import TOKEN_EMBEDDING, GgufFile
from ..header import BROKEN, Header, TensorInfo, short
from .head_file import HeadFile, Kind, require_types, require_vocabulary, value

ARCHITECTURE = "eagle3"
N_BLOCKS_READ = 3
OUTPUT = "output.weight"
OWN_TOKENS = "d2t"  # by token of the head: the model's token
KIND = Kind(fuses=True)


def read(header: Header, file: GgufFile, target: GgufFile) -> HeadFile:
    """Return the checked head. Raises what ``heads.check`` does."""
    blocks = _require_sound(header, file)
    _require_fit(header, file, target, blocks)
    return HeadFile(
        file,
        KIND,
        blocks,
        n_features=len(blocks) * target.n_embd,
        n_state=file.n_embd,
        n_bytes_read=_bytes_read(file, target),
        has_own_tokens=any(tensor.name == OWN_TOKENS for tensor in file.tensors),
    )


def _require_sound(header: Header, file: GgufFile) -> tuple[int, ...]:
    """Raise ModelFileError for a head that llama.cpp would abort on. Returns the target's blocks
    that it reads."""
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if file.n_layer != 1:
        raise ModelFileError(f"has {file.n_layer} blocks, but a head has one; {BROKEN}")
    sizes = [value(header, f"attention.{name}_length") for name in ("key", "value")]
    if sizes[0] != sizes[1]:
        raise ModelFileError(
            f"K and V have heads of {sizes[0]} and {sizes[1]} values; they must be equal"
        )
    require_types(file, OWN_TOKENS)
    if OWN_TOKENS in tensors:
        _require_tokens(header, file, tensors[OWN_TOKENS])
    blocks = value(header, "target_layers")
    listed = blocks if isinstance(blocks, tuple) else ()
    numbers = tuple(block for block in listed if isinstance(block, int))
    if not len(numbers) == len(listed) == N_BLOCKS_READ:
        raise ModelFileError(
            f"{ARCHITECTURE}.target_layers is {short(blocks)}, not {N_BLOCKS_READ} blocks; {BROKEN}"
        )
    n_out = value(header, "embedding_length_out")
    if n_out not in (None, file.n_embd):
        raise ModelFileError(
            f"{ARCHITECTURE}.embedding_length_out is {short(n_out)}, but its states have "
            f"{file.n_embd} values; {BROKEN}"
        )
    return numbers


def _require_tokens(header: Header, file: GgufFile, table: TensorInfo) -> None:
    """Require that the table of the head's own tokens contains valid token ids."""
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


def _require_fit(header: Header, file: GgufFile, target: GgufFile, blocks: tuple[int, ...]) -> None:
    tensors = {tensor.name: tensor for tensor in file.tensors}
    n_embd = value(header, "target_hidden_size")
    if n_embd != target.n_embd:
        raise ArgumentError(
            f"is a head for a model with states of {short(n_embd)} values, but {target.path.name} "
            f"has {target.n_embd}"
        )
    strange = [block for block in blocks if not 1 <= block <= target.n_layer]
    if strange:
        raise ArgumentError(
            f"reads the states entering block {strange[0]}, but {target.path.name} has states at "
            f"1 to {target.n_layer}"
        )
    require_vocabulary(header, file, target)
    embedding, output = tensors.get(TOKEN_EMBEDDING), tensors.get(OUTPUT)
    if (embedding is None or output is None) and file.n_embd != target.n_embd:
        raise ArgumentError(
            f"has no {OUTPUT if embedding else TOKEN_EMBEDDING} and cannot use that of "
            f"{target.path.name}: states have {file.n_embd} and {target.n_embd} values"
        )
    if embedding is not None and embedding.shape[-1] != target.n_vocab:
        raise ArgumentError(
            f"embeds {embedding.shape[-1]} tokens, but {target.path.name} has {target.n_vocab}"
        )
    if output is None and OWN_TOKENS in tensors:
        raise ArgumentError(
            f"has tokens of its own ({OWN_TOKENS}) but no {OUTPUT} that goes with them"
        )


def _bytes_read(file: GgufFile, target: GgufFile) -> int:
    """Return the bytes read for one draft token: all tensors except the embedding, of which only
    one row is read."""
    own = sum(tensor.n_bytes for tensor in file.tensors if tensor.name != TOKEN_EMBEDDING)
    uses_target_output = not any(tensor.name == OUTPUT for tensor in file.tensors)
    return own + (target.head_bytes if uses_target_output else 0)
