"""pyselfspec layers scan, or scan-layers: score layers, and find those that drafts can skip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import click
import cloup

from ... import plots
from ...masks.space import Unit
from ...selection import scanning, strategies
from ...selection.rounds import AbortRatio, GiveUp, Never
from ...selection.scanning import ScanResult, scan
from ...selection.strategies import Prune
from ...selection.tables import NOTHING_PAYS, best_line, to_dict, to_lines
from ...util import records
from .._help import ManyOptions
from .._model import model_or_demo_argument
from .._options import common_options, plot_option
from .._types import Choice, Integer, Number, option, rare, takes
from ._measuring import MeasuringOptions, Outcome, objective_option, share_option, unit_option


@dataclass(frozen=True, slots=True)
class Trials:
    """The masks to try, and when to stop scoring one."""

    title: ClassVar[str] = "What to try"
    strategy: str = option(
        "--strategy",
        type=Choice(
            [name for name in strategies.names() if not strategies.load(name).endless],
            strategies.all_names(),
        ),
        default=scanning.STRATEGY,
        help="Which masks to score. single: skip each unit (see --unit) alone. rank: as single, "
        "then skip the least harmful units together. greedy: keep adding the least harmful unit. "
        "anti: skip all units, and keep restoring the one that matters most. climb: change one "
        "unit of the best mask. exit: try every early exit.",
    )
    objective: str = objective_option(scanning.OBJECTIVE)
    unit: str = unit_option()
    share: float = share_option(scanning.SHARE)
    prune: int | None = rare(
        "--prune",
        type=Integer(0),
        help="For greedy and anti: number of units to drop from the candidates after each round, "
        "the most harmful first (2 in llama.cpp's PR 3565).  "
        f"[default: {Prune().share:.0%} of the candidates that the largest mask (see --share) does "
        "not need]",
    )
    abort_ratio: float | None = rare(
        "--abort-ratio",
        type=Number(1, min_open=True),
        help="Stop scoring a mask whose perplexity after 3 chunks is this many times the full "
        "model's (30 in llama.cpp's PR 3565).  [default: stop once the mask cannot be the best]",
    )
    exhaustive: bool = rare(
        "--exhaustive",
        is_flag=True,
        help="Score every candidate completely: no pruning, no early stop.",
    )

    def made_strategy(self) -> strategies.Factory:
        """Return the strategy, with its pruning if it prunes. Raises UsageError for options that do
        not fit it."""
        name, prunes = self.strategy, "prune" in strategies.options_of(self.strategy)
        if strategies.load(name).endless:
            raise click.UsageError(f"--strategy {name} has no end; use it with layers search")
        if self.exhaustive and (self.prune or self.abort_ratio):
            raise click.UsageError(
                "--exhaustive goes with neither --prune nor --abort-ratio; leave out one of them"
            )
        if self.prune is not None and not prunes:
            raise click.UsageError(
                f"--prune goes with --strategy greedy or anti, not with {name}; leave it out"
            )
        if not prunes:
            return strategies.load(name)
        none = self.exhaustive
        return strategies.load(name, prune=Prune(0) if none else Prune(count=self.prune))

    def give_up(self) -> GiveUp | None:
        if self.exhaustive:
            return Never()
        if self.abort_ratio is None:
            return None
        if self.objective != "perplexity":
            raise click.UsageError(
                "--abort-ratio goes with --objective perplexity only; leave it out"
            )
        return AbortRatio(self.abort_ratio)


@cloup.command(name="scan-layers", cls=ManyOptions)
@model_or_demo_argument
@takes(trials=Trials, measuring=MeasuringOptions)
@plot_option("Draw the result")
@common_options
def command(
    model: str, trials: Trials, measuring: MeasuringOptions, plot: Path | None, as_json: bool
) -> None:
    """Score each layer, and find the layers that drafts can skip.

    Scores masks that skip attention and feed-forward sublayers. Then generates some text with the
    best one; if that is faster, it becomes the model's profile: generate and the other commands
    then draft with it. After Ctrl-C, run the same command to resume.

    \b
    pyselfspec scan-layers model.gguf --plot scan.png
    pyselfspec scan-layers model.gguf --strategy greedy --objective perplexity --chunks 15
    """
    give_up, strategy = trials.give_up(), trials.made_strategy()
    task = partial(
        scan,
        strategy=strategy,
        objective=trials.objective,
        unit=Unit(trials.unit),
        share=trials.share,
        give_up=give_up,
    )
    found, outcome = measuring.run(model, task)
    _show(model, found, outcome, as_json)
    if plot is not None:
        from ...plots import scan as picture

        plots.save(picture.draw(found.report, f"{model}, {trials.strategy}"), plot)


def _show(model: str, found: ScanResult, outcome: Outcome, as_json: bool) -> None:
    if as_json:
        what = outcome.fields(model, found) | to_dict(found.report)
        click.echo(records.encode(what).decode())
        return
    click.echo("\n".join(to_lines(found.report)))
    if found.best is not None:
        line = best_line(found.best, found.report.about.label)
        click.echo(f"\n{line}{outcome.note}")
    elif found.report.about.counts_drafts:
        click.echo(f"\n{NOTHING_PAYS}")
    click.echo(f"results: {found.results}", err=True)
