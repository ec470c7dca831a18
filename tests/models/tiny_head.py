"""Tiny draft heads for tests, as GGUF files: EAGLE-3 with random weights, or one that knows a model
whose next token depends on the last one alone.

The tensors are those that llama.cpp's converter writes. The weights come back to the caller, so
that a test can compute by itself what the head computes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from tools.models.tiny_archs import HEAD_DIM, NORM_EPS
from tools.models.tiny_gguf import finish, replacing, tensor_rng
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN, add_spm_vocab

ARCH = "eagle3"
BLOCKS = (1, 2, 3)  # whose entering states it reads
SHARPNESS = 6.0  # of attention in a head that looks at its own token only

Weights = dict[str, NDArray[Any]]


def random_weights(
    *,
    n_embd: int = 64,
    n_embd_target: int = 64,
    n_head: int = 2,
    n_head_kv: int = 1,
    own_embedding: bool = True,
    tokens: Sequence[int] | None = None,
    norm_before_fc: bool = False,
    seed: int = 0,
) -> Weights:
    """Tensors by name, outputs first, inputs last, float32.

    own_embedding: False leaves the embedding to the model.
    tokens: the model's ids of the head's own tokens (d2t); None for all of the model's.
    """
    n_features, n_ff = len(BLOCKS) * n_embd_target, 2 * n_embd
    n_q, n_kv = n_head * HEAD_DIM, n_head_kv * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (n_embd, n_features),
        "blk.0.attn_norm.weight": (n_embd,),
        "blk.0.attn_norm_2.weight": (n_embd,),
        "blk.0.attn_q.weight": (n_q, 2 * n_embd),
        "blk.0.attn_k.weight": (n_kv, 2 * n_embd),
        "blk.0.attn_v.weight": (n_kv, 2 * n_embd),
        "blk.0.attn_output.weight": (n_embd, n_q),
        "blk.0.ffn_norm.weight": (n_embd,),
        "blk.0.ffn_gate.weight": (n_ff, n_embd),
        "blk.0.ffn_up.weight": (n_ff, n_embd),
        "blk.0.ffn_down.weight": (n_embd, n_ff),
        "output_norm.weight": (n_embd,),
        "output.weight": (N_VOCAB_MIN if tokens is None else len(tokens), n_embd),
    }
    if own_embedding:
        shapes["token_embd.weight"] = (N_VOCAB_MIN, n_embd)
    if norm_before_fc:
        shapes["enc.output_norm.weight"] = (n_features,)
    weights: Weights = {}
    for name, shape in shapes.items():
        noise = tensor_rng(seed, "head " + name).standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            weights[name] = 1 + np.float32(0.1) * noise
        else:
            gain = 3.0 if name == "output.weight" else 1.0
            weights[name] = np.float32(gain / math.sqrt(shape[-1])) * noise
    if tokens is None:
        weights["output.weight"][:N_CONTROL] *= np.float32(0.01)  # a draft does not end by itself
    else:
        weights["d2t"] = np.array(tokens, np.int64)
    return weights


def knowing_weights(
    target: Mapping[str, NDArray[Any]], *, tokens: Sequence[int] | None = None
) -> Weights:
    """A head that expects what a model without effective blocks says next: it looks at its own
    token only and goes through the model's output.

    target: the model's token_embd, output_norm and output, as stored.
    """
    n_vocab, n_embd = target["token_embd.weight"].shape
    n_head = n_embd // HEAD_DIM
    weights = random_weights(
        n_embd=n_embd,
        n_embd_target=n_embd,
        n_head=n_head,
        n_head_kv=n_head,
        own_embedding=False,
        tokens=tokens,
    )
    eye, zeros = np.eye(n_embd, dtype=np.float32), np.zeros((n_embd, n_embd), np.float32)
    for name in ("attn_norm", "attn_norm_2"):
        weights[f"blk.0.{name}.weight"] = np.ones(n_embd, np.float32)
    for name in ("q", "k"):
        weights[f"blk.0.attn_{name}.weight"] = np.hstack([np.float32(SHARPNESS) * eye, zeros])
    weights["fc.weight"][:] = 0
    # what the row before has left is in the residual, and is taken off here
    weights["blk.0.attn_v.weight"] = np.hstack([eye, -eye])
    weights["blk.0.attn_output.weight"] = eye
    weights["blk.0.ffn_down.weight"][:] = 0
    weights["output_norm.weight"] = target["output_norm.weight"]
    weights["output.weight"] = target["output.weight"][list(tokens or range(n_vocab))]
    return weights


def write(
    path: str | os.PathLike[str],
    weights: Weights,
    *,
    n_embd_target: int = 64,
    n_head_kv: int = 1,
    blocks: Sequence[int] = BLOCKS,
    qtype: str = "F32",
    norm_before_residual: bool = False,
    n_layer: int = 1,
    n_rot: int = HEAD_DIM,
    n_vocab: int = N_VOCAB_MIN,
    types: Mapping[str, str] | None = None,
) -> Path:
    """Write a head and return its path.

    qtype: of the matrices. types: of single tensors, by name.
    """
    path = Path(path)
    n_embd = len(weights["output_norm.weight"])
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, ARCH)
        writer.add_name("tiny random head")
        writer.add_context_length(512)
        writer.add_embedding_length(n_embd)
        writer.add_block_count(n_layer)
        writer.add_feed_forward_length(2 * n_embd)
        writer.add_head_count(len(weights["blk.0.attn_q.weight"]) // HEAD_DIM)
        writer.add_head_count_kv(n_head_kv)
        writer.add_rope_dimension_count(n_rot)
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(NORM_EPS)
        writer.add_array(f"{ARCH}.target_layers", list(blocks))
        writer.add_uint32(f"{ARCH}.target_hidden_size", n_embd_target)
        writer.add_bool(f"{ARCH}.norm_before_residual", norm_before_residual)
        writer.add_bool(f"{ARCH}.norm_before_fc", "enc.output_norm.weight" in weights)
        add_spm_vocab(writer, n_vocab)
        for name, data in weights.items():
            kind = "I64" if name == "d2t" else qtype if data.ndim > 1 else "F32"
            ggml_type = GGMLQuantizationType[(types or {}).get(name, kind)]
            whole = ggml_type in (GGMLQuantizationType.I64, GGMLQuantizationType.I32)
            stored = data.astype(ggml_type.name.lower().replace("i", "int")) if whole else None
            stored = quantize(data.astype(np.float32), ggml_type) if stored is None else stored
            writer.add_tensor(name, stored, raw_dtype=ggml_type)
        finish(writer)
    return path
