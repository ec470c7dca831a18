"""Shapes of random-weight mixtures of experts, with the sizes of a block of models that people run.

random_gguf.py draws the matrices and writes the files; cut to a few blocks, since a whole model of
this kind has tens of gigabytes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter

from tools.models.hybrids import Floats, Layout
from tools.models.sublayers import Attention, gated_ffn, small
from tools.models.tiny_archs import NORM_EPS, Tensor

BIAS_GAIN = 0.01


@dataclass(frozen=True, kw_only=True)
class Mixture(Layout):
    """Attention and experts in each block."""

    attention: Attention
    n_rope: int  # values of a head that RoPE turns
    n_expert: int
    n_used: int  # experts of a token
    n_ff: int  # of an expert

    @abstractmethod
    def small_tensors(self) -> list[Tensor]:
        """Norms and biases of a block."""

    def attention_tensors(self) -> list[Tensor]:
        """Matrices of a block's attention."""
        return self.attention.tensors(self.n_embd, norms=False)

    def block(self, index: int) -> list[Tensor]:
        inner = (self.n_expert, self.n_ff, self.n_embd)
        outer = (self.n_expert, self.n_embd, self.n_ff)
        return [
            *self.attention_tensors(),
            *self.small_tensors(),
            small("ffn_gate_inp.weight", self.n_expert, self.n_embd),
            Tensor("ffn_gate_exps.weight", inner),
            Tensor("ffn_up_exps.weight", inner),
            Tensor("ffn_down_exps.weight", outer),
        ]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        self.attention.add_header(writer)
        writer.add_head_count_kv(self.attention.n_head_kv)
        writer.add_rope_dimension_count(self.n_rope)
        writer.add_layer_norm_rms_eps(NORM_EPS)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_expert_feed_forward_length(self.n_ff)
        writer.add_expert_count(self.n_expert)
        writer.add_expert_used_count(self.n_used)

    def small_weights(self, tensor: Tensor, rng: np.random.Generator) -> Floats:
        if tensor.name.endswith("norm.weight"):
            return np.ones(tensor.shape, np.float32)
        gain = BIAS_GAIN if tensor.name.endswith("bias") else 1 / math.sqrt(tensor.shape[-1])
        return np.float32(gain) * rng.standard_normal(tensor.shape, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Mixture):
    """Many small experts."""

    arch: ClassVar[str] = "qwen3moe"

    def small_tensors(self) -> list[Tensor]:
        of_heads = (small(f"attn_{x}_norm.weight", self.attention.head_dim) for x in "qk")
        return [
            *of_heads,
            small("attn_norm.weight", self.n_embd),
            small("ffn_norm.weight", self.n_embd),
        ]


@dataclass(frozen=True, kw_only=True)
class GptOss(Mixture):
    """Few large experts, biases everywhere, attention sinks, and a window in every other block."""

    arch: ClassVar[str] = "gpt-oss"

    window: int = 128

    def small_tensors(self) -> list[Tensor]:
        sizes = self.attention
        n_q, n_kv = (n * sizes.head_dim for n in (sizes.n_head, sizes.n_head_kv))
        return [
            small("attn_norm.weight", self.n_embd),
            small("post_attention_norm.weight", self.n_embd),
            small("attn_sinks.weight", sizes.n_head),
            small("attn_q.bias", n_q),
            small("attn_k.bias", n_kv),
            small("attn_v.bias", n_kv),
            small("attn_output.bias", self.n_embd),
            small("ffn_gate_inp.bias", self.n_expert),
            small("ffn_gate_exps.bias", self.n_expert, self.n_ff),
            small("ffn_up_exps.bias", self.n_expert, self.n_ff),
            small("ffn_down_exps.bias", self.n_expert, self.n_embd),
        ]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_sliding_window(self.window)


@dataclass(frozen=True, kw_only=True)
class Deepseek2(Mixture):
    """Latent attention, whose heads share one K and V for all of them, and a shared expert.

    attention: of the latent K, which is n_latent values of V and n_rope others.
    """

    arch: ClassVar[str] = "deepseek2"

    n_latent: int
    n_query: int  # latent values of a query
    n_key: int  # values of a head's key without RoPE
    n_value: int

    def attention_tensors(self) -> list[Tensor]:
        n_head = self.attention.n_head
        return [
            Tensor("attn_q_a.weight", (self.n_query, self.n_embd)),
            Tensor("attn_q_b.weight", (n_head * (self.n_key + self.n_rope), self.n_query)),
            Tensor("attn_kv_a_mqa.weight", (self.n_latent + self.n_rope, self.n_embd)),
            Tensor("attn_k_b.weight", (n_head, self.n_latent, self.n_key)),
            Tensor("attn_v_b.weight", (n_head, self.n_value, self.n_latent)),
            Tensor("attn_output.weight", (self.n_embd, n_head * self.n_value)),
        ]

    def small_tensors(self) -> list[Tensor]:
        return [
            small("attn_norm.weight", self.n_embd),
            small("attn_q_a_norm.weight", self.n_query),
            small("attn_kv_a_norm.weight", self.n_latent),
            small("ffn_norm.weight", self.n_embd),
        ]

    def block(self, index: int) -> list[Tensor]:
        shared = gated_ffn(self.n_embd, self.n_ff)
        return [
            *super().block(index),
            *(replace(t, name=t.name.replace(".weight", "_shexp.weight")) for t in shared),
        ]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_key_length_mla(self.n_key + self.n_rope)
        writer.add_value_length_mla(self.n_value)
        writer.add_q_lora_rank(self.n_query)
        writer.add_kv_lora_rank(self.n_latent)
        writer.add_expert_shared_count(1)
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)


# Qwen3-30B-A3B, gpt-oss-20b and GLM-4.7-Flash.
MIXTURES: dict[str, Layout] = {
    layout.arch: layout
    for layout in (
        Qwen3Moe(
            n_layer=48, n_embd=2048, n_rope=128, n_expert=128, n_used=8, n_ff=768,
            attention=Attention(n_head=32, n_head_kv=4, head_dim=128),
        ),
        GptOss(
            n_layer=24, n_embd=2880, n_rope=64, n_expert=32, n_used=4, n_ff=2880,
            attention=Attention(n_head=64, n_head_kv=8, head_dim=64),
        ),
        Deepseek2(
            n_layer=47, n_embd=2048, n_rope=64, n_expert=64, n_used=4, n_ff=1536,
            n_latent=512, n_query=768, n_key=192, n_value=256,
            attention=Attention(n_head=20, n_head_kv=1, head_dim=576, value_dim=512),
        ),
    )
}  # fmt: skip
