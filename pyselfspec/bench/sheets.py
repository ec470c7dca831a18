"""Figures of a benchmark as cells of tables. Pure; who shows them decides how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..costs.table import N_WIDTH
from ..util.sizes import size_text
from .figures import Row, Spread, is_busy, overall, rows
from .types import PLAIN, Results, Setup, Widths

POSITIONS = (0, 1, 3)  # in a draft
WIDTHS = (1, 2, 3, 4, 6, 8, 12, N_WIDTH)
NOTHING = "-"
RULES = {"<": "---", ">": "---:"}


@dataclass(frozen=True, slots=True)
class Sheet:
    """columns: headings. align: "<" (text) or ">" (numbers) for each. rows: cells."""

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
        """The table; its title is left to whoever shows it."""
        rule = f"|{'|'.join(RULES[side] for side in self.align)}|"
        return "\n".join([_line(self.columns), rule, *map(_line, self.rows)])


NOISE = ", within noise"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def sheets(results: Results) -> list[Sheet]:
    """All tables: speeds, what was accepted of whose drafts, and costs by width where these were
    measured."""
    found = [speeds(rows(results))]
    by_source = sources(overall(results))
    if by_source.rows:
        found.append(by_source)
    if results.widths is not None:
        found.append(widths(results.widths))
    return found


def speeds(found: Sequence[Row]) -> Sheet:
    columns = (
        "draft",
        "task",
        "prompt, tokens/s",
        "text, tokens/s",
        "least to most",
        "over plain",
        "tokens per pass",
        "accepted",
        "of tokens 1, 2, 4",
        "same text",
    )
    return Sheet("speed", columns, "<<>>>>>>>>", [_cells(row) for row in found])


def _cells(row: Row) -> list[str]:
    own = row.way == PLAIN
    read = row.prompt_per_second
    return [
        row.way,
        row.task,
        NOTHING if read is None else short(read.median),
        short(row.tokens_per_second.median),
        _range(row.tokens_per_second),
        NOTHING if row.speed is None else f"{row.speed:.2f}{NOISE if row.within_noise else ''}",
        f"{row.tokens_per_pass:.2f}",
        NOTHING if row.acceptance is None else f"{row.acceptance:.0%}",
        " ".join(f"{row.at[i]:.0%}" for i in POSITIONS if i < len(row.at)) or NOTHING,
        NOTHING if own else f"{row.n_same} of {row.n_answers}",
    ]


def sources(found: Sequence[Row]) -> Sheet:
    cells = [
        [row.way, name, str(n), str(right), f"{right / n:.0%}" if n else NOTHING]
        for row in found
        for name, (n, right) in row.by_source.items()
    ]
    columns = ("draft", "guesses of", "drafted", "accepted", "share")
    return Sheet("drafts by source", columns, "<<>>>", cells)


def widths(found: Widths) -> Sheet:
    """Over a pass of one token, at every length of the text that was timed."""
    cells = [
        [
            str(costs.n_past),
            f"{costs.plain_us / 1000:.3g}",
            *(f"{costs.full_us[width - 1] / costs.plain_us:.2f}" for width in WIDTHS),
        ]
        for costs in found.costs.levels
    ]
    columns = ("tokens before", "ms for one token", *(f"for {width}" for width in WIDTHS))
    return Sheet("cost of a pass over so many tokens", columns, ">" * len(columns), cells)


def provenance(setup: Setup) -> list[tuple[str, str]]:
    """What was measured, where and how, as names and values for people."""
    template = "with the model's chat template" if setup.template else "as plain text"
    sampling = "greedy" if not setup.temperature else f"temperature {setup.temperature:g}"
    stands = [f"{w.name} = {w.drafters}" for w in setup.ways if w.drafters not in ("", w.name)]
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
            f"{setup.n_ctx} tokens, {_counted(setup.threads, 'thread')}, {setup.attention}, "
            f"{setup.n_gpu_layers} layers on GPUs",
        ),
        (
            "prompts",
            f"{_counted(setup.n_prompts, 'prompt')} of {setup.prompts}, {template} "
            f"(SHA-256 {setup.prompts_sha256[:16]})",
        ),
        (
            "answers",
            f"up to {_counted(setup.n_predict, 'token')}, {sampling}, seed {setup.seed}, "
            f"controller {setup.controller}" + "".join(f", {each}" for each in stands),
        ),
        ("command", setup.command),
        ("date", setup.date),
    ]


def notes(results: Results) -> list[str]:
    """What to know before trusting the figures."""
    found = []
    every = overall(results)
    n_rounds = every[0].n_rounds if every else 0
    if not every:
        found.append("no prompt was answered in every way, so there is nothing to compare yet")
    elif n_rounds == 1:
        found.append("one round only: nothing says how far figures would differ in another one")
    if is_busy(results):
        found.append(
            "plain decoding took very different times from round to round, so other programs were "
            "running; measure again when nothing else does"
        )
    if any(row.n_same < row.n_answers for row in every):
        found.append(
            "some texts differ from plain decoding: where logits depend on the width of a pass, a "
            "near-tie may fall otherwise (see docs/limits.md)"
        )
    return found


def short(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _range(spread: Spread) -> str:
    return f"{short(spread.least)} to {short(spread.most)}"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
