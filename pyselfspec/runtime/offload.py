"""How many layers of a model fit into the memory of devices. Pure; knows files and bytes only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from ..gguf.file import GgufFile
from ..gguf.hparams import BLOCK_NAME
from ..util.sizes import size_text
from .kv_types import CACHE_TYPE

AUTO = "auto"  # as many layers as fit
N_CTX = 4096  # tokens of context that AUTO leaves room for
N_OUTPUTS = 512  # rows of logits for which llama.cpp plans its memory
LOGIT_BYTES = 4
SPARE_BYTES = 64 << 20  # for each device: graphs, and the states of a pass between blocks


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The K and V that a context keeps beside the weights: of n_ctx tokens, in these types."""

    n_ctx: int = N_CTX
    type_k: str = CACHE_TYPE
    type_v: str = CACHE_TYPE

    def bytes_of(self, file: GgufFile) -> int:
        """Return the bytes of K and V over all blocks of a model."""
        return file.kv_bytes(self.n_ctx, self.type_k, self.type_v)


DEFAULT_SIZE = ContextSize()


def layer_bytes(file: GgufFile, size: ContextSize) -> tuple[int, ...]:
    """Return the bytes that each block takes on a device with its K and V, and as the last number
    those of the head. K and V count as if all blocks had as much."""
    weights = [0] * file.n_layer
    for tensor in file.tensors:
        match = BLOCK_NAME.match(tensor.name)
        if match and int(match[1]) < file.n_layer:
            weights[int(match[1])] += tensor.n_bytes
    kv = size.bytes_of(file) // max(1, file.n_layer)
    head = file.head_bytes + N_OUTPUTS * LOGIT_BYTES * file.n_vocab
    return (*(each + kv for each in weights), head)


def needed_bytes(file: GgufFile, n_layers: int, size: ContextSize = DEFAULT_SIZE) -> int:
    """Return about how many bytes n_layers layers take on a device with a context of this size."""
    layers = layer_bytes(file, size)
    return SPARE_BYTES + sum(layers[len(layers) - n_layers :] if n_layers else ())


def fitting(file: GgufFile, n_free: int, size: ContextSize = DEFAULT_SIZE) -> int:
    """Return how many layers fit into n_free bytes, counted from the head, the last one."""
    sums = accumulate(reversed(layer_bytes(file, size)))
    return sum(SPARE_BYTES + each <= n_free for each in sums)


def shortage(file: GgufFile, n_layers: int, n_free: int, size: ContextSize = DEFAULT_SIZE) -> str:
    """Return why n_layers layers do not fit on devices, as part of a message; "" where they
    should fit."""
    needed = needed_bytes(file, n_layers, size)
    if not n_layers or needed <= n_free:
        return ""
    n_fit = fitting(file, n_free, size)
    return (
        f"{n_layers} layers with {size.n_ctx} tokens of context need about {size_text(needed)} of "
        f"device memory, and {size_text(n_free)} are free, enough for {n_fit}"
    )
