"""Heads of EAGLE-3 (Li et al., https://arxiv.org/abs/2503.01840) as llama.cpp's converter writes
them."""

from __future__ import annotations

from ...errors import ArgumentError, ModelFileError
from ..file import TOKEN_EMBEDDING, GgufFile
from ..header import BROKEN, Header
from .head_file import (
    OUTPUT,
    OWN_TOKENS,
    HeadFile,
    HeadFormat,
    bytes_read,
    require_blocks,
    require_own_tokens,
    require_states,
    require_types,
    require_vocabulary,
    require_width,
    value,
)

ARCHITECTURE = "eagle3"
N_BLOCKS_READ = 3
KIND = HeadFormat(fuses=True)


def read(header: Header, file: GgufFile, target: GgufFile) -> HeadFile:
    """Return the checked head. Raises what ``heads.check`` does."""
    _require_sound(header, file)
    _require_fit(header, file, target)
    blocks = require_blocks(header, target, N_BLOCKS_READ)
    return HeadFile(
        file,
        KIND,
        blocks,
        n_features=len(blocks) * target.n_embd,
        n_state=file.n_embd,
        n_bytes_read=bytes_read(file, target),
        has_own_tokens=any(tensor.name == OWN_TOKENS for tensor in file.tensors),
    )


def _require_sound(header: Header, file: GgufFile) -> None:
    """Raise ModelFileError for a head that llama.cpp would abort on."""
    if file.n_layer != 1:
        raise ModelFileError(f"has {file.n_layer} blocks, but a head has one; {BROKEN}")
    sizes = [value(header, f"attention.{name}_length") for name in ("key", "value")]
    if sizes[0] != sizes[1]:
        raise ModelFileError(
            f"K and V have heads of {sizes[0]} and {sizes[1]} values; they must be equal"
        )
    require_types(file, OWN_TOKENS)
    require_own_tokens(header, file)
    require_width(header, file)


def _require_fit(header: Header, file: GgufFile, target: GgufFile) -> None:
    tensors = {tensor.name: tensor for tensor in file.tensors}
    require_states(value(header, "target_hidden_size"), target)
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
