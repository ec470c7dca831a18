"""pyselfspec scan-layers: what each unit of a model is worth, and what can be skipped together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

from .. import plots
from ..masks.space import Unit
from ..selection import scanning, strategies
from ..selection.rounds import AbortRatio, GiveUp, Never
from ..selection.scanning import ScanResult, scan
from ..selection.strategies import Prune
from ..selection.tables import NOTHING_PAYS, best_line, to_dict, to_lines
from ..util import paths, records
from ._measuring import (
    measuring_options,
    objective_option,
    picture_callback,
    progress_bar,
    session_options,
    space_options,
)
from ._options import common_options, model_argument, model_params, open_model


@cloup.command(name="scan-layers")
@model_argument
@cloup.option_group(
    "What to try",
    cloup.option(
        "--strategy",
        "--mode",
        type=click.Choice(
            [name for name in strategies.names() if not strategies.load(name).endless]
        ),
        default=scanning.STRATEGY,
        show_default=True,
        help="single: each unit alone. rank: and the least harmful together. greedy: skip the "
        "least harmful, again and again. anti: skip all, add back what matters most. Others as in "
        "search.",
    ),
    objective_option(scanning.OBJECTIVE),
    space_options(
        scanning.SHARE,
        unit_help="What is skipped at a time",
        share_help="Share of the units that the last mask skips.",
    ),
    cloup.option(
        "--prune",
        type=click.IntRange(min=0),
        help="For greedy and anti: leave so many of the worst out of each further round "
        f"(llama.cpp's PR 3565: 2).  [default: {Prune().share:.0%} of those not needed]",
    ),
    cloup.option(
        "--abort-ratio",
        type=click.FloatRange(min=1, min_open=True),
        help="Give up masks with so many times the full model's perplexity after 3 chunks (PR "
        "3565: 30).  [default: give up what is surely not the best]",
    ),
    cloup.option("--exhaustive", is_flag=True, help="Prune nothing and give nothing up."),
)
@measuring_options
@cloup.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=picture_callback,
    help="Draw the result into this file, .png or .svg; it is replaced if it exists.",
)
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Find out what each attention and feed-forward sublayer of a model is worth, and what can be
    skipped while drafting. Leaves a profile that generate then uses.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".
    Results are kept as they come: after Ctrl-C the same command goes on.

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
        from ..plots import scan as picture

        title = f"{model}, {options['strategy']}"
        plots.save(picture.draw(found.report, title), options["plot"])


def _strategy(options: dict[str, Any]) -> strategies.Factory:
    """The strategy with its pruning, where it prunes."""
    name, prunes = options["strategy"], "prune" in strategies.options_of(options["strategy"])
    if options["exhaustive"] and (options["prune"] or options["abort_ratio"]):
        raise click.UsageError("--exhaustive prunes nothing and aborts nothing")
    if options["prune"] is not None and not prunes:
        raise click.UsageError(f"--prune is for --strategy greedy and anti, not for {name}")
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
        raise click.UsageError(
            "--abort-ratio compares perplexities: use it with --objective perplexity"
        )
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
