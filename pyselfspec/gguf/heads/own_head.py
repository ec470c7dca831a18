"""Find and check the draft head in a model's own file: one block or more after the others
(DeepSeek-AI, "DeepSeek-V3", section 2.2, https://arxiv.org/abs/2412.19437)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ModelFileError, UnsupportedError
from ..file import NOT_FOR_WEIGHTS, GgufFile
from ..header import TensorInfo, Value, read_header, short
from ..hparams import BLOCK_NAME, N_STREAMS
from .head_file import HeadFile, HeadFormat

BLOCK_INPUT = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")  # in each block of a head


@dataclass(frozen=True, slots=True)
class OwnHeads:
    """The demands of one architecture on the heads in its files. llama.cpp ends the process where
    such a head does not meet them.

    tensors: weights that the block needs in addition to BLOCK_INPUT.
    n_most: most blocks of this kind in a file, of which each drafts at a position of its own; 0:
        any number.
    not_with: metadata that llama.cpp does not support together with a head.
    has_streams: whether hyper-connections keep several states per token, which the head reads.
    """

    tensors: tuple[str, ...] = ()
    n_most: int = 0
    not_with: tuple[str, ...] = ()
    has_streams: bool = False


_LATENT = ("attn_k_b", "attn_q_a", "ffn_gate_inp")
# Architectures whose files may contain a head that llama.cpp can run.
OWN_HEADS = {
    "cohere2moe": OwnHeads(("ffn_gate_inp",), 1),
    "deepseek2": OwnHeads((*_LATENT, "ffn_gate_shexp"), 1, ("attention.temperature_scale",)),
    "deepseek32": OwnHeads(_LATENT, 1),
    "deepseek4": OwnHeads(("ffn_gate_inp", "hc_attn_fn", "hc_ffn_fn"), 1, has_streams=True),
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


def own(target: GgufFile) -> HeadFile | None:
    """Return the head in a model's own file; None if there is none.

    Raises UnsupportedError for a head that llama.cpp cannot run, ModelFileError for a broken one.
    """
    tensors = _in_block(target, target.n_layer)
    if not any(name.startswith("nextn.") for name in tensors):
        return None  # the file was made without it
    metadata = read_header(target.path).metadata
    n_blocks = metadata.get(f"{target.architecture}.nextn_predict_layers")
    if not n_blocks:
        return None
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
    n_state = target.n_embd * (N_STREAMS if known.has_streams else 1)
    return HeadFile(
        target,
        HeadFormat(n_first=1, n_chained=_n_blocks(n_blocks)),
        (target.n_layer + 1,),
        n_features=n_state,
        n_state=n_state,
        n_bytes_read=n_bytes,
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
    if known.has_streams:
        _require_streams(metadata, target)
    else:
        _require_width(metadata, target)
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


def _require_width(metadata: Mapping[str, Value], target: GgufFile) -> None:
    n_out = metadata.get(f"{target.architecture}.embedding_length_out", target.n_embd)
    if n_out != target.n_embd:
        raise ModelFileError(
            f"{target.architecture}.embedding_length_out is {short(n_out)}, but its draft head "
            f"leaves states of {target.n_embd} values"
        )


def _require_streams(metadata: Mapping[str, Value], target: GgufFile) -> None:
    """Require a head that sees all K and V in its window, and chooses experts by its state."""
    n_hashed = metadata.get(f"{target.architecture}.hash_layer_count", 0)
    if isinstance(n_hashed, int) and n_hashed > target.n_layer:
        raise UnsupportedError("llama.cpp cannot run a draft head whose experts are chosen by hash")
    ratios = metadata.get(f"{target.architecture}.attention.compress_ratios")
    if isinstance(ratios, tuple) and any(ratios[target.n_layer : target.n_layer + 1]):
        raise UnsupportedError("llama.cpp cannot run a draft head with compressed K/V")
