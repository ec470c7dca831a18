"""pyselfspec layers search: find the mask that makes generation fastest."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import click
import cloup

from ... import plots
from ...masks.space import SHARE, Unit
from ...selection import objectives, searching, strategies
from ...selection.rounds import Scored
from ...selection.searching import SearchResult, search
from ...selection.tables import NOTHING_PAYS, best_line
from ...util import paths, records
from ...util.files import replacing
from .._options import common_options, model_argument, model_params, open_model
from .._targets import plot_option, target_callback
from .._types import FILE, Choice, Integer, Number
from ._measuring import (
    measuring_options,
    objective_option,
    progress_bar,
    session_options,
    space_options,
)


@cloup.command(name="search")
@model_argument
@cloup.option_group(
    "What to try",
    cloup.option(
        "--strategy",
        type=Choice(strategies.names(), strategies.all_names()),
        default=searching.STRATEGY,
        help="How to choose the next masks to try. climb: change one unit of the best mask. exit: "
        "try every early exit. optuna: use Optuna's samplers. For the others, see scan-layers.",
    ),
    objective_option(searching.OBJECTIVE),
    cloup.option(
        "--max-cost",
        type=Number(0, 1, min_open=True),
        default=searching.MAX_COST,
        help="For --objective agreement and perplexity: longest time of a draft token, as a "
        "share of the time of a token in plain decoding.",
    ),
    cloup.option(
        "--trials",
        type=Integer(1),
        help=f"Number of masks to try.  [default: {searching.N_TRIALS}; no limit with --minutes]",
    ),
    cloup.option(
        "--minutes",
        type=Number(0, min_open=True),
        help="Longest time of the search in minutes.  [default: no limit]",
    ),
    space_options(
        SHARE,
        unit_help="Unit to skip",
        share_help="Largest share of the units to skip.",
    ),
    cloup.option(
        "--storage",
        metavar="URL",
        help="With --strategy optuna: database of the study, like sqlite:///study.db; resumed if "
        "it exists.",
    ),
)
@measuring_options
@cloup.option(
    "--csv",
    "csv_file",
    type=FILE,
    callback=target_callback,
    help="With --strategy exit: write the results to this file; replaced if it exists.",
)
@plot_option("With --strategy exit: draw a heat map of the results")
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Search for the mask that makes generation fastest.

    Saves the mask as the model's profile: generate and the other commands then draft with it.
    Starts from the results of scan-layers on the same text, if any. After Ctrl-C, run the same
    command to resume.

    \b
    pyselfspec layers search model.gguf --minutes 10
    pyselfspec layers search model.gguf --strategy exit --plot exits.png
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
        from ...plots import exits as picture

        speeds = {keep: [g.speed for g in row] for keep, row in found.sweep().items()}
        plots.save(picture.draw(speeds, model), options["plot"])


def _check(options: dict[str, Any]) -> None:
    about = objectives.load(options["objective"]).about
    sweeps = options["strategy"] == "exit" and about.counts_drafts
    if (options["csv_file"] or options["plot"]) and not sweeps:
        raise click.UsageError(
            "--csv and --plot need --strategy exit, and --objective agreement or expected-speed"
        )
    if options["storage"] and options["strategy"] != "optuna":
        raise click.UsageError("--storage goes with --strategy optuna only; leave it out")


def _write_csv(found: SearchResult, path: Path) -> None:
    """Write the expected speeds by exit and draft length."""
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
            f"no mask that was tried costs at most --max-cost {max_cost:g}; this one is nearest",
            err=True,
        )


def _row(trial: Scored, found: SearchResult) -> dict[str, Any]:
    row: dict[str, Any] = {"mask": trial.mask.to_dict(), "value": trial.value}
    row["cost"] = found.costs.draft(trial.mask)
    if trial.score.n_runs:
        row["agreement"] = trial.score.agreement
    return row
