"""Tiny models with blocks after the others that predict the token after next, as GGUF files for
tests: one kind for each way in which llama.cpp builds such a block. The weights are random, or a
model and a head that is right about it. They come back to the caller."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tools.models.tiny_archs import HEAD_DIM, NORM_EPS
from tools.models.tiny_gguf import finish, replacing, tensor_rng
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN, add_spm_vocab

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_EXPERT = 3, 64, 2, 1, 128, 2
SUBLAYER_GAIN = 0.2  # so that the last token says most about the next one
WINDOW = 8
LATENT, N_ROT_LATENT, N_PLAIN_LATENT = 32, 16, 16  # sizes of latent attention
N_INDEX = 64  # values of a key of the index that selects cells
N_STREAMS, N_SINKHORN, STREAMS_EPS = 4, 3, 1e-6  # of hyper-connections
N_GROUPS, N_LOW_OUT = 2, 16  # groups of heads, each with an output of low rank
RATIOS = (0, 4, 128, 0)  # how many tokens share a compressed cell, in each block
RECURRENT = (0, 2)  # blocks of hybrid models
N_CONV, N_MIXED = 4, N_EMBD + 2 * N_HEAD_KV * HEAD_DIM  # window and channels of convolutions

SUBLAYER_OUTPUT = re.compile("attn_output|ffn_down|ssm_out")

Weights = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Kind:
    """How the blocks of an architecture are made.

    n_nextn: blocks after the others, of which the first drafts.
    own: tensors that the block has in place of the model's: embed_tokens, shared_head_head,
        shared_head_norm.
    attention: "heads", "gated" (Q with a gate for each value), "fused" (Q, K, V in one tensor, with
        sinks), "latent", or "grouped" (one K that is also V, with sinks; outputs in groups).
    has_qk_norm, has_gates, has_index: further tensors of its attention.
    is_parallel: attention and feed-forward read one normed state.
    has_dense_head: no experts in the blocks after the others.
    reads_normed: whether the block reads the state after the model's last norm.
    has_qwen_experts: whether experts are in all blocks, with a gate for the shared one.
    is_nemotron: whether the first blocks have no feed-forward sublayer, experts have squares in
        place of gates, and the last norm of the head subtracts the mean.
    mixer: what the RECURRENT blocks have in place of attention: "delta" or "kda" nets, "mamba", or
        "" for attention in all blocks.
    neighbours: whether rotated pairs are neighbours.
    n_rot: values of a head that the first block after the others rotates.
    base: of the rotation in that block.
    has_window: whether that block looks at the last WINDOW tokens only.
    has_streams: whether hyper-connections keep N_STREAMS states per token.
    """

    arch: str
    n_nextn: int = 1
    own: frozenset[str] = frozenset()
    attention: str = "heads"
    has_qk_norm: bool = False
    has_gates: bool = False
    has_index: bool = False
    is_parallel: bool = False
    is_dense: bool = False
    has_dense_head: bool = False
    has_qwen_experts: bool = False
    reads_normed: bool = True
    neighbours: bool = False
    n_rot: int = HEAD_DIM
    base: float = 10000.0
    has_window: bool = False
    has_streams: bool = False
    post_norm: str = "ffn_norm"
    is_nemotron: bool = False
    mixer: str = ""
    head_norm: str = ""  # its last norm, where the file always has one of its own
    mean_norm: bool = False  # norms subtract the mean
    logit_scale: float = 1.0
    value_scale: float = 1.0

    @property
    def name(self) -> str:
        parts = [self.arch, *sorted(self.own)]
        parts += ["dense"] if self.is_dense else []
        parts += [f"{self.n_nextn} blocks"] if self.n_nextn > 1 else []
        return " ".join(parts)

    def is_recurrent(self, block: int) -> bool:
        return bool(self.mixer) and block in RECURRENT

    def with_own(self, *names: str) -> Kind:
        return replace(self, own=frozenset(names))


GLM4MOE = Kind("glm4moe", post_norm="post_attention_norm")
HY_V3 = Kind("hy_v3", has_qk_norm=True)
MIMO2 = Kind(
    "mimo2",
    attention="fused",
    has_dense_head=True,
    reads_normed=False,
    n_rot=16,
    base=5000.0,
    has_window=True,
    value_scale=0.7,
)
STEP35 = Kind(
    "step35",
    has_qk_norm=True,
    has_gates=True,
    reads_normed=False,
    base=5000.0,
    has_window=True,
)
COHERE2MOE = Kind("cohere2moe", is_parallel=True, neighbours=True, mean_norm=True, logit_scale=0.5)
DEEPSEEK2 = Kind("deepseek2", attention="latent", neighbours=True, n_rot=N_ROT_LATENT)
DEEPSEEK32 = replace(DEEPSEEK2, arch="deepseek32", has_index=True)
GLM_DSA = replace(DEEPSEEK2, arch="glm-dsa", has_index=True)
DEEPSEEK4 = Kind(
    "deepseek4",
    attention="grouped",
    neighbours=True,
    n_rot=N_ROT_LATENT,
    has_window=True,
    has_streams=True,
)

# Hybrid architectures.
QWEN35 = Kind(
    "qwen35",
    attention="gated",
    has_qk_norm=True,
    is_dense=True,
    post_norm="post_attention_norm",
    mixer="delta",
)
QWEN35MOE = replace(QWEN35, arch="qwen35moe", is_dense=False, has_qwen_experts=True)
QWEN3NEXT = replace(QWEN35MOE, arch="qwen3next")
BAILINGMOE3 = Kind(
    "bailingmoe3",
    attention="latent",
    has_gates=True,
    neighbours=True,
    n_rot=N_ROT_LATENT,
    head_norm="layer_output_norm",
    mixer="kda",
)
NEMOTRON_H_MOE = Kind(
    "nemotron_h_moe",
    n_rot=0,
    post_norm="post_attention_norm",
    is_nemotron=True,
    own=frozenset({"shared_head_norm"}),
    mixer="mamba",
)
HYBRID_KINDS = (
    NEMOTRON_H_MOE,
    BAILINGMOE3,
    QWEN35,
    QWEN35.with_own("embed_tokens", "shared_head_norm"),
    QWEN35MOE,
    QWEN3NEXT,
    QWEN3NEXT.with_own("shared_head_head", "shared_head_norm"),
)

ALL = ("embed_tokens", "shared_head_head", "shared_head_norm")
KINDS = (
    GLM4MOE,
    GLM4MOE.with_own(*ALL),
    HY_V3,
    replace(HY_V3, is_dense=True, n_nextn=2).with_own("shared_head_norm"),
    MIMO2,
    replace(MIMO2, is_dense=True, n_nextn=3).with_own(*ALL),
    STEP35,
    replace(STEP35, n_nextn=2).with_own("shared_head_head", "shared_head_norm"),
    COHERE2MOE,
    COHERE2MOE.with_own(*ALL),
    DEEPSEEK2,
    DEEPSEEK2.with_own(*ALL),
    DEEPSEEK32.with_own("shared_head_norm"),
    GLM_DSA,
    DEEPSEEK4,
    DEEPSEEK4.with_own(*ALL),
)


def _attention(kind: Kind) -> Shapes:
    n_q, n_kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    if kind.attention == "latent":
        n_k = N_PLAIN_LATENT + N_ROT_LATENT
        shapes: Shapes = {
            "attn_q_a.weight": (LATENT, N_EMBD),
            "attn_q_a_norm.weight": (LATENT,),
            "attn_q_b.weight": (N_HEAD * n_k, LATENT),
            "attn_kv_a_mqa.weight": (LATENT + N_ROT_LATENT, N_EMBD),
            "attn_kv_a_norm.weight": (LATENT,),
            "attn_k_b.weight": (N_HEAD, LATENT, N_PLAIN_LATENT),
            "attn_v_b.weight": (N_HEAD, HEAD_DIM, LATENT),
        }
    elif kind.attention == "grouped":
        return {
            "attn_q_a.weight": (LATENT, N_EMBD),
            "attn_q_a_norm.weight": (LATENT,),
            "attn_q_b.weight": (n_q, LATENT),
            "attn_kv.weight": (HEAD_DIM, N_EMBD),
            "attn_kv_a_norm.weight": (HEAD_DIM,),
            "attn_sinks.weight": (N_HEAD,),
            "attn_output_a.weight": (N_GROUPS, N_LOW_OUT, n_q // N_GROUPS),
            "attn_output_b.weight": (N_EMBD, N_GROUPS * N_LOW_OUT),
        }
    elif kind.attention == "fused":
        shapes = {"attn_qkv.weight": (n_q + 2 * n_kv, N_EMBD), "attn_sinks.weight": (N_HEAD,)}
    else:
        shapes = {
            "attn_q.weight": (n_q * (2 if kind.attention == "gated" else 1), N_EMBD),
            "attn_k.weight": (n_kv, N_EMBD),
            "attn_v.weight": (n_kv, N_EMBD),
        }
    if kind.has_qk_norm:
        shapes |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    if kind.has_gates:
        shapes["attn_gate.weight"] = (N_HEAD, N_EMBD)
    if kind.has_index:
        shapes |= {
            "indexer.k_norm.weight": (N_INDEX,),
            "indexer.k_norm.bias": (N_INDEX,),
            "indexer.proj.weight": (N_HEAD, N_EMBD),
            "indexer.attn_k.weight": (N_INDEX, N_EMBD),
            "indexer.attn_q_b.weight": (N_HEAD * N_INDEX, LATENT),
        }
    return shapes | {"attn_output.weight": (N_EMBD, n_q)}


def _streams(block: int) -> Shapes:
    """Shapes of the hyper-connections of a block, and of what compresses its K/V."""
    shapes: Shapes = {}
    for part in ("attn", "ffn"):
        n = (2 + N_STREAMS) * N_STREAMS
        shapes |= {
            f"hc_{part}_fn.weight": (n, N_STREAMS * N_EMBD),
            f"hc_{part}_base.weight": (n,),
            f"hc_{part}_scale.weight": (3,),
        }
    ratio = RATIOS[block]
    parts = {"attn": HEAD_DIM, "indexer": N_INDEX} if ratio == 4 else {"attn": HEAD_DIM}
    for part, n in parts.items() if ratio else ():
        n_wide = (2 if ratio == 4 else 1) * n
        shapes |= {
            f"{part}_compressor_kv.weight": (n_wide, N_EMBD),
            f"{part}_compressor_gate.weight": (n_wide, N_EMBD),
            f"{part}_compressor_ape.weight": (ratio, n_wide),
            f"{part}_compressor_norm.weight": (n,),
        }
    if ratio == 4:
        shapes |= {
            "indexer.proj.weight": (N_HEAD, N_EMBD),
            "indexer.attn_q_b.weight": (N_HEAD * N_INDEX, LATENT),
        }
    return shapes


def _mixer(kind: Kind) -> Shapes:
    """Shapes of a recurrent sublayer."""
    norm, out = {"ssm_norm.weight": (HEAD_DIM,)}, {"ssm_out.weight": (N_EMBD, N_EMBD)}
    if kind.mixer == "kda":
        matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ssm_f_a", "ssm_g_a")
        return norm | {
            **{f"{name}.weight": (N_EMBD, N_EMBD) for name in matrices},
            **{f"ssm_conv1d_{name}.weight": (N_EMBD, 1, N_CONV) for name in "qkv"},
            "ssm_beta.weight": (N_HEAD, N_EMBD),
            "ssm_a": (N_HEAD, 1),
            "ssm_dt.bias": (N_EMBD,),
        }
    steps: Shapes = {"ssm_conv1d.weight": (N_MIXED, N_CONV), "ssm_dt.bias": (N_HEAD,)}
    if kind.mixer == "mamba":
        return (
            steps
            | out
            | {
                "ssm_in.weight": (N_EMBD + N_MIXED + N_HEAD, N_EMBD),
                "ssm_conv1d.bias": (N_MIXED,),
                "ssm_a": (N_HEAD, 1),
                "ssm_d": (N_HEAD, 1),
                "ssm_norm.weight": (N_HEAD_KV, N_EMBD // N_HEAD_KV),
            }
        )
    if kind.arch == "qwen3next":
        inputs: Shapes = {"ssm_ba.weight": (2 * N_HEAD, N_EMBD)}
    else:
        inputs = {f"ssm_{name}.weight": (N_HEAD, N_EMBD) for name in ("alpha", "beta")}
    return (
        steps
        | norm
        | out
        | inputs
        | {
            "attn_qkv.weight": (N_MIXED, N_EMBD),
            "attn_gate.weight": (N_EMBD, N_EMBD),
            "ssm_a": (N_HEAD,),
        }
    )


def _feed_forward(kind: Kind, has_experts: bool) -> Shapes:
    if not has_experts:
        return {
            "ffn_gate.weight": (N_FF, N_EMBD),
            "ffn_up.weight": (N_FF, N_EMBD),
            "ffn_down.weight": (N_EMBD, N_FF),
        }
    shapes: Shapes = {"ffn_gate_inp.weight": (N_EXPERT, N_EMBD)}
    if kind.has_qwen_experts:
        shapes["ffn_gate_inp_shexp.weight"] = (N_EMBD,)
    elif kind.arch != "cohere2moe":
        suffix = "" if kind.arch == "hy_v3" else ".bias"
        shapes["exp_probs_b" + suffix] = (N_EXPERT,)
    for name, experts in (("exps", (N_EXPERT,)), ("shexp", ())):
        if name == "shexp" and kind.arch == "mimo2":
            continue
        if not kind.is_nemotron:
            shapes[f"ffn_gate_{name}.weight"] = (*experts, N_FF, N_EMBD)
        shapes |= {
            f"ffn_up_{name}.weight": (*experts, N_FF, N_EMBD),
            f"ffn_down_{name}.weight": (*experts, N_EMBD, N_FF),
        }
    return shapes


def has_experts(kind: Kind, block: int) -> bool:
    if kind.has_qwen_experts or kind.has_streams:
        return True
    return not kind.is_dense and 0 < block < (N_LAYER if kind.has_dense_head else math.inf)


def _shapes(kind: Kind) -> Shapes:
    """Shapes of all tensors by name, outputs first, inputs last."""
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB_MIN, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "output.weight": (N_VOCAB_MIN, N_EMBD),
    }
    if kind.has_streams:
        shapes |= {
            "output_hc_fn.weight": (N_STREAMS, N_STREAMS * N_EMBD),
            "output_hc_base.weight": (N_STREAMS,),
            "output_hc_scale.weight": (1,),
        }
    own = {
        "embed_tokens": (N_VOCAB_MIN, N_EMBD),
        "shared_head_head": (N_VOCAB_MIN, N_EMBD),
        "shared_head_norm": (N_EMBD,),
    }
    for block in range(N_LAYER + kind.n_nextn):
        of_block: Shapes = {"attn_norm.weight": (N_EMBD,)}
        of_block |= _mixer(kind) if kind.is_recurrent(block) else _attention(kind)
        of_block |= _streams(block) if kind.has_streams else {}
        is_whole = block >= N_LAYER or not kind.is_nemotron
        if is_whole:
            of_block |= _feed_forward(kind, has_experts(kind, block))
        if is_whole and not kind.is_parallel:
            of_block[f"{kind.post_norm}.weight"] = (N_EMBD,)
        if block >= N_LAYER:
            of_block |= {
                "nextn.eh_proj.weight": (N_EMBD, 2 * N_EMBD),
                "nextn.enorm.weight": (N_EMBD,),
                "nextn.hnorm.weight": (N_EMBD,),
            }
            of_block |= {f"nextn.{name}.weight": own[name] for name in sorted(kind.own)}
            if kind.head_norm:
                of_block[f"{kind.head_norm}.weight"] = (N_EMBD,)
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    return shapes


def weights(kind: Kind = GLM4MOE, seed: int = 0) -> Weights:
    """Tensors by name, random, float32."""
    return {name: _random(name, shape, seed) for name, shape in _shapes(kind).items()}


def _random(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    noise = tensor_rng(seed, "nextn " + name).standard_normal(shape, dtype=np.float32)
    if name.endswith("ssm_a"):
        return -np.abs(noise)  # states decay
    if name.endswith("ssm_norm.weight"):
        return np.ones(shape, np.float32)
    if len(shape) == 1:
        is_shift = name.endswith(("bias", "exp_probs_b", "attn_sinks.weight"))
        return np.float32(0.1) * noise + np.float32(0 if is_shift else 1)
    gain, is_output = 1.0, name.endswith(("output.weight", "shared_head_head.weight"))
    if SUBLAYER_OUTPUT.search(name):
        gain = SUBLAYER_GAIN
    elif is_output:
        gain = 3.0
    elif name.endswith(("token_embd.weight", "embed_tokens.weight")):
        gain = math.sqrt(shape[-1])
    found = np.float32(gain / math.sqrt(shape[-1])) * noise
    if is_output and "attn_output" not in name:
        found[:N_CONTROL] *= np.float32(0.01)  # the text never ends early
    return found


def counting_weights(kind: Kind, gain: float = 0.0) -> Weights:
    """A model that counts: after each token it expects the one with the next id, and its head knows
    that from the states alone.

    The state of a token is a point on circles, and the next token's the point one step further.
    The head turns the state that it is given by one step, to the state of the token of its row,
    and ignores the token. So it is wrong with the state of any other token.

    gain: of the model's sublayers, which make it count less well; those of the head do nothing.
    """
    found = {
        name: np.ones_like(w) if w.ndim == 1 and "ssm" not in name else w
        for name, w in weights(kind).items()
    }
    for name, w in found.items():
        if SUBLAYER_OUTPUT.search(name):
            w *= 0 if name.startswith(f"blk.{N_LAYER}.") else np.float32(gain)
    turns = 2 * math.pi * (1 + 4 * np.arange(N_EMBD // 2)) / N_VOCAB_MIN
    angles = np.arange(-1, N_VOCAB_MIN)[:, None] * turns
    points = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    cos, sin = np.diag(np.cos(turns)), np.diag(np.sin(turns))
    step = np.block([[cos, -sin], [sin, cos]]).astype(np.float32)
    zeros = np.zeros((N_EMBD, N_EMBD), np.float32)
    for name, w in found.items():
        if name == "output.weight" or name.endswith("shared_head_head.weight"):
            w[:] = points[:-1]
            w[:N_CONTROL] *= np.float32(0.01)  # the text never ends early
        elif name.endswith(("token_embd.weight", "embed_tokens.weight")):
            w[:] = points[1:]
        elif name.endswith("eh_proj.weight"):
            w[:] = np.hstack([zeros, step])
    return found


def write(
    path: str | os.PathLike[str],
    tensors: Weights,
    kind: Kind = GLM4MOE,
    *,
    n_nextn: int | None = None,
    n_index: int = N_INDEX,
    metadata: Mapping[str, int | list[int]] | None = None,
) -> Path:
    """Write the model and return its path.

    n_nextn: blocks after the others that it announces, if not all.
    n_index: size of the keys of an index that it announces.
    metadata: other values than its own, by names without the architecture, for DEEPSEEK4.
    """
    path = Path(path)
    n_nextn = kind.n_nextn if n_nextn is None else n_nextn
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, kind.arch)
        writer.add_name("tiny random model with a head of its own")
        writer.add_context_length(512)
        writer.add_embedding_length(N_EMBD)
        writer.add_block_count(N_LAYER + n_nextn)
        first = [0] * N_LAYER + [N_FF] * n_nextn
        writer.add_feed_forward_length(first if kind.is_nemotron else N_FF)
        writer.add_head_count(N_HEAD)
        if n_nextn:
            writer.add_uint32(f"{kind.arch}.nextn_predict_layers", n_nextn)
        _add_attention(writer, kind, N_LAYER + n_nextn, n_index)
        if kind.has_streams:
            _add_streams(writer, kind, N_LAYER + n_nextn, metadata or {})
        _add_experts(writer, kind)
        add_spm_vocab(writer)
        for name, data in tensors.items():
            writer.add_tensor(name, data)
        finish(writer)
    return path


def _add_attention(writer: GGUFWriter, kind: Kind, n_block: int, n_index: int) -> None:
    if kind.mean_norm:
        writer.add_layer_norm_eps(NORM_EPS)
        writer.add_logit_scale(kind.logit_scale)
    else:
        writer.add_layer_norm_rms_eps(NORM_EPS)
    if kind.attention == "latent":
        writer.add_head_count_kv(_heads_kv(kind, 1, n_block))
        writer.add_key_length(LATENT + N_ROT_LATENT)
        writer.add_value_length(LATENT)
        writer.add_key_length_mla(N_PLAIN_LATENT + N_ROT_LATENT)
        writer.add_value_length_mla(HEAD_DIM)
        writer.add_q_lora_rank(LATENT)
        writer.add_kv_lora_rank(LATENT)
    else:
        writer.add_head_count_kv(_heads_kv(kind, N_HEAD_KV, n_block))
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(kind.n_rot)
    if kind.arch == "bailingmoe3":
        writer.add_uint32(f"{kind.arch}.ssm.conv_kernel", N_CONV)
        writer.add_uint32(f"{kind.arch}.kda.head_dim", HEAD_DIM)
        writer.add_float32(f"{kind.arch}.kda.gate_lower_bound", -5.0)
    if kind.is_nemotron:
        writer.add_layer_norm_eps(NORM_EPS)
    if kind.attention == "gated":
        writer.add_rope_dimension_sections([8, 4, 4, 0])
        writer.add_uint32(f"{kind.arch}.full_attention_interval", 2 if kind.mixer else 1)
    if kind.attention == "gated" or kind.is_nemotron:
        for name, n in (
            ("conv_kernel", N_CONV),
            ("inner_size", N_EMBD),
            ("state_size", HEAD_DIM),
            ("time_step_rank", N_HEAD),
            ("group_count", N_HEAD_KV),
        ):
            writer.add_uint32(f"{kind.arch}.ssm.{name}", n)
    if kind.has_index or kind.has_streams:
        writer.add_uint32(f"{kind.arch}.attention.indexer.head_count", N_HEAD)
        writer.add_uint32(f"{kind.arch}.attention.indexer.key_length", n_index)
        writer.add_uint32(f"{kind.arch}.attention.indexer.top_k", 512)
    if kind.has_window or kind.mean_norm:
        writer.add_sliding_window(WINDOW)
    if kind.has_window:
        writer.add_array(
            f"{kind.arch}.attention.sliding_window_pattern",
            [block != 1 for block in range(n_block)],
        )
        writer.add_float32(f"{kind.arch}.rope.freq_base_swa", kind.base)
    if kind.value_scale != 1:
        writer.add_float32(f"{kind.arch}.attention.value_scale", kind.value_scale)


def _add_streams(
    writer: GGUFWriter, kind: Kind, n_block: int, metadata: Mapping[str, int | list[int]]
) -> None:
    writer.add_q_lora_rank(LATENT)
    values: dict[str, int | list[int]] = {
        "attention.output_group_count": N_GROUPS,
        "attention.output_lora_rank": N_LOW_OUT,
        "attention.compress_ratios": list(RATIOS[:n_block]),
        "hyper_connection.count": N_STREAMS,
        "hyper_connection.sinkhorn_iterations": N_SINKHORN,
        "hash_layer_count": 0,
    }
    for name, value in (values | metadata).items():
        key = f"{kind.arch}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_float32(f"{kind.arch}.hyper_connection.epsilon", STREAMS_EPS)
    writer.add_float32(f"{kind.arch}.attention.compress_rope_freq_base", 160000.0)
    writer.add_array(f"{kind.arch}.swiglu_clamp_exp", [0.0] * n_block)


def _heads_kv(kind: Kind, n: int, n_block: int) -> int | list[int]:
    """Return the heads of K and V: a number for each block where 0 marks a recurrent one."""
    if kind.mixer not in ("kda", "mamba"):
        return n
    return [0 if kind.is_recurrent(block) else n for block in range(n_block)]


def _add_experts(writer: GGUFWriter, kind: Kind) -> None:
    writer.add_expert_feed_forward_length(N_FF)
    if kind.is_dense:
        return
    writer.add_expert_shared_feed_forward_length(N_FF)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(N_EXPERT)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.0)
    gating = 4 if kind.has_streams else 2  # the root of softplus, or sigmoid
    writer.add_uint32(f"{kind.arch}.expert_gating_func", gating)
    writer.add_leading_dense_block_count(1)
