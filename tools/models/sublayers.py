"""Tensors of the sublayers that models with recurrent states are made of, and their header keys."""

from __future__ import annotations

from dataclasses import dataclass

from gguf import GGUFWriter

from tools.models.tiny_archs import Tensor


def small(name: str, *shape: int) -> Tensor:
    """A tensor that is never quantized."""
    return Tensor(name, shape, keep_f32=True)


def gated_ffn(n_embd: int, n_ff: int) -> list[Tensor]:
    """The matrices of a gated feed-forward sublayer."""
    return [
        Tensor("ffn_gate.weight", (n_ff, n_embd)),
        Tensor("ffn_up.weight", (n_ff, n_embd)),
        Tensor("ffn_down.weight", (n_embd, n_ff)),
    ]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Sizes of the attention sublayers."""

    n_head: int
    n_head_kv: int
    head_dim: int
    value_dim: int = 0  # 0: as head_dim

    def tensors(self, n_embd: int, *, gated: bool = False, norms: bool = True) -> list[Tensor]:
        """Gated: each query head has a gate of its size. Norms: of queries and keys."""
        n_q, n_kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        return [
            Tensor("attn_q.weight", (2 * n_q if gated else n_q, n_embd)),
            Tensor("attn_k.weight", (n_kv, n_embd)),
            Tensor("attn_v.weight", (n_kv, n_embd)),
            *(small(f"attn_{x}_norm.weight", self.head_dim) for x in "qk" if norms),
            Tensor("attn_output.weight", (n_embd, n_q)),
        ]

    def add_header(self, writer: GGUFWriter) -> None:
        writer.add_head_count(self.n_head)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.value_dim or self.head_dim)


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """Sizes of the recurrent sublayers."""

    n_conv: int = 4
    n_inner: int
    n_state: int
    n_head: int  # Mamba-1: the rank of the time steps
    n_group: int = 0  # Mamba-1 has no groups

    @property
    def n_mixed(self) -> int:
        """Channels of the convolution."""
        return self.n_inner + 2 * self.n_group * self.n_state

    def mamba2_tensors(self, n_embd: int) -> list[Tensor]:
        return [
            Tensor("ssm_in.weight", (self.n_inner + self.n_mixed + self.n_head, n_embd)),
            small("ssm_conv1d.weight", self.n_mixed, self.n_conv),
            small("ssm_conv1d.bias", self.n_mixed),
            small("ssm_dt.bias", self.n_head),
            small("ssm_a", self.n_head, 1),
            small("ssm_d", self.n_head, 1),
            small("ssm_norm.weight", self.n_group, self.n_inner // self.n_group),
            Tensor("ssm_out.weight", (n_embd, self.n_inner)),
        ]

    def add_header(self, writer: GGUFWriter) -> None:
        writer.add_ssm_conv_kernel(self.n_conv)
        writer.add_ssm_inner_size(self.n_inner)
        writer.add_ssm_state_size(self.n_state)
        writer.add_ssm_time_step_rank(self.n_head)
        if self.n_group:
            writer.add_ssm_group_count(self.n_group)
