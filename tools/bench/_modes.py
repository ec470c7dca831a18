"""Modes of drafting, and plain decoding, in turn on one model with one mask.

A mode is a controller by its name (``auto``, ``fixed``, ...), ``N`` (drafts of N tokens whatever
their probability) or ``unshared-N`` (the same, but draft and check share no blocks).
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from pyselfspec import Context, LayerMask, Model, Sampler, SamplingParams
from pyselfspec.bench.pass_times import time_passes
from pyselfspec.costs.table import Costs, CostTable
from pyselfspec.speculate import controllers
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.speculate.types import Step
from tools.records import Record

from ._options import progress

PLAIN = "plain"
UNSHARED = "unshared-"
PROMPTS = (
    "Once upon a time there was a king who had three daughters, and the youngest",
    "The old man opened the door and",
    "It was late in the evening when the ship",
)
N_CTX = 1024
N_COST_ROUND = 1  # timings of every pass per pair


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    controller: str | None = None  # None: drafts of n tokens
    n: int = 0
    shares: bool = True

    @classmethod
    def parse(cls, name: str) -> Mode:
        if name in controllers.all_names():
            return cls(name, controller=name)
        match = re.fullmatch(rf"({UNSHARED})?([1-9][0-9]?)", name)
        if not match:
            known = ", ".join(controllers.all_names())
            raise click.BadParameter(f"{name!r} is no mode: give N, {UNSHARED}N, or one of {known}")
        return cls(name, n=int(match[2]), shares=match[1] is None)


def shares(name: str) -> bool:
    """Whether draft and check share blocks in a mode of this name."""
    return not name.startswith(UNSHARED)


@dataclass(slots=True)
class Run:
    """Counts and times of one mode, first steps left out. us: per token, one figure per pair."""

    us: list[float] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)  # by "guesses,drafted"
    n_tokens: int = 0
    n_accepted: int = 0
    n_rejected: int = 0  # steps with a drafted token that was wrong
    n_texts: int = 0
    n_same: int = 0  # texts equal to those of plain decoding
    peak_kb: int = 0  # of a process that runs this mode alone; 0: not measured

    def observe(self, steps: Sequence[Step], us: float) -> None:
        n_tokens = sum(len(step.tokens) for step in steps)
        self.us.append(us / n_tokens)
        self.n_tokens += n_tokens
        for step in steps:
            kind = f"{step.draft.n_proposed},{step.n_drafted}"
            self.steps[kind] = self.steps.get(kind, 0) + 1
            self.n_accepted += step.n_accepted
            self.n_rejected += step.n_accepted < step.n_drafted

    def to_dict(self) -> Record:
        return asdict(self) | {"us": [round(us) for us in self.us]}


@dataclass(frozen=True, slots=True)
class Setup:
    """One model with one mask."""

    context: Context
    mask: LayerMask
    table: CostTable  # what controllers know
    n_tokens: int
    temp: float

    def generate(
        self, mode: Mode | None, prompt: Sequence[int], seed: int
    ) -> tuple[list[int], list[Step], float]:
        """Tokens of a text that nothing ends, its steps but the first, and their microseconds.
        mode: None for plain decoding."""
        controller: Any = Fixed()
        drafter: layer_skip.LayerSkipDrafter | None = None
        if mode is not None:
            drafter = layer_skip.LayerSkipDrafter(self.context, self.mask, share=mode.shares)
            if mode.controller is None:
                controller = Fixed(mode.n, p_min=0.0)
            else:
                controller = controllers.load(mode.controller)(self.table)
        sampling = SamplingParams(temperature=self.temp, seed=seed)
        with Sampler(self.context.model, sampling) as sampler:
            steps = generate_steps(
                self.context,
                prompt,
                drafter=drafter,
                controller=controller,
                sampler=sampler,
                n_predict=self.n_tokens,
                consume=lambda _: False,
            )
            first = next(steps)  # after the prompt
            start = time.perf_counter_ns()
            rest = list(steps)
            us = (time.perf_counter_ns() - start) / 1000
        return [token for step in (first, *rest) for token in step.tokens], rest, us

    def compare(
        self, modes: Sequence[Mode], prompts: Sequence[Sequence[int]], pairs: int
    ) -> tuple[dict[str, Run], list[CostTable]]:
        """Costs, plain decoding, and each mode in turn: a pair per prompt and seed, at least
        ``pairs``. Costs each time, since a machine's memory and cores do not speed up and slow down
        together."""
        runs = {name: Run() for name in (PLAIN, *(mode.name for mode in modes))}
        for mode in (None, *modes):  # graphs, pages, caches
            self.generate(mode, prompts[0], seed=0)
        jobs = [(prompt, seed) for seed in range(-(-pairs // len(prompts))) for prompt in prompts]
        tables = []
        for prompt, seed in progress(jobs, "pairs"):
            drafter = layer_skip.LayerSkipDrafter(self.context, self.mask)
            tables.append(time_passes(self.context, drafter, lambda _: None, N_COST_ROUND).costs)
            plain, steps, us = self.generate(None, prompt, seed)
            runs[PLAIN].observe(steps, us)
            for mode in modes:
                text, steps, us = self.generate(mode, prompt, seed)
                run = runs[mode.name]
                run.observe(steps, us)
                run.n_texts += 1
                run.n_same += text == plain
        return runs, tables


def typical(several: Sequence[Costs]) -> Costs:
    """The median of each cost."""
    median = statistics.median
    return Costs(
        several[0].n_past,
        tuple(map(median, zip(*(costs.full_us for costs in several), strict=True))),
        tuple(map(median, zip(*(costs.verify_us for costs in several), strict=True))),
        median(costs.token_us for costs in several),
        median(costs.last_us for costs in several),
    )


def mask_for(model: Model, exit_layer: int | None) -> LayerMask:
    if exit_layer is not None:
        return LayerMask.early_exit(model.n_layer, exit_layer)
    return model.draft_mask or LayerMask.early_exit(model.n_layer, max(1, model.n_layer // 4))


def tokens_of(model: Model, prompts: Path | None) -> list[list[int]]:
    """Prompts as tokens, random ones for models without a tokenizer."""
    texts = prompts.read_text(encoding="utf-8").splitlines() if prompts else list(PROMPTS)
    texts = [text for text in texts if text.strip()]
    if model.has_vocab:
        return [model.tokenize(text) for text in texts]
    streams = (np.random.default_rng(i) for i in range(len(texts)))
    return [[int(t) for t in rng.integers(0, model.n_vocab, 12)] for rng in streams]
