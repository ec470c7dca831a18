"""pyselfspec search: find the mask that makes generation fastest."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import click
import cloup

from .. import plots
from ..masks.space import SHARE, Unit
from ..selection import objectives, searching, strategies
from ..selection.rounds import Scored
from ..selection.searching import SearchResult, search
from ..selection.tables import NOTHING_PAYS, best_line
from ..util import paths, records
from ..util.files import replacing
from ._measuring import (
    measuring_options,
    objective_option,
    picture_callback,
    progress_bar,
    session_options,
    space_options,
    target_callback,
)
from ._options import common_options, model_argument, model_params, open_model


@cloup.command(name="search")
@model_argument
@cloup.option_group(
    "What to try",
    cloup.option(
        "--strategy",
        type=click.Choice(strategies.names()),
        default=searching.STRATEGY,
        show_default=True,
        help="How to choose the next masks to try.",
    ),
    objective_option(searching.OBJECTIVE),
    cloup.option(
        "--max-cost",
        type=click.FloatRange(0, 1, min_open=True),
        default=searching.MAX_COST,
        show_default=True,
        help="For agreement and perplexity: cost of a draft token over a plain one.",
    ),
    cloup.option(
        "--trials",
        type=click.IntRange(min=1),
        help=f"Masks to try.  [default: {searching.N_TRIALS}, without --minutes]",
    ),
    cloup.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Time to search."),
    space_options(
        SHARE,
        unit_help="What masks are made of",
        share_help="Largest share of the units to skip.",
    ),
    cloup.option(
        "--storage",
        metavar="URL",
        help="Where Optuna keeps its study, like sqlite:///study.db; resumed if it exists.",
    ),
)
@measuring_options
@cloup.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path),
    callback=target_callback,
    help="With --strategy exit: write the sweep to this file; it is replaced if it exists.",
)
@cloup.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=picture_callback,
    help="With --strategy exit: a heat map of the sweep, .png or .svg; replaced if it exists.",
)
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Find the mask that makes generation fastest, and keep it as the profile that generate uses.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".
    Searches start from what scan-layers found on the same text.

    \b
    pyselfspec search model.gguf --minutes 10
    pyselfspec search model.gguf --strategy exit --plot exits.png
    """
    _check(options)
    storage = {"storage": options["storage"]} if options["storage"] else {}
    strategy = strategies.load(options["strategy"], **storage)
    session = session_options(options)
    with open_model(model, **model_params(options)) as loaded, progress_bar() as follow:
        found = search(
            loaded,
            strategy,
            options["objective"],
            trials=options["trials"],
            minutes=options["minutes"],
            unit=Unit(options["unit"]),
            share=options["share"],
            max_cost=options["max_cost"],
            progress=follow,
            **session,
        )
    saved = None if options["no_profile"] else found.save()
    _show(model, found, saved, options["max_cost"], as_json)
    if options["csv_file"] is not None:
        _write_csv(found, options["csv_file"])
    if options["plot"] is not None:
        from ..plots import exits as picture

        speeds = {keep: [g.speed for g in row] for keep, row in found.sweep().items()}
        plots.save(picture.draw(speeds, model), options["plot"])


def _check(options: dict[str, Any]) -> None:
    about = objectives.load(options["objective"]).about
    sweeps = options["strategy"] == "exit" and about.counts_drafts
    if (options["csv_file"] or options["plot"]) and not sweeps:
        raise click.UsageError(
            "--csv and --plot show the sweep of --strategy exit, by agreement or expected speed"
        )
    if options["storage"] and options["strategy"] != "optuna":
        raise click.UsageError("--storage is for --strategy optuna; others keep no study")


def _write_csv(found: SearchResult, path: Path) -> None:
    """Expected speeds by exit and draft length."""
    with (
        replacing(path) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(["exit", "draft_max", "expected_speed"])
        rows.writerows((e, g.n_draft, g.speed) for e, row in found.sweep().items() for g in row)


def _show(
    model: str, found: SearchResult, saved: Path | None, max_cost: float, as_json: bool
) -> None:
    if as_json:
        result = {
            "model": paths.shown(model),
            "strategy": found.strategy,
            "objective": found.objective,
            "trials": [_row(trial, found) for trial in found.trials],
            "best": _row(found.best, found),
            "results": paths.shown(str(found.results)),
            "profile": None if saved is None else str(saved),
        }
        click.echo(records.encode(result).decode())
        return
    line = best_line(found.point, found.about.label)
    click.echo(line + (" · saved as profile" if saved else ""))
    if found.point.speed is not None and found.point.speed <= 1:
        click.echo(NOTHING_PAYS)
    if not found.about.weighs_cost and found.costs.draft(found.mask) > max_cost:
        click.echo(
            f"no mask that was tried is as cheap as --max-cost {max_cost:g}; this is the nearest",
            err=True,
        )


def _row(trial: Scored, found: SearchResult) -> dict[str, Any]:
    row: dict[str, Any] = {"mask": trial.mask.to_dict(), "value": trial.value}
    row["cost"] = found.costs.draft(trial.mask)
    if trial.score.n_runs:
        row["agreement"] = trial.score.agreement
    return row
