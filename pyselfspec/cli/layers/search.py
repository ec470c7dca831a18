"""pyselfspec layers search: find the mask that makes generation fastest."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import click
import cloup

from ... import plots
from ...masks.space import SHARE, Unit
from ...selection import objectives, searching, strategies
from ...selection.rounds import Scored
from ...selection.searching import SearchResult, search
from ...selection.tables import NOTHING_PAYS, best_line
from ...util import records
from ...util.files import replacing
from .._help import ManyOptions
from .._model import model_or_demo_argument
from .._options import common_options, plot_option, target
from .._types import FILE, Choice, Integer, Number, of_value, option, rare, takes
from ._measuring import MeasuringOptions, Outcome, objective_option, share_option, unit_option


@dataclass(frozen=True, slots=True)
class Trials:
    """The masks to try, and how many of them."""

    title: ClassVar[str] = "What to try"
    strategy: str = option(
        "--strategy",
        type=Choice(strategies.names(), strategies.all_names()),
        default=searching.STRATEGY,
        help="How to choose the next masks to try. climb: change one unit of the best mask. exit: "
        "try every early exit. optuna: use Optuna's samplers. For the others, see scan-layers.",
    )
    objective: str = objective_option(searching.OBJECTIVE)
    max_cost: float = rare(
        "--max-cost",
        type=Number(0, 1, min_open=True),
        default=searching.MAX_COST,
        help="For --objective agreement and perplexity: longest time of a draft token, as a "
        "share of the time of a token in plain decoding.",
    )
    trials: int | None = option(
        "--trials",
        type=Integer(1),
        help=f"Number of masks to try.  [default: {searching.N_TRIALS}; no limit with --minutes]",
    )
    minutes: float | None = option(
        "--minutes",
        type=Number(0, min_open=True),
        help="Longest time of the search in minutes.  [default: no limit]",
    )
    unit: str = unit_option()
    share: float = share_option(SHARE)
    storage: str | None = rare(
        "--storage",
        metavar="URL",
        help="With --strategy optuna: database of the study, like sqlite:///study.db; resumed if "
        "it exists.",
    )


@cloup.command(name="search", cls=ManyOptions)
@model_or_demo_argument
@takes(wanted=Trials, measuring=MeasuringOptions)
@cloup.option(
    "--csv",
    "csv_file",
    type=FILE,
    callback=of_value(target),
    help="With --strategy exit: write the results to this file; replaced if it exists.",
)
@plot_option("With --strategy exit: draw a heat map of the results")
@common_options
def command(
    model: str,
    wanted: Trials,
    measuring: MeasuringOptions,
    csv_file: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Search for the mask that makes generation fastest.

    Then generates some text with it; if that is faster, it becomes the model's profile: generate
    and the other commands then draft with it. Starts from the results of scan-layers on the same
    text, if any. After Ctrl-C, run the same command to resume.

    \b
    pyselfspec layers search model.gguf --minutes 10
    pyselfspec layers search model.gguf --strategy exit --plot exits.png
    """
    about = objectives.load(wanted.objective).about
    if (csv_file or plot) and not (wanted.strategy == "exit" and about.counts_drafts):
        raise click.UsageError(
            "--csv and --plot need --strategy exit, and --objective agreement or expected-speed"
        )
    if wanted.storage and wanted.strategy != "optuna":
        raise click.UsageError("--storage goes with --strategy optuna only; leave it out")
    storage = {"storage": wanted.storage} if wanted.storage else {}
    strategy = strategies.load(wanted.strategy, **storage)
    task = partial(
        search,
        strategy=strategy,
        objective=wanted.objective,
        trials=wanted.trials,
        minutes=wanted.minutes,
        unit=Unit(wanted.unit),
        share=wanted.share,
        max_cost=wanted.max_cost,
    )
    found, outcome = measuring.run(model, task)
    _show(model, found, outcome, wanted.max_cost, as_json)
    if csv_file is not None:
        with (
            replacing(csv_file) as unfinished,
            unfinished.open("w", newline="", encoding="utf-8") as file,
        ):
            rows = csv.writer(file)
            rows.writerow(["exit", "draft_max", "expected_speed"])
            rows.writerows((e, g.n_draft, g.speed) for e, row in found.sweep().items() for g in row)
    if plot is not None:
        from ...plots import exits as picture

        speeds = {keep: [g.speed for g in row] for keep, row in found.sweep().items()}
        plots.save(picture.draw(speeds, model), plot)


def _show(
    model: str, found: SearchResult, outcome: Outcome, max_cost: float, as_json: bool
) -> None:
    if as_json:
        trials = [_row(trial, found) for trial in found.trials]
        what = outcome.fields(model, found) | {"trials": trials, "best": _row(found.best, found)}
        click.echo(records.encode(what).decode())
        return
    line = best_line(found.point, found.about.label)
    click.echo(line + outcome.note)
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
