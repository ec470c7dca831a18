"""pyselfspec layers scan, or scan-layers: score layers, and find those that drafts can skip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

from ... import plots
from ...masks.space import Unit
from ...selection import scanning, strategies
from ...selection.rounds import AbortRatio, GiveUp, Never
from ...selection.scanning import ScanResult, scan
from ...selection.strategies import Prune
from ...selection.tables import NOTHING_PAYS, best_line, to_dict, to_lines
from ...util import paths, records
from .._options import common_options, model_argument, model_params, open_model
from .._targets import plot_option
from .._types import Choice, Integer, Number
from ._measuring import (
    measuring_options,
    objective_option,
    progress_bar,
    session_options,
    space_options,
)


@cloup.command(name="scan-layers")
@model_argument
@cloup.option_group(
    "What to try",
    cloup.option(
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
    ),
    objective_option(scanning.OBJECTIVE),
    space_options(
        scanning.SHARE,
        unit_help="Unit to skip",
        share_help="Largest share of the units to skip.",
    ),
    cloup.option(
        "--prune",
        type=Integer(0),
        help="For greedy and anti: number of units to drop from the candidates after each round, "
        "the most harmful first (2 in llama.cpp's PR 3565).  "
        f"[default: {Prune().share:.0%} of the candidates that the largest mask (see --share) does "
        "not need]",
    ),
    cloup.option(
        "--abort-ratio",
        type=Number(1, min_open=True),
        help="Stop scoring a mask whose perplexity after 3 chunks is this many times the full "
        "model's (30 in llama.cpp's PR 3565).  [default: stop once the mask cannot be the best]",
    ),
    cloup.option(
        "--exhaustive",
        is_flag=True,
        help="Score every candidate completely: no pruning, no early stop.",
    ),
)
@measuring_options
@plot_option("Draw the result")
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Score each layer, and find the layers that drafts can skip.

    Scores masks that skip attention and feed-forward sublayers. Saves the best one as the model's
    profile: generate and the other commands then draft with it. After Ctrl-C, run the same command
    to resume.

    \b
    pyselfspec scan-layers model.gguf --plot scan.png
    pyselfspec scan-layers model.gguf --strategy greedy --objective perplexity --chunks 15
    """
    give_up, strategy = _give_up(options), _strategy(options)
    session = session_options(options)
    with open_model(model, **model_params(options)) as loaded, progress_bar() as follow:
        found = scan(
            loaded,
            strategy,
            options["objective"],
            unit=Unit(options["unit"]),
            share=options["share"],
            give_up=give_up,
            progress=follow,
            **session,
        )
    saved = None if options["no_profile"] else found.save()
    _show(model, found, saved, as_json)
    if options["plot"] is not None:
        from ...plots import scan as picture

        title = f"{model}, {options['strategy']}"
        plots.save(picture.draw(found.report, title), options["plot"])


def _strategy(options: dict[str, Any]) -> strategies.Factory:
    """Return the strategy, with its pruning if it prunes. Raises UsageError for options that do
    not fit it."""
    name, prunes = options["strategy"], "prune" in strategies.options_of(options["strategy"])
    if strategies.load(name).endless:
        raise click.UsageError(f"--strategy {name} has no end; use it with layers search")
    if options["exhaustive"] and (options["prune"] or options["abort_ratio"]):
        raise click.UsageError(
            "--exhaustive goes with neither --prune nor --abort-ratio; leave out one of them"
        )
    if options["prune"] is not None and not prunes:
        raise click.UsageError(
            f"--prune goes with --strategy greedy or anti, not with {name}; leave it out"
        )
    if not prunes:
        return strategies.load(name)
    none = options["exhaustive"]
    return strategies.load(name, prune=Prune(0) if none else Prune(count=options["prune"]))


def _give_up(options: dict[str, Any]) -> GiveUp | None:
    if options["exhaustive"]:
        return Never()
    if options["abort_ratio"] is None:
        return None
    if options["objective"] != "perplexity":
        raise click.UsageError("--abort-ratio goes with --objective perplexity only; leave it out")
    return AbortRatio(options["abort_ratio"])


def _show(model: str, found: ScanResult, saved: Path | None, as_json: bool) -> None:
    if as_json:
        what = {
            "model": paths.shown(model),
            "strategy": found.strategy,
            "objective": found.objective,
            "results": paths.shown(str(found.results)),
            "profile": None if saved is None else str(saved),
        }
        click.echo(records.encode(what | to_dict(found.report)).decode())
        return
    click.echo("\n".join(to_lines(found.report)))
    if found.best is not None:
        line = best_line(found.best, found.report.about.label)
        click.echo(f"\n{line}" + (" · saved as profile" if saved else ""))
    elif found.report.about.counts_drafts:
        click.echo(f"\n{NOTHING_PAYS}")
    click.echo(f"results: {found.results}", err=True)
