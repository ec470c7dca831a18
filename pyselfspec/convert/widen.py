"""Makes a wider model that computes the same function: k copies of everything, side by side.

Each matrix W becomes k x k copies of itself, so that k equal parts of its input give k equal parts
of its output, each a sum of k equal terms. Matrices are not divided by k; the norms before them are
k times smaller instead. The outputs of attention and feed-forward parts are then k times larger,
and so is the embedding they are added to; the norms after it cancel that, with an epsilon k^2 times
larger. So quantized blocks are copied unchanged, and only vectors and the embedding change. The
head size, and with it rotary embedding and K/V per head, does not change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, LlamaFileType, quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.gguf_writer import GGUFValue

from ..errors import ArgumentError, ModelFileError, UnsupportedError
from ..gguf.file import TOKEN_EMBEDDING
from ..gguf.header import BROKEN
from .stream import PIECE_BYTES, Bytes, Copy, Metadata, Source, StoredTensor, Tensor

Type = GGMLQuantizationType
ARCHITECTURES = ("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe")
FLOATS = {  # with the file type of a model of them
    Type.F32: LlamaFileType.ALL_F32,
    Type.F16: LlamaFileType.MOSTLY_F16,
    Type.BF16: LlamaFileType.MOSTLY_BF16,
}
HEAD = "output.weight"
EPSILON = "attention.layer_norm_rms_epsilon"
WIDTH_KEYS = (
    "embedding_length",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Number of copies of a tensor along its outputs and inputs, 1 or k, and the power of k that
    multiplies its values."""

    outputs: bool = False
    inputs: bool = False
    power: int = 0


_BLOCK = r"(blk\.\d+\.)?"
_MATRICES = r"(attn_(q|k|v|output)|ffn_(gate|up|down)(_exps|_shexp)?)"
RULES = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"token_embd\.weight", Rule(inputs=True, power=1)),
        (_BLOCK + r"(attn|ffn|output)_norm\.weight", Rule(inputs=True, power=-1)),
        (_BLOCK + _MATRICES + r"\.weight", Rule(outputs=True, inputs=True)),
        (_BLOCK + _MATRICES + r"\.bias", Rule(inputs=True)),
        (r"output\.weight|" + _BLOCK + r"ffn_gate_inp(_shexp)?\.weight", Rule(inputs=True)),
        (_BLOCK + r"attn_[qk]_norm\.weight|output\.bias|rope_\w+\.weight", Rule()),
    )
)
# Norms of queries and keys use the same epsilon, so their inputs must be k times larger, too.
QUERY_KEY = re.compile(r"blk\.\d+\.attn_[qk]\.(weight|bias)")
QUERY_KEY_NORM = re.compile(r"blk\.\d+\.attn_[qk]_norm\.weight")

# The float16 numbers in a block that all its values are proportional to.
SCALES = {
    Type.F16: slice(0, 2),
    Type.Q4_0: slice(0, 2),
    Type.Q4_1: slice(0, 4),
    Type.Q5_0: slice(0, 2),
    Type.Q5_1: slice(0, 4),
    Type.Q8_0: slice(0, 2),
    Type.Q4_K: slice(0, 4),
    Type.Q5_K: slice(0, 4),
    Type.Q6_K: slice(208, 210),
}


def widen(source: Source, factor: int, dequantized: Type | None = None) -> Copy:
    """Return a model of `factor` times the width, with factor^2 times the weights, that computes
    the same function except for rounding, since sums have other orders.

    Tensors that must be multiplied become F32 if their type cannot hold the products exactly.
    dequantized: F32, F16 or BF16 for all quantized matrices, so that they can be quantized again.

    Raises ArgumentError for a factor below 2 or too large, UnsupportedError for an unsupported
    architecture or tensor.
    """
    _require_supported(source)
    metadata = _metadata(source, factor)
    if dequantized is not None:
        metadata["general.file_type"] = GGUFValue(int(FLOATS[dequantized]), GGUFValueType.UINT32)
    has_norms = any(QUERY_KEY_NORM.fullmatch(tensor.name) for tensor in source.tensors)
    tensors = [
        _widen_tensor(tensor, _rule(tensor.name, has_norms), factor, dequantized)
        for tensor in source.tensors
    ]
    if source.file.tied_embeddings:  # the head is not multiplied, the embedding is
        heads = [replace(t, name=HEAD) for t in source.tensors if t.name == TOKEN_EMBEDDING]
        tensors += [_widen_tensor(head, _rule(HEAD), factor, dequantized) for head in heads]
    return Copy(source, metadata, tuple(tensors))


def n_params(source: Source, factor: int) -> int:
    """Return the number of parameters of the widened model. Raises the errors of ``widen``."""
    return sum(math.prod(tensor.shape) for tensor in widen(source, factor).tensors)


def _require_supported(source: Source) -> None:
    architecture = source.file.architecture
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{architecture} models cannot be widened; supported are {', '.join(ARCHITECTURES)}"
        )


def _rule(name: str, has_query_key_norms: bool = False) -> Rule:
    for pattern, rule in RULES:
        if pattern.fullmatch(name):
            if has_query_key_norms and QUERY_KEY.fullmatch(name):
                return replace(rule, power=1)
            return rule
    raise UnsupportedError(f"tensor {name!r} cannot be widened: its role is unknown")


def _metadata(source: Source, factor: int) -> Metadata:
    if factor < 2:
        raise ArgumentError(f"the factor is 2 or more, got {factor}")
    metadata = dict(source.metadata)
    for key in map(source.key, WIDTH_KEYS):
        if key in metadata:
            metadata[key] = _times(metadata[key], factor)
    key = source.key(EPSILON)
    if key not in metadata:
        raise ModelFileError(f"{source.file.path}: has no {key!r}; {BROKEN}")
    metadata[key] = _times(metadata[key], factor**2)
    if metadata[key].value >= 1:  # the limit of the file check
        raise ArgumentError(f"the factor {factor} is too large: {key} would be 1 or more")
    name = source.value("general.name")
    name = name if isinstance(name, bytes) else source.file.path.stem.encode()
    title = name + f", widened {factor} times".encode()
    metadata["general.name"] = GGUFValue(title, GGUFValueType.STRING)
    return metadata


def _times(value: GGUFValue, factor: int) -> GGUFValue:
    number = value.value
    product = [n * factor for n in number] if isinstance(number, list) else number * factor
    return GGUFValue(product, value.type, value.sub_type)


#
# tensors
#


def _widen_tensor(
    tensor: StoredTensor, rule: Rule, factor: int, dequantized: Type | None
) -> Tensor:
    *outer, n_in = tensor.shape
    if rule.outputs and not outer:
        raise UnsupportedError(f"tensor {tensor.name!r} cannot be widened: it is not a matrix")
    shape = (*outer, n_in * factor if rule.inputs else n_in)
    if rule.outputs:
        shape = (*shape[:-2], shape[-2] * factor, shape[-1])
    new_type = tensor.type if dequantized is None or tensor.type in FLOATS else dequantized
    if rule.power > 0 and not _exact(new_type, factor):
        new_type = Type.F32
    return Tensor(tensor.name, new_type, shape, _pieces(tensor, rule, factor, new_type))


def _exact(ggml_type: Type, factor: int) -> bool:
    """Whether the type holds values multiplied by the factor exactly."""
    return ggml_type == Type.F32 or (ggml_type in SCALES and factor.bit_count() == 1)


def _pieces(tensor: StoredTensor, rule: Rule, factor: int, new_type: Type) -> Iterator[Bytes]:
    """Yield the wide tensor, some rows at a time; experts' matrices are widened one by one."""
    n_out = tensor.shape[-2] if len(tensor.shape) > 1 else 1
    n_row_bytes = factor * max(tensor.rows.shape[1], 4 * tensor.shape[-1])  # 4: as F32
    step = max(1, PIECE_BYTES // n_row_bytes)
    for first in range(0, len(tensor.rows), n_out):
        for _ in range(factor if rule.outputs else 1):
            for start in range(first, first + n_out, step):
                rows = tensor.rows[start : min(start + step, first + n_out)]
                changed = _multiply(tensor, rows, float(factor) ** rule.power, new_type)
                yield np.tile(changed, (1, factor if rule.inputs else 1))


def _multiply(tensor: StoredTensor, rows: Bytes, by: float, new_type: Type) -> Bytes:
    """Return rows with multiplied values, as bytes of the new type."""
    if by == 1 and new_type == tensor.type:
        return rows
    if new_type == tensor.type and new_type in SCALES:
        return _multiply_scales(tensor.name, rows, by, new_type)
    try:
        values = quants.dequantize(rows, tensor.type)
    except NotImplementedError:
        raise UnsupportedError(
            f"tensor {tensor.name!r} is {tensor.type.name}, which gguf-py cannot dequantize"
        ) from None
    return np.ascontiguousarray(quants.quantize(values * np.float32(by), new_type)).view(np.uint8)


def _multiply_scales(name: str, rows: Bytes, by: float, ggml_type: Type) -> Bytes:
    """Return rows with multiplied scales of blocks; the quantized values do not change."""
    _block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    blocks = np.array(rows).reshape(-1, block_bytes)
    scales = np.ascontiguousarray(blocks[:, SCALES[ggml_type]]).view(np.float16)
    with np.errstate(over="ignore"):
        products = scales * np.float16(by)
    if np.any(np.isinf(products)):
        raise ArgumentError(f"{name!r} has values too large for {ggml_type.name} when multiplied")
    blocks[:, SCALES[ggml_type]] = products.view(np.uint8)
    return blocks.reshape(rows.shape)
