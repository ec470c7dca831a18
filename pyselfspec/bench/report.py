"""The report of a benchmark: one HTML page, drawn with CSS, that needs no script or other file.

Also well-formed XML, so that any parser can check it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from ..speculate.draft_names import SIGN
from ..util import paths
from .figures import ALL, Row, complete, overall, rows
from .tables import notes, provenance, short, tables
from .types import PLAIN, UPSTREAM, Results, Run, StepRecord

# Colours are CSS classes of the page.
OWN = "own"  # plain decoding and tokens of the full model
SEVERAL = "several"  # variants of several drafters
COLOURS = ("one", "two", "three", "four", "five", "six")  # of drafters


@dataclass(frozen=True, slots=True)
class Bar:
    """The speed of a variant on a task. share: of the highest speed on the page, 0 to 1."""

    row: Row
    colour: str
    share: float


@dataclass(frozen=True, slots=True)
class Column:
    """A pass of an answer. share: of the answer's time, 0 to 1. n_draft: draft tokens. colours: of
    the tokens that it added. title: a description."""

    share: float
    n_draft: int
    colours: tuple[str, ...]
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """An answer, pass by pass. share: of the time of the slowest answer, 0 to 1."""

    variant: str
    summary: str
    share: float
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """The answers of all variants to one prompt, and the text of the fastest variant.

    pieces: text and colour of each token. shares: name, colour and number of tokens by source.
    n_most: most tokens of a pass.
    """

    prompt: str
    lanes: tuple[Lane, ...]
    pieces: tuple[tuple[str, str], ...]
    shares: tuple[tuple[str, str, int], ...]
    n_most: int


def html(results: Results) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(paths.REPORT.read_text(encoding="utf-8"))
    all_tasks = {row.variant: row for row in overall(results)}
    drafted = (row for row in all_tasks.values() if row.variant not in (PLAIN, UPSTREAM))
    best = max(drafted, key=lambda row: row.speed or 0.0, default=None)
    return template.render(
        setup=results.setup,
        best=best,
        plain=all_tasks.get(PLAIN),
        upstream=all_tasks.get(UPSTREAM),
        short=short,
        tables=tables(results),
        notes=notes(results),
        provenance=provenance(results.setup),
        bars=bars(results),
        example=None if best is None else example(results, best),
    )


def _colours(results: Results) -> dict[str, str]:
    """Return the colour of every drafter."""
    names = dict.fromkeys(name for run in results.runs for name in run.sources)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _variant_colours(results: Results) -> dict[str, str]:
    colours = _colours(results) | {"": OWN}
    return {
        each.name: SEVERAL if SIGN in each.drafters else colours.get(each.drafters, COLOURS[0])
        for each in results.setup.variants
    }


def bars(results: Results) -> dict[str, list[Bar]]:
    """Return the speeds of all variants by task."""
    found, colours = rows(results), _variant_colours(results)
    highest = max((row.tokens_per_second.median for row in found), default=1.0)
    groups: dict[str, list[Bar]] = {}
    for row in found:
        task = "all tasks" if row.task == ALL else row.task
        bar = Bar(row, colours[row.variant], row.tokens_per_second.median / highest)
        groups.setdefault(task, []).append(bar)
    return groups


def example(results: Results, best: Row) -> Example | None:
    """Return the answers of the first round to one prompt, that whose speed with the best variant
    is closest to the speed over all prompts; None if no prompt has all answers."""
    first = [run for run in complete(results.runs, results.setup.variant_names) if run.steps]
    by_prompt: dict[str, dict[str, Run]] = {}
    for run in first:
        by_prompt.setdefault(run.prompt, {})[run.variant] = run
    runs = min(
        by_prompt.values(),
        key=lambda found: abs(_speedup(found[PLAIN], found[best.variant]) - (best.speed or 0.0)),
        default=None,
    )
    if runs is None:
        return None
    colours = _colours(results) | {"": OWN}
    chosen = runs[best.variant]
    pieces = (
        (text, colours[source])
        for step in chosen.steps
        for text, source in zip(step.texts, step.sources, strict=True)
    )
    sources = [source for step in chosen.steps for source in step.sources]
    longest = max(_us(run.steps) for run in runs.values())
    return Example(
        chosen.prompt,
        tuple(_lane(run, longest, colours) for run in runs.values()),
        tuple(dropwhile(lambda piece: not piece[0].strip(), pieces)),
        tuple((name, colours[name], sources.count(name)) for name in sorted(set(sources))),
        1 + max(sum(step.drafted.values()) for run in runs.values() for step in run.steps),
    )


def _lane(run: Run, longest: int, colours: Mapping[str, str]) -> Lane:
    us = _us(run.steps)
    n_tokens = sum(len(step.texts) for step in run.steps)
    summary = f"{n_tokens} tokens in {len(run.steps)} passes, {us / 1e6:.2f} s"
    columns = (
        Column(
            (step.draft_us + step.verify_us) / max(us, 1),
            sum(step.drafted.values()),
            tuple(colours[source] for source in sorted(step.sources, key=bool)),
            _title(n, step),
        )
        for n, step in enumerate(run.steps, 1)
    )
    return Lane(run.variant, summary, us / max(longest, 1), tuple(columns))


def _title(n: int, step: StepRecord) -> str:
    ms = (step.draft_us + step.verify_us) / 1000
    drafted = ", ".join(f"{count} by {name}" for name, count in step.drafted.items())
    n_accepted = sum(map(bool, step.sources))
    drafts = f"; drafted: {drafted}; {n_accepted} accepted" if drafted else ""
    return f"pass {n}, {ms:.1f} ms{drafts}: {''.join(step.texts)!r}"


def _us(steps: Sequence[StepRecord]) -> int:
    return sum(step.draft_us + step.verify_us for step in steps)


def _speedup(plain: Run, run: Run) -> float:
    return (plain.us / plain.n_tokens) / (run.us / run.n_tokens)
