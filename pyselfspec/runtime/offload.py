"""How many layers of a model fit into the memory of devices. Pure; knows files and bytes only."""

from __future__ import annotations

from itertools import accumulate

from ..gguf.file import BLOCK_NAME, GgufFile
from ..util.sizes import size_text
from .kv_types import CACHE_TYPE

AUTO = "auto"  # as many layers as fit
N_CTX = 4096  # tokens of context that AUTO leaves room for
N_OUTPUTS = 512  # rows of logits for which llama.cpp plans its memory
LOGIT_BYTES = 4
SPARE_BYTES = 64 << 20  # for each device: graphs, and the states of a pass between blocks


def layer_bytes(file: GgufFile, n_ctx: int, type_k: str, type_v: str) -> tuple[int, ...]:
    """Return the bytes that each block takes on a device with K and V of n_ctx tokens, and as the
    last number those of the head. K and V count as if all blocks had as much."""
    weights = [0] * file.n_layer
    for tensor in file.tensors:
        match = BLOCK_NAME.match(tensor.name)
        if match and int(match[1]) < file.n_layer:
            weights[int(match[1])] += tensor.n_bytes
    kv = file.kv_bytes(n_ctx, type_k, type_v) // max(1, file.n_layer)
    head = file.head_bytes + N_OUTPUTS * LOGIT_BYTES * file.n_vocab
    return (*(each + kv for each in weights), head)


def needed_bytes(
    file: GgufFile,
    n_layers: int,
    n_ctx: int = N_CTX,
    type_k: str = CACHE_TYPE,
    type_v: str = CACHE_TYPE,
) -> int:
    """Return about how many bytes n_layers layers take on a device with a context of n_ctx
    tokens."""
    layers = layer_bytes(file, n_ctx, type_k, type_v)
    return SPARE_BYTES + sum(layers[len(layers) - n_layers :] if n_layers else ())


def fitting(
    file: GgufFile,
    n_free: int,
    n_ctx: int = N_CTX,
    type_k: str = CACHE_TYPE,
    type_v: str = CACHE_TYPE,
) -> int:
    """Return how many layers fit into n_free bytes, counted from the head, the last one."""
    sums = accumulate(reversed(layer_bytes(file, n_ctx, type_k, type_v)))
    return sum(SPARE_BYTES + each <= n_free for each in sums)


def shortage(
    file: GgufFile,
    n_layers: int,
    n_free: int,
    n_ctx: int = N_CTX,
    type_k: str = CACHE_TYPE,
    type_v: str = CACHE_TYPE,
) -> str:
    """Return why n_layers layers do not fit on devices, as part of a message; "" where they
    should fit."""
    needed = needed_bytes(file, n_layers, n_ctx, type_k, type_v)
    if not n_layers or needed <= n_free:
        return ""
    n_fit = fitting(file, n_free, n_ctx, type_k, type_v)
    return (
        f"{n_layers} layers with {n_ctx} tokens of context need about {size_text(needed)} of "
        f"device memory, and {size_text(n_free)} are free, enough for {n_fit}"
    )
