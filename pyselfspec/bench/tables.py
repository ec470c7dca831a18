"""Figures of a benchmark as tables of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..costs.table import N_WIDTH
from ..util.sizes import size_text
from .figures import Row, Spread, is_busy, overall, rows
from .types import PLAIN, UPSTREAM, Results, Setup, Widths

POSITIONS = (0, 1, 3)  # in a draft
NOISE = ", within noise"
WIDTHS = (1, 2, 3, 4, 6, 8, 12, N_WIDTH)
NOTHING = "-"
UPSTREAM_MEANS = (
    "plain decoding with its own kernels in place of ours; the file, the threads and the build are "
    "the same"
)
RULES = {"<": "---", ">": "---:"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table. columns: headings. align: "<" (text) or ">" (numbers) for each. rows: cells."""

    title: str
    columns: tuple[str, ...]
    align: str
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if len(self.align) != len(self.columns):
            raise ValueError(f"{len(self.columns)} columns, {len(self.align)} alignments")
        if any(len(cells) != len(self.columns) for cells in self.rows):
            raise ValueError(f"a row of {self.title!r} has not {len(self.columns)} cells")

    def markdown(self) -> str:
        """Return the table in Markdown, without its title."""
        rule = f"|{'|'.join(RULES[side] for side in self.align)}|"
        return "\n".join([_line(self.columns), rule, *map(_line, self.rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def tables(results: Results) -> list[Table]:
    """Return all tables: speeds, acceptance by drafter, and costs by width if measured."""
    found = [speeds(rows(results))]
    by_source = sources(overall(results))
    if by_source.rows:
        found.append(by_source)
    if results.widths is not None:
        found.append(widths(results.widths))
    return found


def speeds(found: Sequence[Row]) -> Table:
    columns = (
        "variant",
        "task",
        "prompt, tokens/s",
        "text, tokens/s",
        "spread",
        "over plain",
        "tokens per pass",
        "accepted",
        "at positions 1, 2, 4",
        "same text",
    )
    return Table("speed", columns, "<<>>>>>>>>", [_cells(row) for row in found])


def _cells(row: Row) -> list[str]:
    is_compared = row.variant != PLAIN and row.n_same is not None
    read = row.prompt_per_second
    return [
        row.variant,
        row.task,
        NOTHING if read is None else short(read.median),
        short(row.tokens_per_second.median),
        _range(row.tokens_per_second),
        NOTHING if row.speed is None else f"{row.speed:.2f}{NOISE if row.within_noise else ''}",
        f"{row.tokens_per_pass:.2f}",
        NOTHING if row.acceptance is None else f"{row.acceptance:.0%}",
        " ".join(f"{row.at[i]:.0%}" for i in POSITIONS if i < len(row.at)) or NOTHING,
        f"{row.n_same} of {row.n_answers}" if is_compared else NOTHING,
    ]


def sources(found: Sequence[Row]) -> Table:
    cells = [
        [row.variant, name, str(n), str(accepted), f"{accepted / n:.0%}" if n else NOTHING]
        for row in found
        for name, (n, accepted) in row.by_source.items()
    ]
    columns = ("variant", "drafter", "drafted", "accepted", "acceptance rate")
    return Table("draft tokens by drafter", columns, "<<>>>", cells)


def widths(found: Widths) -> Table:
    """Return costs over that of a pass of one token, by width and length of text."""
    cells = [
        [
            str(costs.n_past),
            f"{costs.plain_us / 1000:.3g}",
            *(f"{costs.full_us[width - 1] / costs.plain_us:.2f}" for width in WIDTHS),
        ]
        for costs in found.costs.levels
    ]
    columns = ("tokens before", "ms for one token", *(f"for {width}" for width in WIDTHS))
    return Table("cost of a pass by its width", columns, ">" * len(columns), cells)


def provenance(setup: Setup) -> list[tuple[str, str]]:
    """Return what was measured, where and how, as names and values."""
    template = "with the model's chat template" if setup.template else "as plain text"
    sampling = "greedy" if not setup.temperature else f"temperature {setup.temperature:g}"
    stands = [f"{w.name} = {w.drafters}" for w in setup.variants if w.drafters not in ("", w.name)]
    compared = [(UPSTREAM, UPSTREAM_MEANS)] if UPSTREAM in setup.variant_names else []
    return [
        (
            "model",
            f"{setup.model}: {setup.architecture}, {setup.n_params / 1e6:.0f} M parameters, "
            f"{setup.file_type}, {size_text(setup.n_bytes)}",
        ),
        ("fingerprint", setup.fingerprint),
        ("machine", setup.machine),
        ("instruction set", f"{setup.cpu_code}; {setup.system}"),
        ("program", f"pyselfspec {setup.version}, library {setup.build}"),
        (
            "context",
            f"{setup.n_ctx} tokens, {_count(setup.threads, 'thread')}, {setup.attention}, "
            f"{setup.n_gpu_layers} layers on GPUs",
        ),
        (
            "prompts",
            f"{_count(setup.n_prompts, 'prompt')} of {setup.prompts}, {template} "
            f"(SHA-256 {setup.prompts_sha256[:16]})",
        ),
        (
            "answers",
            f"up to {_count(setup.n_predict, 'token')}, {sampling}, seed {setup.seed}, "
            f"controller {setup.controller}" + "".join(f", {each}" for each in stands),
        ),
        *compared,
        ("command", setup.command),
        ("date", setup.date),
    ]


def notes(results: Results) -> list[str]:
    """Return warnings about the figures."""
    found = []
    every = overall(results)
    n_rounds = every[0].n_rounds if every else 0
    if not every:
        found.append("no prompt has answers of all variants yet, so there is nothing to compare")
    elif n_rounds == 1:
        found.append("one round only: the spread of the figures is unknown; use more --rounds")
    if is_busy(results):
        found.append(
            "the speed of plain decoding differs much between rounds, so other programs were "
            "running; measure again without them"
        )
    if any(row.n_same not in (None, row.n_answers) for row in every):
        found.append(
            "some texts differ from those of plain decoding: logits depend on the width of a pass "
            "here, and a near-tie was decided differently (see docs/limits.md)"
        )
    return found


def short(value: float) -> str:
    """Return a number with three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _range(spread: Spread) -> str:
    return f"{short(spread.least)} to {short(spread.most)}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
