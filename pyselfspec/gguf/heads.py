"""Checks the file of a draft head before llama.cpp sees it, by itself and against the model that it
drafts for; and finds the head that a model's own file may bring.

The heads with a file are those of EAGLE-3 (Li et al., https://arxiv.org/abs/2503.01840) as
llama.cpp's converter writes them. Where a file does not fit, llama.cpp would end the process.
Those of a model's own are a block behind the others (DeepSeek-AI, "DeepSeek-V3", section 2.2,
https://arxiv.org/abs/2412.19437).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ArgumentError, ModelFileError
from ..util import paths
from . import file as gguf_file
from .file import BLOCK_NAME, NOT_FOR_WEIGHTS, TOKEN_EMBEDDING, GgufFile
from .header import BROKEN, Header, TensorInfo, Value, read_header, short

ARCHITECTURE = "eagle3"
N_BLOCKS_READ = 3
OUTPUT = "output.weight"
OWN_TOKENS = "d2t"  # by token of the head, the model's
# Architectures whose own heads are known to work, and what the block of one cannot be without.
WITH_OWN_HEADS = frozenset({"glm4moe"})
NEEDED = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "ffn_gate_inp.weight")


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A checked head.

    blocks: of the model, whose entering states it reads; the model's own reads what its block
        behind the last one does.
    n_features: values of these states for one token.
    n_bytes_read: weight bytes that drafting one token reads.
    has_own_tokens: numbers tokens in its own way, and mostly knows some of the model's only.
    """

    file: GgufFile
    blocks: tuple[int, ...]
    n_features: int
    n_bytes_read: int
    has_own_tokens: bool = False


def check(path: Path, target: GgufFile) -> HeadFile:
    """Check a head's file, and that it is one for this model.

    Raises ModelFileError for a file that is no sound head, ArgumentError for one that does not fit.
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
    """The head in a model's own file; None where there is none, or none that is known to work."""
    if target.architecture not in WITH_OWN_HEADS:
        return None
    key = f"{target.architecture}.nextn_predict_layers"
    if read_header(target.path).metadata.get(key) != 1:
        return None
    tensors = {
        match[2]: tensor
        for tensor in target.tensors
        if (match := BLOCK_NAME.match(tensor.name)) and int(match[1]) == target.n_layer
    }
    if not all(name in tensors for name in NEEDED):
        return None  # the file was made without them
    block_bytes = sum(target.bytes_read(tensor) for tensor in tensors.values())
    embedding = tensors.get("nextn.embed_tokens.weight")
    lends_output = "nextn.shared_head_head.weight" not in tensors
    n_bytes = block_bytes - (embedding.n_bytes if embedding else 0)
    n_bytes += target.head_bytes if lends_output else 0
    return HeadFile(target, (target.n_layer + 1,), target.n_embd, n_bytes)


def tuned_path(fingerprint: str) -> Path:
    """Where the head is that was trained for a model with ``tune``, by the model's fingerprint."""
    return paths.data("heads") / f"{fingerprint[:32]}.gguf"


def has_tuned() -> bool:
    """Whether there is one for any model; spares the fingerprint."""
    return any(paths.data("heads").glob("*.gguf"))


def _require_sound(header: Header, file: GgufFile) -> tuple[int, ...]:
    """What llama.cpp asserts of a head by itself. Returns the blocks that it reads."""
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
    """The table of the head's own tokens must name tokens."""
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
    """Of one draft token: all but the embedding, of which it reads a row."""
    own = sum(tensor.n_bytes for tensor in file.tensors if tensor.name != TOKEN_EMBEDDING)
    lends_output = not any(tensor.name == OUTPUT for tensor in file.tensors)
    return own + (target.head_bytes if lends_output else 0)


def _value(header: Header, name: str) -> Value | None:
    return header.metadata.get(f"{ARCHITECTURE}.{name}")
