"""How a head learns, and how much of held-out text it drafts right.

The loss compares with the model's own distribution, by its likeliest tokens, over the head's own
tokens. There is no schedule that would have to know the end: the step size stays, and what counts
is a running average of the weights, so that training can end, and go on, at any time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batches import Batch
from .head import Head
from .muon import Muon
from .wanted import Options

WARMUP = 50  # batches
AVERAGED = 200  # batches that the running average looks back on, about
CLIPPED = 1.0
UNIT = 256  # rows
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Counts:
    """Of greedy drafts: how many got to each position, and how many were right there."""

    tried: NDArray[np.int64]
    right: NDArray[np.int64]

    @property
    def acceptance(self) -> tuple[float, ...]:
        """By position, given those before."""
        return tuple((self.right / np.maximum(1, self.tried)).tolist())

    @property
    def n_expected(self) -> float:
        """Tokens of a draft over all positions that are right."""
        return float(np.cumprod(self.acceptance).sum())


class Training:
    """A head that learns, from where ``state`` left off. half: compute in bfloat16."""

    def __init__(self, head: Head, options: Options, *, half: bool) -> None:
        self.head, self.options, self._half = head, options, half
        self.average = deepcopy(head).requires_grad_(False)
        self.n_batches = self.n_tokens = 0
        inner = [p for name, p in head.named_parameters() if p.ndim > 1 and name != "output.weight"]
        other = [p for name, p in head.named_parameters() if p.ndim == 1 or name == "output.weight"]
        self._optimizers = (
            Muon(inner, options.rate, torch.bfloat16 if half else torch.float32),
            torch.optim.AdamW(other, lr=options.rate_other, weight_decay=0.0, betas=(0.9, 0.95)),
        )

    def learn(self, batch: Batch) -> float:
        """One batch. Returns its loss."""
        with self._precision(batch):
            loss = _loss(self.head, batch, self.options)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), CLIPPED)
        warm = min(1.0, (self.n_batches + 1) / WARMUP)
        rates = (self.options.rate, self.options.rate_other)
        for optimizer, rate in zip(self._optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * warm
            optimizer.step()
            optimizer.zero_grad()
        self.n_batches += 1
        self.n_tokens += batch.texts.numel()
        self._take_average()
        return float(loss.detach())

    def _take_average(self) -> None:
        part = max(1 / AVERAGED, 2 / (self.n_batches + 1))  # young averages forget faster
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.head.parameters(), strict=True):
                mean.lerp_(now, min(1.0, part))

    def held_out(self, batches: Sequence[Batch], n_steps: int) -> Counts:
        """What drafts of the averaged head from every row would be worth."""
        counts = Counts(np.zeros(n_steps, np.int64), np.zeros(n_steps, np.int64))
        for batch in batches:
            with torch.no_grad(), self._precision(batch):
                _count(self.average, batch, counts)
        return counts

    def _precision(self, batch: Batch) -> AbstractContextManager[Any]:
        if not self._half:
            return nullcontext()
        found: AbstractContextManager[Any] = torch.autocast(
            batch.features.device.type, torch.bfloat16
        )
        return found

    # to go on later

    def state(self) -> dict[str, Any]:
        return {
            "head": self.head.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "n_batches": self.n_batches,
            "n_tokens": self.n_tokens,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        self.average.load_state_dict(state["average"])
        for optimizer, each in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        self.n_batches, self.n_tokens = state["n_batches"], state["n_tokens"]


def _loss(head: Head, batch: Batch, options: Options) -> Tensor:
    """Cross entropy with the model's distribution, over the rows that count in each step."""
    total = torch.zeros((), device=batch.features.device)
    taught = batch.scored & (batch.probs.sum(-1) > 0)
    steps = head.steps(batch.features, batch.embedded, batch.texts, options.n_steps)
    for step, left in enumerate(steps):
        at, counts = _in_units(taught & (batch.before >= step))
        logits = head.logits(left.flatten(0, 1)[at]).float()
        probs = batch.probs.flatten(0, 1)[at]
        probs = probs / probs.sum(-1, keepdim=True).clamp(min=EPSILON)
        best = batch.best.flatten(0, 1)[at].clamp(min=0)
        expected = (probs * logits.gather(-1, best)).sum(-1)
        found = ((logits.logsumexp(-1) - expected) * counts).sum() / counts.sum().clamp(min=1)
        total = total + options.decay**step * found
    return total / sum(options.decay**step for step in range(options.n_steps))


def _in_units(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the rows that are chosen, filled up to whole units with row 0, and of each 1 or
    for what fills up 0. For products of every new size oneDNN keeps a program and its memory: of
    sizes as they come that made 13 GB in an hour."""
    found = chosen.flatten().nonzero()[:, 0]
    places = found.new_zeros(-(-len(found) // UNIT) * UNIT)
    places[: len(found)] = found
    counts = torch.zeros(len(places), device=found.device)
    counts[: len(found)] = 1
    return places, counts


def _count(head: Head, batch: Batch, counts: Counts) -> None:
    """Add the drafts of a batch."""
    n_steps = len(counts.tried)
    going = torch.ones_like(batch.scored)
    steps = head.steps(batch.features, batch.embedded, batch.texts, n_steps)
    for step, left in enumerate(steps):
        tried = going & batch.scored & (batch.before >= step)
        right = tried & (head.logits(left).argmax(-1) == batch.best[..., 0])
        counts.tried[step] += int(tried.sum())
        counts.right[step] += int(right.sum())
        going = torch.cat([torch.zeros_like(right[:, :1]), right[:, :-1]], 1)


def half_pays(device: str) -> bool:
    """Whether bfloat16 is faster than float32 here. Without hardware for it, it is a hundred times
    slower."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return _seconds(torch.bfloat16) < _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    """For a small matrix product, the best of a few."""
    a = torch.ones(256, 512, dtype=dtype)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        a @ a.T
        times.append(time.perf_counter() - start)
    return min(times)
