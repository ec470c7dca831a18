"""Types that K and V can be stored as."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ArgumentError

if TYPE_CHECKING:
    from .model import Model

# What llama.cpp's --cache-type-k and --cache-type-v accept, with the numbers of enum ggml_type.
FLOAT_CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30}
CACHE_TYPES = FLOAT_CACHE_TYPES | {
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "iq4_nl": 20,
    "q5_0": 6,
    "q5_1": 7,
}
CACHE_TYPE = "f16"
BLOCK_SIZE = 32  # values that each quantized type stores together


def number(parameter: str, type_name: str) -> int:
    """Return the ggml number of a type. Raises ArgumentError for other names.

    parameter: "type_k" or "type_v", for the message.
    """
    if type_name not in CACHE_TYPES:
        raise ArgumentError(f"{parameter} is one of {', '.join(CACHE_TYPES)}, got {type_name!r}")
    return CACHE_TYPES[type_name]


def require_kernels(model: Model, flash_attn: bool | None, type_k: str, type_v: str) -> None:
    """Raise ArgumentError for quantized K or V that llama.cpp has no kernels for."""
    floats = ", ".join(FLOAT_CACHE_TYPES)
    if flash_attn is False and type_v not in FLOAT_CACHE_TYPES:
        raise ArgumentError(
            f"V of type {type_v} needs flash attention: leave flash_attn=None (--flash-attn auto), "
            f"or take one of {floats} for type_v (--cache-type-v)"
        )
    # llama.cpp looks at this only with flash attention; without, it would read across heads
    if type_k not in FLOAT_CACHE_TYPES and model.head_size_k % BLOCK_SIZE:
        raise ArgumentError(
            f"K of type {type_k} needs heads of a multiple of {BLOCK_SIZE} values, the model's "
            f"have {model.head_size_k}; take one of {floats} for type_k (--cache-type-k)"
        )
