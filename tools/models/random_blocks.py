"""Random weights in the blocks of quantized types, made without quantizing.

Each function fills blocks (uint8, one block per row) that are random already, and returns nothing.
Uniform q of n levels have the standard deviation sqrt((n*n - 1) / 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Type = GGMLQuantizationType

FLOAT_TYPES = (Type.F32, Type.F16, Type.BF16)
_SPREAD = {n_bits: math.sqrt((4**n_bits - 1) / 12) for n_bits in (4, 5, 6, 8)}
_SUBSCALE = 32  # all sub-blocks of a K-quant have this scale; 6 bits


def _scale_bytes(scale: float) -> Bytes:
    return np.array([scale], dtype=np.float16).view(np.uint8)


def _random_sign(blocks: Bytes, high_byte: int, rng: np.random.Generator) -> None:
    """A random sign for a float16 scale: the levels alone have a mean of half a step."""
    blocks[:, high_byte] |= rng.integers(0, 2, len(blocks), dtype=np.uint8) << 7


def _fill_q4_0(blocks: Bytes, std: float, rng: np.random.Generator) -> None:
    blocks[:, :2] = _scale_bytes(std / _SPREAD[4])
    _random_sign(blocks, 1, rng)


def _fill_q8_0(blocks: Bytes, std: float, rng: np.random.Generator) -> None:
    blocks[:, :2] = _scale_bytes(std / _SPREAD[8])
    levels = blocks[:, 2:]
    levels[levels == 0x80] = 0x81  # quantizers never write -128
    _random_sign(blocks, 1, rng)


def _fill_q45_k(blocks: Bytes, std: float, n_bits: int) -> None:
    """Q4_K and Q5_K: w = d * scale * q - dmin * min, with the mean of q taken off by dmin."""
    d = std / _SPREAD[n_bits] / _SUBSCALE
    blocks[:, :2] = _scale_bytes(d)
    blocks[:, 2:4] = _scale_bytes(d * (2**n_bits - 1) / 2)
    blocks[:, 4:12] = 0xA0  # scales and mins of 32: six low bits 32, two high bits of the rest
    blocks[:, 12:16] = 0x00


def _fill_q4_k(blocks: Bytes, std: float, rng: np.random.Generator) -> None:
    _fill_q45_k(blocks, std, 4)


def _fill_q5_k(blocks: Bytes, std: float, rng: np.random.Generator) -> None:
    _fill_q45_k(blocks, std, 5)


def _fill_q6_k(blocks: Bytes, std: float, rng: np.random.Generator) -> None:
    signs = blocks[:, 192:208].view(np.int8)
    signs[:] = np.where(signs < 0, -_SUBSCALE, _SUBSCALE)
    blocks[:, 208:] = _scale_bytes(std / _SPREAD[6] / _SUBSCALE)


def _fill_mxfp4(blocks: Bytes, std: float, rng: np.random.Generator) -> None:
    """The scale is a power of two, and the levels have a root mean square of 2.9."""
    blocks[:, 0] = 127 + round(math.log2(std / 2.9))


def _fill_from_table(ggml_type: Type) -> Callable[[Bytes, float, np.random.Generator], None]:
    """For blocks whose weights are in tables: any bytes after the scale."""

    def fill(blocks: Bytes, std: float, rng: np.random.Generator) -> None:
        blocks[:, :2] = _scale_bytes(1)
        blocks[:, :2] = _scale_bytes(std / float(dequantize(blocks[:1000], ggml_type).std()))

    return fill


IN_TABLES = (Type.IQ1_S, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S)
FILL: dict[Type, Callable[[Bytes, float, np.random.Generator], None]] = {
    Type.Q4_0: _fill_q4_0,
    Type.Q8_0: _fill_q8_0,
    Type.MXFP4: _fill_mxfp4,
    Type.Q4_K: _fill_q4_k,
    Type.Q5_K: _fill_q5_k,
    Type.Q6_K: _fill_q6_k,
    **{ggml_type: _fill_from_table(ggml_type) for ggml_type in IN_TABLES},
}


def random_rows(
    n_rows: int, n_in: int, ggml_type: Type, std: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Random weights of one standard deviation: [n_rows, n_in] floats or [n_rows, bytes]."""
    if ggml_type in FLOAT_TYPES:
        noise = rng.standard_normal((n_rows, n_in), dtype=np.float32)
        noise *= np.float32(std)
        return quantize(noise, ggml_type)
    block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    n_blocks = n_rows * n_in // block_size
    blocks = np.frombuffer(bytearray(rng.bytes(n_blocks * block_bytes)), dtype=np.uint8)
    blocks = blocks.reshape(n_blocks, block_bytes)
    FILL[ggml_type](blocks, std, rng)
    return blocks.reshape(n_rows, -1)
