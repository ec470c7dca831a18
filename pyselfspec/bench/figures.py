"""Figures of a benchmark, derived from its runs. Pure.

The speed of a round is the tokens of all its answers over their time. Figures are medians over
rounds, and speed over plain decoding is the ratio of two medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from .types import PLAIN, UPSTREAM, Results, Run

ALL = "all"  # the row over all tasks
# A ratio of the fastest to the slowest round of plain decoding that other programs must explain.
BUSY = 1.25


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of a figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread, None without values."""
        return cls(statistics.median(values), min(values), max(values)) if values else None

    def overlaps(self, other: Spread) -> bool:
        return self.least <= other.most and other.least <= self.most


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one variant on one task.

    tokens_per_second: generated tokens. prompt_per_second: prompt tokens, None if prompts have one
    token only. speed: over plain decoding, None for plain decoding. within_noise: whether both
    spreads overlap, so that the difference may be chance; False after one round. acceptance: the
    acceptance rate, None without drafts. at: acceptance rate by position in the draft. by_source:
    (drafted, accepted) tokens by drafter. n_same: answers, of n_answers, equal to those of plain
    decoding; None for UPSTREAM, since other kernels round differently.
    """

    variant: str
    task: str
    n_rounds: int
    tokens_per_second: Spread
    prompt_per_second: Spread | None
    speed: float | None
    within_noise: bool
    tokens_per_pass: float
    acceptance: float | None
    at: tuple[float, ...]
    by_source: dict[str, tuple[int, int]]
    n_same: int | None
    n_answers: int


def rows(results: Results) -> list[Row]:
    """Return a row per task and variant, and rows over all tasks if there are several."""
    tasks = list(dict.fromkeys(run.task for run in results.runs))
    groups = [*tasks, ALL] if len(tasks) > 1 else tasks
    return [row for task in groups for row in _rows(results, task)]


def overall(results: Results) -> list[Row]:
    """Return the rows over all tasks."""
    found = rows(results)
    last = found[-1].task if found else ALL
    return [row for row in found if row.task == last]


def complete(runs: Sequence[Run], variants: Iterable[str]) -> list[Run]:
    """Return the runs of complete rounds, in which every prompt was answered with every variant. If
    there is none, return those of the prompts of the first round that are complete."""
    names = list(variants)
    keys = {run.key for run in runs}
    prompts = {run.prompt for run in runs}

    def whole(i: int, prompt: str) -> bool:
        return all((i, prompt, variant) in keys for variant in names)

    rounds = {i for i, _, _ in keys if all(whole(i, prompt) for prompt in prompts)}
    if rounds:
        return [run for run in runs if run.round in rounds]
    return [run for run in runs if run.round == 0 and whole(0, run.prompt)]


def is_busy(results: Results) -> bool:
    """Return whether times of plain decoding differ so much that other programs must have run."""
    plain = next((row for row in overall(results) if row.variant == PLAIN), None)
    speeds = None if plain is None else plain.tokens_per_second
    return speeds is not None and speeds.most > BUSY * speeds.least


def added(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """Return the sums of two lists of counts, as long as the longer one."""
    return [a + b for a, b in zip_longest(some, others, fillvalue=0)]


def _sum(counts: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for each in counts:
        total = added(total, each)
    return total


def _rates(accepted: Sequence[int], drafted: Sequence[int]) -> tuple[float, ...]:
    """Return acceptance rates by position."""
    pairs = zip_longest(accepted, drafted, fillvalue=0)
    return tuple(a / d if d else 0.0 for a, d in pairs)


def _rows(results: Results, task: str) -> list[Row]:
    of_task = [run for run in results.runs if task in (ALL, run.task)]
    runs = complete(of_task, results.setup.variant_names)
    by_variant = {
        variant: [run for run in runs if run.variant == variant]
        for variant in results.setup.variant_names
    }
    plain = by_variant.get(PLAIN, [])
    texts = {(run.round, run.prompt): run.text_sha256 for run in plain}
    return [_row(variant, task, own, plain, texts) for variant, own in by_variant.items() if own]


def _row(
    variant: str,
    task: str,
    runs: Sequence[Run],
    plain: Sequence[Run],
    texts: Mapping[tuple[int, str], str],
) -> Row:
    speeds = _generation_speed(runs)
    assert speeds is not None
    plain_speeds = _generation_speed(plain)
    n_rounds = len({run.round for run in runs})
    drafted = _sum(run.n_drafted_at for run in runs)
    accepted = _sum(run.n_accepted_at for run in runs)
    compares = variant != PLAIN and plain_speeds is not None
    return Row(
        variant=variant,
        task=task,
        n_rounds=n_rounds,
        tokens_per_second=speeds,
        # the last token of a prompt is part of the first pass of the answer
        prompt_per_second=_per_second(runs, lambda run: (run.n_prompt - 1, run.prompt_us)),
        speed=speeds.median / plain_speeds.median if compares and plain_speeds else None,
        within_noise=bool(
            compares and plain_speeds and n_rounds > 1 and speeds.overlaps(plain_speeds)
        ),
        tokens_per_pass=sum(run.n_tokens for run in runs) / sum(run.n_passes for run in runs),
        acceptance=sum(accepted) / sum(drafted) if drafted else None,
        at=_rates(accepted, drafted),
        by_source=_by_source(runs),
        n_same=None
        if variant == UPSTREAM
        else sum(texts.get((run.round, run.prompt)) == run.text_sha256 for run in runs),
        n_answers=len(runs),
    )


def _generation_speed(runs: Sequence[Run]) -> Spread | None:
    return _per_second(runs, lambda run: (run.n_tokens, run.us))


def _per_second(runs: Sequence[Run], counted: Callable[[Run], tuple[int, int]]) -> Spread | None:
    by_round: dict[int, list[tuple[int, int]]] = {}
    for run in runs:
        by_round.setdefault(run.round, []).append(counted(run))
    totals = [[sum(column) for column in zip(*each, strict=True)] for each in by_round.values()]
    return Spread.of([1e6 * n / max(us, 1) for n, us in totals if n])


def _by_source(runs: Iterable[Run]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, source in run.sources.items():
            n, accepted = found.get(name, (0, 0))
            found[name] = (n + sum(source.n_drafted_at), accepted + sum(source.n_accepted_at))
    return found
