"""Drops, repeats, reorders and zeroes blocks of a model. All other weights are copied unchanged.

A model of some blocks computes the same as the whole model with a mask that skips the others. That
needs an architecture whose blocks differ only in their tensors and in metadata per block. The lists
below come from the pinned llama.cpp; every architecture in them was compared with masks, bit for
bit, on upstream's toy models. Others are refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from gguf import GGUFValueType
from gguf.gguf_writer import GGUFValue

from ..errors import ArgumentError, MaskError, ModelFileError, UnsupportedError
from ..gguf.hparams import BLOCK_NAME, MAX_BLOCKS
from ..masks.layer_mask import LayerMask
from ..runtime.model import MASK_KEY
from .stream import PIECE_BYTES, Copy, Metadata, Source, StoredTensor, Tensor

BLOCK_COUNT = "block_count"
WINDOW = "attention.sliding_window"
WINDOW_PATTERN = "attention.sliding_window_pattern"

# Architectures whose blocks differ only in tensors and the metadata of PER_BLOCK_KEYS.
UNIFORM = frozenset(
    "arcee arctic baichuan bloom chatglm codeshell dbrx deci dream ernie4_5 exaone falcon gemma "
    "gpt2 gptneox grok grovemoe hunyuan-dense internlm2 jais jais2 llada llada-moe llama maincoder "
    "minimax-m2 mistral3 mpt nemotron olmo olmoe openelm orion paddleocr pangu-embedded phi2 phi3 "
    "phimoe plamo qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe refact rnd1 seed_oss stablelm "
    "starcoder starcoder2 xverse".split()
)
# Uniform except for the attention window: without a flag per block in the file, the last of each n
# blocks has none.
WINDOW_PERIOD = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gpt-oss": 2,
    "mellum": 4,
    "olmo2": 4,
    "plamo3": 8,
}

PER_BLOCK_KEYS = (
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_used_count",
    "attention.head_count",
    "attention.head_count_kv",
    WINDOW_PATTERN,
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)

# llama.cpp identifies a certain model by this number of blocks and computes it differently.
SPECIAL_COUNT = {"baichuan": 40, "gemma2": 46, "gemma3": 62}

# Reasons to refuse others: by metadata keys, and by architecture.
ROLE_KEYS = {
    "nextn_predict_layers": "has extra blocks at the end that predict a later token",
    "leading_dense_block_count": "has no experts in its first blocks",
    "interleave_moe_layer_step": "has experts in every n-th block",
    "full_attention_interval": "has attention in every n-th block",
    "attention.recurrent_layers": "has recurrent blocks",
    "ssm.state_size": "has recurrent blocks",
    "attention.shared_kv_layers": "has blocks that use the K/V of others",
}
_NO_ROTARY = "every n-th block goes without rotary embedding"
ROLE_BY_PLACE = {
    "afmoe": _NO_ROTARY,
    "command-r": "models of 64 and more blocks normalize queries and keys",
    "exaone4": "only models of 64 blocks have attention windows",
    "gemma3n": "late blocks use the K/V of others",
    "hrm_text": "blocks run several times",
    "llama4": _NO_ROTARY,
    "minicpm": "what a block adds is scaled by their number",
    "minicpm3": "what a block adds is scaled by their number",
    "nanbeige": "blocks run several times",
    "smallthinker": _NO_ROTARY,
    "smollm3": _NO_ROTARY,
}

# Tensors that end a sublayer: if these are zero, it adds nothing, biases and experts included.
SUBLAYER_OUTPUT = {
    "attention": re.compile(r"attn_output\.(weight|bias)"),
    "feed-forward part": re.compile(r"ffn_down(_exps|_shexp|_chexps)?\.(weight|bias)"),
}


def relayer(
    source: Source,
    blocks: Sequence[int] | None = None,
    *,
    zero_attn: Collection[int] = (),
    zero_ffn: Collection[int] = (),
) -> Copy:
    """Return the model made of these blocks, in this order; a block may occur several times.

    blocks: default: all. zero_attn, zero_ffn: blocks whose attention or feed-forward part is
    zeroed, as if a mask skipped it. All numbers are block numbers of the source.

    Raises ArgumentError for blocks that do not exist, UnsupportedError for architectures whose
    blocks cannot be moved.
    """
    n_layer = source.file.n_layer
    order = tuple(range(n_layer)) if blocks is None else tuple(blocks)
    for numbers in (order, zero_attn, zero_ffn):
        _require_blocks(numbers, n_layer)
    if not 1 <= len(order) <= MAX_BLOCKS:
        raise ArgumentError(f"a model has 1 to {MAX_BLOCKS} blocks, got {len(order)}")
    _require_uniform(source, len(order))
    zeroed = {("attention", il) for il in zero_attn} | {
        ("feed-forward part", il) for il in zero_ffn
    }
    tensors = _zero_sublayers(source, zeroed)
    return Copy(source, _metadata(source, order), tuple(_reorder(tensors, order)))


def _require_blocks(numbers: Collection[int], n_layer: int) -> None:
    for il in numbers:
        if not 0 <= il < n_layer:
            raise ArgumentError(f"no block {il}: the model has blocks 0 to {n_layer - 1}")


def _require_uniform(source: Source, n_new: int) -> None:
    architecture = source.file.architecture
    for name, reason in ROLE_KEYS.items():
        if np.any(source.value(source.key(name))):
            raise UnsupportedError(
                f"this {architecture} model {reason}: its blocks cannot be moved"
            )
    if architecture not in UNIFORM | WINDOW_PERIOD.keys():
        reason = ROLE_BY_PLACE.get(architecture, "they may depend on their position")
        raise UnsupportedError(f"blocks of {architecture} models cannot be moved: {reason}")
    special = SPECIAL_COUNT.get(architecture)
    if special is not None and (source.file.n_layer == special) != (n_new == special):
        raise UnsupportedError(
            f"llama.cpp computes {architecture} models of {special} blocks differently from all "
            f"others, so {source.file.n_layer} blocks cannot become {n_new}"
        )


#
# metadata
#


def _metadata(source: Source, order: tuple[int, ...]) -> Metadata:
    count = source.key(BLOCK_COUNT)
    metadata = source.metadata | {count: GGUFValue(len(order), source.metadata[count].type)}
    if pattern := _window_pattern(source):
        metadata[source.key(WINDOW_PATTERN)] = pattern
    for key in map(source.key, PER_BLOCK_KEYS):
        if key in metadata and metadata[key].type == GGUFValueType.ARRAY:
            metadata[key] = _reorder_values(source, key, metadata[key], order)
    _require_window(source, metadata)
    metadata.pop(MASK_KEY, None)
    if mask := _draft_mask(source, order):
        metadata[MASK_KEY] = GGUFValue(mask.to_json().encode(), GGUFValueType.STRING)
    return metadata


def _reorder_values(
    source: Source, key: str, per_block: GGUFValue, order: tuple[int, ...]
) -> GGUFValue:
    values, n_layer = per_block.value, source.file.n_layer
    if len(values) != n_layer:
        raise ModelFileError(
            f"{source.file.path}: {key} has {len(values)} values for {n_layer} blocks"
        )
    return GGUFValue([values[il] for il in order], per_block.type, per_block.sub_type)


def _window_pattern(source: Source) -> GGUFValue | None:
    """Return one flag per block if llama.cpp decides by a period which blocks have a window."""
    period = WINDOW_PERIOD.get(source.file.architecture)
    given: Any = source.value(source.key(WINDOW_PATTERN))
    if period is None or not _has_windows(source) or isinstance(given, list):
        return None
    period = period if given is None else int(given)
    has_window = [not period or il % period < period - 1 for il in range(source.file.n_layer)]
    return GGUFValue(has_window, GGUFValueType.ARRAY, GGUFValueType.BOOL)


def _has_windows(source: Source) -> bool:
    size = source.value(source.key(WINDOW))
    return bool(size) or (size is None and source.file.architecture == "gemma2")  # 4096 by default


def _require_window(source: Source, metadata: Metadata) -> None:
    pattern = metadata.get(source.key(WINDOW_PATTERN))
    if pattern and _has_windows(source) and not any(pattern.value):
        raise UnsupportedError(
            "none of these blocks has an attention window; llama.cpp requires at least one"
        )


def _draft_mask(source: Source, order: tuple[int, ...]) -> LayerMask | None:
    """Return the draft mask for the new order, None if it would skip nothing or everything."""
    text = source.value(MASK_KEY)
    if not isinstance(text, bytes):
        return None
    try:
        mask = LayerMask.from_json(text.decode(errors="replace")).require(source.file.n_layer)
    except MaskError as error:
        raise MaskError(f"{source.file.path}, key {MASK_KEY}: {error}") from None
    attn, ffn = (
        frozenset(new for new, old in enumerate(order) if old in skipped)
        for skipped in (mask.skip_attn, mask.skip_ffn)
    )
    useful = 0 < len(attn) + len(ffn) < 2 * len(order)
    return LayerMask(len(order), attn, ffn) if useful else None


#
# tensors
#


def _reorder(tensors: Sequence[Tensor], order: tuple[int, ...]) -> Iterator[Tensor]:
    """Yield the tensors outside blocks first, then block by block."""
    of_block: dict[int, list[tuple[str, Tensor]]] = defaultdict(list)
    for tensor in tensors:
        if match := BLOCK_NAME.match(tensor.name):
            of_block[int(match[1])].append((match[2], tensor))
        else:
            yield tensor
    for new, old in enumerate(order):
        for name, tensor in of_block[old]:
            yield Tensor(f"blk.{new}.{name}", tensor.type, tensor.shape, tensor.pieces)


def _zero_sublayers(source: Source, zeroed: set[tuple[str, int]]) -> list[Tensor]:
    """Return the tensors, with zeros in those that end one of these sublayers."""
    ends = [(tensor, _sublayer_ended(tensor.name)) for tensor in source.tensors]
    if missing := zeroed - {sublayer for _tensor, sublayer in ends}:
        part, il = min(missing)
        raise ArgumentError(f"block {il} has no {part}")
    return [_zeros(tensor) if sublayer in zeroed else tensor.copy() for tensor, sublayer in ends]


def _sublayer_ended(name: str) -> tuple[str, int] | None:
    """Return the sublayer that ends in this tensor and its block, None if none does."""
    if match := BLOCK_NAME.match(name):
        for part, pattern in SUBLAYER_OUTPUT.items():
            if pattern.fullmatch(match[2]):
                return part, int(match[1])
    return None


def _zeros(tensor: StoredTensor) -> Tensor:
    """Return the tensor with zeros: zero bytes are zero values in every type of ggml."""
    n_full, rest = divmod(tensor.rows.size, PIECE_BYTES)
    zeros = np.zeros(min(PIECE_BYTES, tensor.rows.size), np.uint8)
    return Tensor(tensor.name, tensor.type, tensor.shape, [zeros] * n_full + [zeros[:rest]])
