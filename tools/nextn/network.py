"""A small model with draft heads after its blocks, as a torch module: the dense graph of
llama.cpp's ``step35`` without norms of Q and K and without gates, which is that of Llama.

Head k of a text, counted from 0, is a block whose row i reads the state that the last block (of
head 0) or head k - 1 left in row i, and the embedding of token i + k + 1; it predicts token
i + k + 2. DeepSeek-AI, "DeepSeek-V3 Technical Report", section 2.2,
https://arxiv.org/abs/2412.19437. All heads use the model's embeddings, last norm and output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EMBEDDING_STD = 1.0
OUTPUT_STD = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model. n_nextn: heads after the blocks."""

    n_layer: int = 4
    n_embd: int = 256
    n_ff: int = 768
    n_head: int = 4
    n_head_kv: int = 2
    n_vocab: int = 4096
    n_ctx: int = 512
    n_nextn: int = 1
    eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head


class Norm(nn.Module):
    """RMS norm, computed in float32."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.n_embd))
        self._eps = shape.eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps) * self.weight


class Block(nn.Module):
    """A block of Llama. A parameter has the name of its tensor in a file, without ``blk.N.``.

    It starts as the identity.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        n, n_kv = shape.n_embd, shape.n_head_kv * shape.head_size
        self.shape = shape
        self.attn_norm, self.ffn_norm = Norm(shape), Norm(shape)
        self.attn_q, self.attn_output = _linear(n, n), _linear(n, n)
        self.attn_k, self.attn_v = _linear(n, n_kv), _linear(n, n_kv)
        self.ffn_gate, self.ffn_up = _linear(n, shape.n_ff), _linear(n, shape.n_ff)
        self.ffn_down = _linear(shape.n_ff, n)
        for last in (self.attn_output, self.ffn_down):
            nn.init.zeros_(last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x: [n_lines, n_rows, n_embd]; a row sees itself and those before it."""
        normed = self.attn_norm(x)
        q, k, v = (
            part(normed).unflatten(-1, (-1, self.shape.head_size)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = (_rotated(each, self.shape.rope_base) for each in (q, k))
        mixed = F.scaled_dot_product_attention(
            q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True
        )
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(-2))
        normed = self.ffn_norm(x)
        fed: Tensor = self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))
        return x + fed


class Head(Block):
    """A block with the part before it that joins a token with a state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.enorm, self.hnorm = Norm(shape), Norm(shape)
        self.eh_proj = _linear(2 * shape.n_embd, shape.n_embd)

    def joined(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Both [n_lines, n_rows, n_embd], of the same rows; return the states after the block."""
        both = torch.cat([self.enorm(embedded), self.hnorm(states)], -1)
        left: Tensor = self(self.eh_proj(both))
        return left


class Network(nn.Module):
    """A model and its draft heads."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.heads = nn.ModuleList(Head(shape) for _ in range(shape.n_nextn))
        self.output_norm = Norm(shape)
        self.output = _linear(shape.n_embd, shape.n_vocab)
        nn.init.normal_(self.token_embd.weight, std=EMBEDDING_STD)
        nn.init.normal_(self.output.weight, std=OUTPUT_STD)

    def states(self, ids: Tensor) -> Tensor:
        """Return the states after the last block, [n_lines, n_rows, n_embd].

        ids: int64 [n_lines, n_rows].
        """
        x: Tensor = self.token_embd(ids)
        for block in self.blocks:
            x = block(x)
        return x

    def drafted(self, ids: Tensor, states: Tensor) -> list[Tensor]:
        """Return the states after each head, of head k [n_lines, n_rows - k - 1, n_embd].

        states: after the last block, in all rows.
        """
        embedded, found = self.token_embd(ids), []
        for k, head in enumerate(self.heads):
            states = head.joined(embedded[:, k + 1 :], states[:, : ids.shape[1] - k - 1])
            found.append(states)
        return found

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of states after the last block or a head, [..., n_vocab]."""
        logits: Tensor = self.output(self.output_norm(states))
        return logits


def _linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


def _rotated(x: Tensor, base: float) -> Tensor:
    """Turn pairs that lie half a head apart by the row's position. x: [..., n_rows, head_size]."""
    n_rows, size = x.shape[-2:]
    speeds = torch.exp(torch.arange(0, size, 2) * (-math.log(base) / size))
    angles = torch.arange(n_rows)[:, None] * speeds
    cos, sin = angles.cos().to(x.device), angles.sin().to(x.device)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
