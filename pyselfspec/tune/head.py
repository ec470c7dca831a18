"""The head as a torch module: the graph of llama.cpp's ``eagle3``, over whole texts at once and
several steps deep.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test", https://arxiv.org/abs/2503.01840. Row i of a text knows the model's states at token i and
token i + 1, and guesses token i + 2. While drafting, a row behind the first has no states of the
model yet, but what the row before it left; so has every row here in the steps behind the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

N_BLOCKS = 3  # of the model, whose states it reads side by side


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a head. n_own: tokens that it can guess. n_ff: of its feed-forward part.

    attention: False leaves only the feed-forward part; for comparisons, no file has it.
    """

    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_own: int
    eps: float = 1e-5
    rope_base: float = 10000.0
    attention: bool = True

    @property
    def n_features(self) -> int:
        return N_BLOCKS * self.n_embd


class Norm(nn.Module):
    """RMS norm in float32, also where the rest is bfloat16: torch's own warns there."""

    def __init__(self, n: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps) * self.weight


class Head(nn.Module):
    """Names of the parameters are those of the tensors in a file, without ``blk.0.`` and
    ``.weight``, see export.py."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        n, s = shape.n_embd, shape
        n_q, n_kv = s.n_head * s.head_size, s.n_head_kv * s.head_size

        def linear(n_in: int, n_out: int) -> nn.Linear:
            return nn.Linear(n_in, n_out, bias=False)

        def norm() -> Norm:
            return Norm(n, s.eps)

        self.register_buffer("scale", torch.ones(s.n_features))  # brings features to one size
        self.fc = linear(s.n_features, n)
        self.attn_norm, self.attn_norm_2 = norm(), norm()
        self.attn_q, self.attn_k, self.attn_v = (linear(2 * n, m) for m in (n_q, n_kv, n_kv))
        self.attn_output = linear(n_q, n)
        self.ffn_norm = norm()
        self.ffn_gate, self.ffn_up = linear(n, s.n_ff), linear(n, s.n_ff)
        self.ffn_down = linear(s.n_ff, n)
        self.output_norm = norm()
        self.output = linear(n, s.n_own)

    def logits(self, states: Tensor) -> Tensor:
        """Of the own tokens. states: [..., n_embd], as ``steps`` yields them."""
        found: Tensor = self.output(self.output_norm(states))
        return found

    def steps(self, features: Tensor, embedded: Tensor, texts: Tensor, n: int) -> Iterator[Tensor]:
        """States that the rows leave in each of n steps, [n_texts, n_rows, n_embd].

        features: [n_texts, n_rows, n_features]. embedded: of each row's token, [n_texts, n_rows,
            n_embd]. texts: which text a row belongs to, [n_texts, n_rows]; rows of one lie
            together.

        In step j, counted from 0, row i is the last of a draft that began at row i - j; the j rows
        at the beginning of a text are of no use.
        """
        n_rows = features.shape[1]
        at = torch.arange(n_rows, device=features.device)
        same = texts[:, :, None] == texts[:, None, :]
        turn = self._turns(n_rows, features)
        token = self.attn_norm(embedded)
        given = self.fc(features * self.scale)
        kept: list[tuple[Tensor, Tensor]] = []
        for step in range(n):
            x = torch.cat([token, self.attn_norm_2(given)], -1)
            left = given
            if self.shape.attention:
                q, k, v = (
                    part(x).unflatten(-1, (-1, self.shape.head_size))
                    for part in (self.attn_q, self.attn_k, self.attn_v)
                )
                kept.append((_turned(k, *turn), v))
                seen = (same & (at[:, None] - at >= step))[:, None]
                left = left + self.attn_output(_attended(_turned(q, *turn), kept, seen))
            y = self.ffn_norm(left)
            left = left + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
            yield left
            given = _later(left)

    def _turns(self, n_rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        size = self.shape.head_size
        speeds = self.shape.rope_base ** (-torch.arange(0, size, 2, device=like.device) / size)
        angles = torch.arange(n_rows, device=like.device)[:, None] * speeds
        return angles.cos()[:, None], angles.sin()[:, None]


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbouring values of each attention head turned by the row's position. x: [n_texts, n_rows,
    n_head, head_size]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _later(x: Tensor, n: int = 1) -> Tensor:
    """Each row gets what another one n rows before it has; the first n get their own."""
    return torch.cat([x[:, :n], x[:, :-n]], 1) if n else x


def _attended(q: Tensor, kept: list[tuple[Tensor, Tensor]], seen: Tensor) -> Tensor:
    """Attention of the newest step's rows: to the first step's rows that ``seen`` names, and along
    their own draft to one row of each later step."""
    n_shared = q.shape[2] // kept[0][0].shape[2]
    scale = 1 / math.sqrt(q.shape[-1])
    (first_k, first_v), later = _repeated(kept[0], n_shared), kept[1:]
    scores = torch.einsum("bihd,bjhd->bhij", q, first_k) * scale
    scores = scores.masked_fill(~seen, -math.inf)
    own = []
    for back, pair in enumerate(reversed(later)):
        k, v = (_later(x, back) for x in _repeated(pair, n_shared))
        scores = torch.cat([scores, ((q * k).sum(-1) * scale).transpose(1, 2)[..., None]], -1)
        own.append(v)
    p = scores.float().softmax(-1).to(q.dtype)
    n_rows = q.shape[1]
    mixed = torch.einsum("bhij,bjhd->bihd", p[..., :n_rows], first_v)
    for i, v in enumerate(own):
        mixed = mixed + p[..., n_rows + i].transpose(1, 2)[..., None] * v
    return mixed.flatten(-2)


def _repeated(pair: tuple[Tensor, Tensor], n: int) -> tuple[Tensor, Tensor]:
    k, v = pair
    return k.repeat_interleave(n, 2), v.repeat_interleave(n, 2)
