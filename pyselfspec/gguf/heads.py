"""Check the file of a draft head before llama.cpp reads it, alone and against its target model; and
find the head that a model's own file may contain.

Heads with a file of their own are those of EAGLE-3 (Li et al., https://arxiv.org/abs/2503.01840) as
llama.cpp's converter writes them. If such a file does not fit, llama.cpp would end the process.
Heads in a model's file are a block after the others (DeepSeek-AI, "DeepSeek-V3", section 2.2,
https://arxiv.org/abs/2412.19437).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ArgumentError, ModelFileError, UnsupportedError
from ..util import paths
from . import file as gguf_file
from .file import BLOCK_NAME, NOT_FOR_WEIGHTS, TOKEN_EMBEDDING, GgufFile
from .header import BROKEN, Header, TensorInfo, Value, read_header, short

ARCHITECTURE = "eagle3"
N_BLOCKS_READ = 3
OUTPUT = "output.weight"
OWN_TOKENS = "d2t"  # by token of the head: the model's token
BLOCK_INPUT = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")  # in each block of a head


@dataclass(frozen=True, slots=True)
class OwnHeads:
    """The demands of one architecture on the heads in its files. llama.cpp ends the process where
    such a head does not meet them.

    tensors: weights that the block needs in addition to BLOCK_INPUT.
    n_most: most blocks of this kind in a file, of which each drafts at a position of its own; 0:
        any number.
    not_with: metadata that llama.cpp does not support together with a head.
    """

    tensors: tuple[str, ...] = ()
    n_most: int = 0
    not_with: tuple[str, ...] = ()


_LATENT = ("attn_k_b", "attn_q_a", "ffn_gate_inp")
# Architectures whose files may contain a head that llama.cpp can run.
OWN_HEADS = {
    "cohere2moe": OwnHeads(("ffn_gate_inp",), 1),
    "deepseek2": OwnHeads((*_LATENT, "ffn_gate_shexp"), 1, ("attention.temperature_scale",)),
    "deepseek32": OwnHeads(_LATENT, 1),
    "glm-dsa": OwnHeads(_LATENT, 1),
    "glm4moe": OwnHeads(("ffn_gate_inp",), 1, ("rope.dimension_sections",)),
    "hy_v3": OwnHeads(),
    "mimo2": OwnHeads(("attn_qkv", "ffn_gate", "ffn_up", "ffn_down")),
    "step35": OwnHeads(),
    # Hybrid models, whose head has attention only.
    "bailingmoe3": OwnHeads(("layer_output_norm",), 1),
    "nemotron_h_moe": OwnHeads(("ffn_gate_inp", "nextn.shared_head_norm"), 1),
    "qwen35": OwnHeads(n_most=1),
    "qwen35moe": OwnHeads(("ffn_gate_inp",), 1),
    "qwen3next": OwnHeads(("ffn_gate_inp",), 1),
}


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A checked head.

    blocks: blocks of the model whose entering states the head reads; a head in the model's file
        reads the states for the block after the last one.
    n_features: number of values of these states for one token.
    n_bytes_read: weight bytes that drafting one token reads.
    has_own_tokens: whether it has a vocabulary of its own, usually a part of the model's.
    n_blocks: number of blocks, of which block k drafts the token k + 1 after the next one.
    """

    file: GgufFile
    blocks: tuple[int, ...]
    n_features: int
    n_bytes_read: int
    has_own_tokens: bool = False
    n_blocks: int = 1


def check(path: Path, target: GgufFile) -> HeadFile:
    """Check the file of a head, and that the head fits this model.

    Raises ModelFileError for a file that is not a valid head, ArgumentError for one that does not
    fit.
    """
    file = gguf_file.check(path)
    if file.architecture != ARCHITECTURE:
        raise ModelFileError(
            f"{path}: is a model of the architecture {file.architecture}, not a draft head "
            f"({ARCHITECTURE}): give the file of a head"
        )
    header = read_header(path)
    try:
        blocks = _require_sound(header, file)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    try:
        _require_fit(header, file, target, blocks)
    except ArgumentError as error:
        raise ArgumentError(
            f"{path}: {error}; take the head that was made for this model"
        ) from None
    return HeadFile(
        file,
        blocks,
        n_features=len(blocks) * target.n_embd,
        n_bytes_read=_bytes_read(file, target),
        has_own_tokens=any(tensor.name == OWN_TOKENS for tensor in file.tensors),
    )


def own(target: GgufFile) -> HeadFile | None:
    """Return the head in a model's own file; None if there is none.

    Raises UnsupportedError for a head that llama.cpp cannot run, ModelFileError for a broken one.
    """
    metadata = read_header(target.path).metadata
    n_blocks = metadata.get(f"{target.architecture}.nextn_predict_layers")
    tensors = _in_block(target, target.n_layer)
    if not n_blocks or not any(name.startswith("nextn.") for name in tensors):
        return None  # the file was made without it
    known = OWN_HEADS.get(target.architecture)
    if known is None:
        raise UnsupportedError(
            f"draft heads in files of the architecture {target.architecture} are not supported"
        )
    _require_own(known, n_blocks, metadata, target)
    block_bytes = sum(target.bytes_read(tensor) for tensor in tensors.values())
    embedding = tensors.get("nextn.embed_tokens.weight")
    uses_target_output = "nextn.shared_head_head.weight" not in tensors
    n_bytes = block_bytes - (embedding.n_bytes if embedding else 0)
    n_bytes += target.head_bytes if uses_target_output else 0
    return HeadFile(
        target, (target.n_layer + 1,), target.n_embd, n_bytes, n_blocks=_n_blocks(n_blocks)
    )


def _in_block(target: GgufFile, block: int) -> dict[str, TensorInfo]:
    """Return the tensors of a block by their names in it."""
    return {
        match[2]: tensor
        for tensor in target.tensors
        if (match := BLOCK_NAME.match(tensor.name)) and int(match[1]) == block
    }


def _n_blocks(value: Value) -> int:
    """Return the number of blocks that a file announces; llama.cpp loads no file with another kind
    of value."""
    return value if isinstance(value, int) else 1


def _require_own(
    known: OwnHeads, n_blocks: Value, metadata: Mapping[str, Value], target: GgufFile
) -> None:
    """Raise what ``own`` does for a head that llama.cpp would abort on."""
    if known.n_most and n_blocks != known.n_most:
        raise UnsupportedError(
            f"its draft head has {short(n_blocks)} blocks, and llama.cpp runs those of "
            f"{target.architecture} with one block only"
        )
    for name in known.not_with:
        key = f"{target.architecture}.{name}"
        value = metadata.get(key)
        if any(value) if isinstance(value, tuple) else value:
            raise UnsupportedError(f"llama.cpp cannot run its draft head together with {key}")
    for block in range(target.n_layer, target.n_layer + _n_blocks(n_blocks)):
        tensors = _in_block(target, block)
        for name in (*BLOCK_INPUT, *known.tensors):
            if f"{name}.weight" not in tensors:
                raise ModelFileError(f"its draft head lacks blk.{block}.{name}.weight")
        for tensor in tensors.values():
            if len(tensor.shape) > 1 and tensor.type in NOT_FOR_WEIGHTS:
                raise ModelFileError(
                    f"tensor {tensor.name!r} of its draft head is {tensor.type}, which is no type "
                    "for weights"
                )


def tuned_path(fingerprint: str) -> Path:
    """Return the path of the head that ``tune`` trained for the model of this fingerprint."""
    return paths.data("heads") / f"{fingerprint[:32]}.gguf"


def has_tuned() -> bool:
    """Return whether any model has a trained head; does not need the fingerprint."""
    return any(paths.data("heads").glob("*.gguf"))


def _require_sound(header: Header, file: GgufFile) -> tuple[int, ...]:
    """Raise ModelFileError for a head that llama.cpp would abort on. Returns the target's blocks
    that it reads."""
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if file.n_layer != 1:
        raise ModelFileError(f"has {file.n_layer} blocks, but a head has one; {BROKEN}")
    sizes = [_value(header, f"attention.{name}_length") for name in ("key", "value")]
    if sizes[0] != sizes[1]:
        raise ModelFileError(
            f"K and V have heads of {sizes[0]} and {sizes[1]} values; they must be equal"
        )
    for tensor in file.tensors:
        one_row = len(tensor.shape) == 1
        if one_row and tensor.type != "F32" and tensor.name != OWN_TOKENS:
            raise ModelFileError(f"tensor {tensor.name!r} is {tensor.type}, but must be F32")
        if not one_row and tensor.type in NOT_FOR_WEIGHTS:
            raise ModelFileError(
                f"tensor {tensor.name!r} is {tensor.type}, which is no type for weights: "
                "convert the head again"
            )
    if OWN_TOKENS in tensors:
        _require_tokens(header, file, tensors[OWN_TOKENS])
    blocks = _value(header, "target_layers")
    if not (isinstance(blocks, tuple) and len(blocks) == N_BLOCKS_READ):
        raise ModelFileError(
            f"{ARCHITECTURE}.target_layers is {short(blocks)}, not {N_BLOCKS_READ} blocks; {BROKEN}"
        )
    return tuple(int(block) for block in blocks)


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
    n_embd = _value(header, "target_hidden_size")
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
    _require_vocabulary(header, file, target)
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


def _require_vocabulary(header: Header, file: GgufFile, target: GgufFile) -> None:
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


def _bytes_read(file: GgufFile, target: GgufFile) -> int:
    """Return the bytes read for one draft token: all tensors except the embedding, of which only
    one row is read."""
    own = sum(tensor.n_bytes for tensor in file.tensors if tensor.name != TOKEN_EMBEDDING)
    uses_target_output = not any(tensor.name == OUTPUT for tensor in file.tensors)
    return own + (target.head_bytes if uses_target_output else 0)


def _value(header: Header, name: str) -> Value | None:
    return header.metadata.get(f"{ARCHITECTURE}.{name}")
