"""Figures of a benchmark, derived from its runs. Pure.

The speed of a round is that of all its answers together: tokens over time. Figures are medians over
rounds, and speed over plain decoding is the ratio of two medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from .types import PLAIN, Moment, Results, Run

ALL = "all"  # the row over all tasks
BUSY = (
    1.25  # the fastest over the slowest round of plain decoding, where other programs are to blame
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of one figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        return cls(statistics.median(values), min(values), max(values)) if values else None

    def overlaps(self, other: Spread) -> bool:
        return self.least <= other.most and other.least <= self.most


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one task with one way.

    tokens_per_second: generated; prompt_per_second: read, None where prompts have one token only.
    speed: over plain decoding, None for that itself. within_noise: the spreads of both overlap, so
    that the difference may be chance; False after a single round, which has no spread.
    acceptance: accepted over drafted tokens, None where nothing was drafted; at: the same by
    position in the draft; by_source: drafted and accepted tokens. n_same: answers equal to those of
    plain decoding, of n_answers.
    """

    way: str
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
    n_same: int
    n_answers: int


def rows(results: Results) -> list[Row]:
    """For every task, and for all of them where there are several, a row per way."""
    tasks = list(dict.fromkeys(run.task for run in results.runs))
    groups = [*tasks, ALL] if len(tasks) > 1 else tasks
    return [row for task in groups for row in _rows(results, task)]


def overall(results: Results) -> list[Row]:
    """The rows over everything."""
    found = rows(results)
    last = found[-1].task if found else ALL
    return [row for row in found if row.task == last]


def complete(runs: Sequence[Run], ways: Iterable[str]) -> list[Run]:
    """Those of rounds in which every prompt was answered every way. Where there is no such round,
    the prompts of the first that were answered every way."""
    names = list(ways)
    keys = {run.key for run in runs}
    prompts = {run.prompt for run in runs}

    def whole(i: int, prompt: str) -> bool:
        return all((i, prompt, way) in keys for way in names)

    rounds = {i for i, _, _ in keys if all(whole(i, prompt) for prompt in prompts)}
    if rounds:
        return [run for run in runs if run.round in rounds]
    return [run for run in runs if run.round == 0 and whole(0, run.prompt)]


def is_busy(results: Results) -> bool:
    """Whether plain decoding took so different times that other programs must have run."""
    plain = next((row for row in overall(results) if row.way == PLAIN), None)
    speeds = None if plain is None else plain.tokens_per_second
    return speeds is not None and speeds.most > BUSY * speeds.least


def added(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """Two lists of counts, the longer one's length."""
    return [a + b for a, b in zip_longest(some, others, fillvalue=0)]


def summed(counts: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for each in counts:
        total = added(total, each)
    return total


def rates(accepted: Sequence[int], drafted: Sequence[int]) -> tuple[float, ...]:
    """By position, as far as anything was drafted there."""
    pairs = zip_longest(accepted, drafted, fillvalue=0)
    return tuple(a / d if d else 0.0 for a, d in pairs)


def at_by_source(runs: Iterable[Run]) -> dict[str, tuple[float, ...]]:
    """Acceptance by position in the draft, for every drafter."""
    drafted: dict[str, list[int]] = {}
    accepted: dict[str, list[int]] = {}
    for run in runs:
        for name, source in run.sources.items():
            drafted[name] = added(drafted.get(name, []), source.n_drafted_at)
            accepted[name] = added(accepted.get(name, []), source.n_accepted_at)
    return {name: rates(accepted[name], drafted[name]) for name in drafted}


def origins(moments: Iterable[Moment]) -> dict[str, int]:
    """How many tokens of a text came from each drafter, "" for the model's own."""
    counts: dict[str, int] = {}
    for moment in moments:
        for name in moment.origins:
            counts[name] = counts.get(name, 0) + 1
    return counts


def _rows(results: Results, task: str) -> list[Row]:
    of_task = [run for run in results.runs if task in (ALL, run.task)]
    runs = complete(of_task, results.setup.way_names)
    by_way = {way: [run for run in runs if run.way == way] for way in results.setup.way_names}
    plain = by_way.get(PLAIN, [])
    texts = {(run.round, run.prompt): run.text_sha256 for run in plain}
    return [_row(way, task, own, plain, texts) for way, own in by_way.items() if own]


def _row(
    way: str,
    task: str,
    runs: Sequence[Run],
    plain: Sequence[Run],
    texts: Mapping[tuple[int, str], str],
) -> Row:
    speeds = _generated(runs)
    assert speeds is not None
    plain_speeds = _generated(plain)
    n_rounds = len({run.round for run in runs})
    drafted = summed(run.n_drafted_at for run in runs)
    accepted = summed(run.n_accepted_at for run in runs)
    compares = way != PLAIN and plain_speeds is not None
    return Row(
        way=way,
        task=task,
        n_rounds=n_rounds,
        tokens_per_second=speeds,
        prompt_per_second=_read(runs),
        speed=speeds.median / plain_speeds.median if compares and plain_speeds else None,
        within_noise=bool(
            compares and plain_speeds and n_rounds > 1 and speeds.overlaps(plain_speeds)
        ),
        tokens_per_pass=sum(run.n_tokens for run in runs) / sum(run.n_passes for run in runs),
        acceptance=sum(accepted) / sum(drafted) if drafted else None,
        at=rates(accepted, drafted),
        by_source=_by_source(runs),
        n_same=sum(texts.get((run.round, run.prompt)) == run.text_sha256 for run in runs),
        n_answers=len(runs),
    )


def _generated(runs: Sequence[Run]) -> Spread | None:
    return _per_second(runs, lambda run: (run.n_tokens, run.us))


def _read(runs: Sequence[Run]) -> Spread | None:
    """The last token of a prompt goes through the first pass of the text."""
    return _per_second(runs, lambda run: (run.n_prompt - 1, run.prompt_us))


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
            n, right = found.get(name, (0, 0))
            found[name] = (n + sum(source.n_drafted_at), right + sum(source.n_accepted_at))
    return found
