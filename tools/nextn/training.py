"""Trains a Network: its blocks on text, and its heads on what the blocks predict there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pyselfspec.tune.muon import Muon
from pyselfspec.tune.train import bfloat16_is_faster
from tools.layerskip.data import Tokens, rows_of_step
from tools.nextn.network import Network


@dataclass(frozen=True, slots=True)
class Plan:
    """How a network is trained.

    n_steps: most steps; training also ends when the time is up. n_lines: rows of text in a step.
    rate: step size of Muon, for the matrices of blocks and heads. rate_other: step size of AdamW,
    for embeddings, output and norms. head_share: weight of each head's loss beside the model's.
    warmup, decay: shares of the training in which the step sizes rise, and fall to zero.
    """

    minutes: float = 5.0
    n_steps: int = 300
    n_lines: int = 8
    rate: float = 3e-3
    rate_other: float = 3e-4
    head_share: float = 1.0
    warmup: float = 0.02
    decay: float = 0.5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Losses:
    """Means over rows, in nats. model: cross entropy with the text. heads: of each head, cross
    entropy with the model's own distribution over the same token."""

    model: Tensor
    heads: tuple[Tensor, ...]


def losses(network: Network, lines: Tensor) -> Losses:
    """lines: int64 [n_lines, n_rows + 1], the last column of which is predicted only."""
    ids, targets = lines[:, :-1], lines[:, 1:]
    states = network.states(ids)
    logits = network.logits(states).float()
    model = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    expected = logits.detach().softmax(-1)
    heads = []
    for k, left in enumerate(network.drafted(ids, states)):
        drafted = network.logits(left).float().log_softmax(-1)
        heads.append(-(expected[:, k + 1 :] * drafted).sum(-1).mean())
    return Losses(model, tuple(heads))


def acceptance(network: Network, lines: Tensor) -> tuple[float, ...]:
    """Return the acceptance rate by draft position, given that the positions before it were
    accepted: how often the heads, greedy, find the model's likeliest tokens where the text goes on
    with these. lines: as for ``losses``."""
    with torch.no_grad():
        ids = lines[:, :-1]
        states = network.states(ids)
        best = network.logits(states).argmax(-1)
        found, going = [], (best[:, :-1] == ids[:, 1:])
        for k, left in enumerate(network.drafted(ids, states)):
            # the text so far is what the model would have written
            drafted = going[:, : left.shape[1]]
            right = drafted & (network.logits(left).argmax(-1) == best[:, k + 1 :])
            found.append(float(right.sum() / drafted.sum().clamp(min=1)))
            going = right[:, :-1] & (best[:, k + 1 : -1] == ids[:, k + 2 :])
    return tuple(found)


class Training:
    """A network and the state of its optimizers."""

    def __init__(self, network: Network, plan: Plan) -> None:
        self.network, self.plan, self.n_steps_done = network, plan, 0
        self._bfloat16 = bfloat16_is_faster("cpu")
        inner = [*network.blocks.parameters(), *network.heads.parameters()]
        matrices = [p for p in inner if p.ndim > 1]
        known = {id(p) for p in matrices}
        others = [p for p in network.parameters() if id(p) not in known]
        dtype = torch.bfloat16 if self._bfloat16 else torch.float32
        self._optimizers = (
            (Muon(matrices, plan.rate, dtype), plan.rate),
            (torch.optim.AdamW(others, plan.rate_other, (0.9, 0.95)), plan.rate_other),
        )

    def run(self, rows: Tokens, report: Callable[[str], None]) -> Iterator[Losses]:
        """Train until the plan's end; yield the losses of each step. rows: [n, n_rows + 1]."""
        start, plan = time.monotonic(), self.plan
        while True:
            minutes = (time.monotonic() - start) / 60
            share = max(minutes / plan.minutes, self.n_steps_done / plan.n_steps)
            if share >= 1:
                return
            chosen = rows_of_step(len(rows), plan.n_lines, self.n_steps_done, plan.seed)
            found = self.learn(torch.from_numpy(rows[chosen].astype("int64")), share)
            if self.n_steps_done % 10 == 0:
                heads = " ".join(f"{float(loss):.2f}" for loss in found.heads)
                report(f"{share:4.0%}  model {float(found.model):.2f}  heads {heads}")
            yield found

    def learn(self, lines: Tensor, share: float) -> Losses:
        """Take one step. share: of the training that is over, 0 to 1."""
        with self._precision():
            found = losses(self.network, lines)
        total = found.model + self.plan.head_share * sum(found.heads)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        factor = min(1.0, share / self.plan.warmup + 0.1, (1 - share) / self.plan.decay)
        for optimizer, rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
        self.n_steps_done += 1
        return Losses(found.model.detach(), tuple(loss.detach() for loss in found.heads))

    def _precision(self) -> AbstractContextManager[Any]:
        if not self._bfloat16:
            return nullcontext()
        cast: AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16)
        return cast
