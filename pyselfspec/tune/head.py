"""The head as a torch module: the graph of llama.cpp's ``eagle3``, over whole texts at once and
several draft positions deep.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test", https://arxiv.org/abs/2503.01840. Row i of a text reads the model's states at token i and the
embedding of token i + 1, and predicts token i + 2. While drafting, rows after the first have no
states of the model to read and read the output of the previous row instead; training does likewise
in every step after the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

N_BLOCKS = 3  # blocks of the model whose states the head reads, concatenated


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a head. n_ff: width of its feed-forward part.

    attention: False builds the feed-forward part only, for comparisons; no file has such a head.
    """

    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    draft_vocab_size: int
    eps: float = 1e-5
    rope_base: float = 10000.0
    attention: bool = True

    @property
    def n_features(self) -> int:
        return N_BLOCKS * self.n_embd


class Norm(nn.Module):
    """RMS norm that computes in float32 under autocast, too; torch's own warns there."""

    def __init__(self, n: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps) * self.weight


class Head(nn.Module):
    """Draft head. A parameter has the name of its tensor in a file, without ``blk.0.`` and
    ``.weight``, see export.py.

    draft_vocab: the model's ids of the tokens that the head can draft, int64 [draft_vocab_size].
    scale: factors that bring features to the same size, float32 [n_features].
    """

    draft_vocab: Tensor
    scale: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        n, s = shape.n_embd, shape
        n_q, n_kv = s.n_head * s.head_size, s.n_head_kv * s.head_size

        def linear(n_in: int, n_out: int) -> nn.Linear:
            return nn.Linear(n_in, n_out, bias=False)

        def norm() -> Norm:
            return Norm(n, s.eps)

        self.register_buffer("draft_vocab", torch.zeros(s.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("scale", torch.ones(s.n_features))
        self.fc = linear(s.n_features, n)
        self.attn_norm, self.attn_norm_2 = norm(), norm()
        self.attn_q, self.attn_k, self.attn_v = (linear(2 * n, m) for m in (n_q, n_kv, n_kv))
        self.attn_output = linear(n_q, n)
        self.ffn_norm = norm()
        self.ffn_gate, self.ffn_up = linear(n, s.n_ff), linear(n, s.n_ff)
        self.ffn_down = linear(s.n_ff, n)
        self.output_norm = norm()
        self.output = linear(n, s.draft_vocab_size)

    def logits(self, states: Tensor) -> Tensor:
        """Return logits over the draft vocabulary, [..., draft_vocab_size].

        states: [..., n_embd], as ``steps`` yields them.
        """
        logits: Tensor = self.output(self.output_norm(states))
        return logits

    def steps(self, features: Tensor, embedded: Tensor, texts: Tensor, n: int) -> Iterator[Tensor]:
        """Yield the states that rows output in each of n steps, [n_lines, n_rows, n_embd].

        features: [n_lines, n_rows, n_features].
        embedded: embedding of each row's token, [n_lines, n_rows, n_embd].
        texts: number of the text that a row belongs to, [n_lines, n_rows]; rows of one text are
            contiguous.

        In step j, counted from 0, row i is the last row of a draft that began at row i - j; the
        first j rows of a text are meaningless.
        """
        n_rows = features.shape[1]
        at = torch.arange(n_rows, device=features.device)
        same_text = texts[:, :, None] == texts[:, None, :]
        rotation = self._rotations(n_rows, features)
        token = self.attn_norm(embedded)
        state = self.fc(features * self.scale)
        kept: list[tuple[Tensor, Tensor]] = []
        for step in range(n):
            x = torch.cat([token, self.attn_norm_2(state)], -1)
            output = state
            if self.shape.attention:
                q, k, v = (
                    part(x).unflatten(-1, (-1, self.shape.head_size))
                    for part in (self.attn_q, self.attn_k, self.attn_v)
                )
                kept.append((_rotate(k, *rotation), v))
                visible = (same_text & (at[:, None] - at >= step))[:, None]
                output = output + self.attn_output(_attend(_rotate(q, *rotation), kept, visible))
            y = self.ffn_norm(output)
            output = output + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
            yield output
            state = _shift(output)

    def _rotations(self, n_rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        size = self.shape.head_size
        speeds = self.shape.rope_base ** (-torch.arange(0, size, 2, device=like.device) / size)
        angles = torch.arange(n_rows, device=like.device)[:, None] * speeds
        return angles.cos()[:, None], angles.sin()[:, None]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings to neighbouring pairs. x: [n_lines, n_rows, n_head,
    head_size]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _shift(x: Tensor, n: int = 1) -> Tensor:
    """Move the values of rows n rows later; the first n rows keep theirs. x: [n_lines, n_rows,
    ...]."""
    return torch.cat([x[:, :n], x[:, :-n]], 1) if n else x


def _attend(q: Tensor, kept: list[tuple[Tensor, Tensor]], visible: Tensor) -> Tensor:
    """Return the attention output of the newest step's rows, [n_lines, n_rows, n_head * head_size]:
    they attend to the first step's rows that ``visible`` allows, and to the rows of their own
    draft, one per later step."""
    n_shared = q.shape[2] // kept[0][0].shape[2]
    scale = 1 / math.sqrt(q.shape[-1])
    (first_k, first_v), later = _repeat_heads(kept[0], n_shared), kept[1:]
    scores = torch.einsum("bihd,bjhd->bhij", q, first_k) * scale
    scores = scores.masked_fill(~visible, -math.inf)
    own = []
    for back, pair in enumerate(reversed(later)):
        k, v = (_shift(x, back) for x in _repeat_heads(pair, n_shared))
        scores = torch.cat([scores, ((q * k).sum(-1) * scale).transpose(1, 2)[..., None]], -1)
        own.append(v)
    p = scores.float().softmax(-1).to(q.dtype)
    n_rows = q.shape[1]
    mixed = torch.einsum("bhij,bjhd->bihd", p[..., :n_rows], first_v)
    for i, v in enumerate(own):
        mixed = mixed + p[..., n_rows + i].transpose(1, 2)[..., None] * v
    return mixed.flatten(-2)


def _repeat_heads(pair: tuple[Tensor, Tensor], n: int) -> tuple[Tensor, Tensor]:
    k, v = pair
    return k.repeat_interleave(n, 2), v.repeat_interleave(n, 2)
