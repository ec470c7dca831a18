"""A tiny model with a block behind the others that predicts the token after next (GLM-4.5), with
random weights, as a GGUF file for tests. The weights come back to the caller."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from .tiny_gguf import (
    HEAD_DIM,
    N_CONTROL,
    N_VOCAB_MIN,
    NORM_EPS,
    add_spm_vocab,
    finish,
    replacing,
    tensor_rng,
)

ARCH = "glm4moe"
N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_EXPERT = 3, 64, 2, 1, 128, 2
SUBLAYER_GAIN = 0.2  # so that the last token says most about the next one

Weights = dict[str, NDArray[Any]]


def weights(seed: int = 0) -> Weights:
    """Tensors by name, outputs first, inputs last, float32."""
    n_kv = N_HEAD_KV * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_VOCAB_MIN, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "output.weight": (N_VOCAB_MIN, N_EMBD),
    }
    for block in range(N_LAYER + 1):
        of_block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (N_EMBD,),
            "attn_q.weight": (N_HEAD * HEAD_DIM, N_EMBD),
            "attn_k.weight": (n_kv, N_EMBD),
            "attn_v.weight": (n_kv, N_EMBD),
            "attn_output.weight": (N_EMBD, N_HEAD * HEAD_DIM),
            "post_attention_norm.weight": (N_EMBD,),
        }
        if block == 0:
            of_block |= {
                "ffn_gate.weight": (N_FF, N_EMBD),
                "ffn_up.weight": (N_FF, N_EMBD),
                "ffn_down.weight": (N_EMBD, N_FF),
            }
        else:
            of_block |= {
                "ffn_gate_inp.weight": (N_EXPERT, N_EMBD),
                "exp_probs_b.bias": (N_EXPERT,),
            }
            for kind, experts in (("exps", (N_EXPERT,)), ("shexp", ())):
                of_block |= {
                    f"ffn_gate_{kind}.weight": (*experts, N_FF, N_EMBD),
                    f"ffn_up_{kind}.weight": (*experts, N_FF, N_EMBD),
                    f"ffn_down_{kind}.weight": (*experts, N_EMBD, N_FF),
                }
        if block == N_LAYER:
            of_block |= {
                "nextn.eh_proj.weight": (N_EMBD, 2 * N_EMBD),
                "nextn.enorm.weight": (N_EMBD,),
                "nextn.hnorm.weight": (N_EMBD,),
            }
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    return {name: _random(name, shape, seed) for name, shape in shapes.items()}


def _random(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    noise = tensor_rng(seed, "nextn " + name).standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        return np.float32(0.1) * noise + np.float32(0 if name.endswith("bias") else 1)
    gain = 1.0
    if "attn_output" in name or "ffn_down" in name:
        gain = SUBLAYER_GAIN
    elif name == "output.weight":
        gain = 3.0
    elif name == "token_embd.weight":
        gain = math.sqrt(shape[-1])
    found = np.float32(gain / math.sqrt(shape[-1])) * noise
    if name == "output.weight":
        found[:N_CONTROL] *= np.float32(0.01)  # the text does not end by itself
    return found


def write(path: str | os.PathLike[str], tensors: Weights, n_nextn: int = 1) -> Path:
    """Write the model and return its path. n_nextn: blocks behind the others that it announces."""
    path = Path(path)
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, ARCH)
        writer.add_name("tiny random model with a head of its own")
        writer.add_context_length(512)
        writer.add_embedding_length(N_EMBD)
        writer.add_block_count(N_LAYER + n_nextn)
        writer.add_feed_forward_length(N_FF)
        writer.add_expert_feed_forward_length(N_FF)
        writer.add_head_count(N_HEAD)
        writer.add_head_count_kv(N_HEAD_KV)
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_rope_dimension_count(HEAD_DIM)
        writer.add_layer_norm_rms_eps(NORM_EPS)
        writer.add_expert_count(N_EXPERT)
        writer.add_expert_used_count(N_EXPERT)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(1.0)
        writer.add_leading_dense_block_count(1)
        if n_nextn:
            writer.add_uint32(f"{ARCH}.nextn_predict_layers", n_nextn)
        add_spm_vocab(writer)
        for name, data in tensors.items():
            writer.add_tensor(name, data)
        finish(writer)
    return path
