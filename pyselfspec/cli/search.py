"""pyselfspec search: find the mask that makes generation fastest."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import click

from .. import plots
from ..costs.expected import gains
from ..errors import MaskError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..masks.space import SHARE, Space, Unit
from ..runtime.sampling import SamplingParams
from ..selection import search
from ..selection.chunks import first_scored
from ..selection.judges import Agreement, Expected, Measured
from ..selection.measuring import Measuring, Never
from ..selection.scan_report import best_line, point
from ..selection.search import Budget, Judge, Setting, Trial, best_of
from ..speculate.controllers.fixed import Fixed
from ..util.files import replacing
from ._measuring import (
    Bench,
    interrupted,
    known_masks,
    measuring_options,
    opened,
    picture_callback,
    profile_of,
    progress_bar,
    space_options,
    target_callback,
)
from ._options import common_options, model_argument

N_TRIALS = 100
N_PREDICT = 64  # tokens, where speed is measured
N_START = 3  # masks of an earlier scan to start from


@click.command(name="search")
@model_argument
@click.option(
    "--strategy",
    type=click.Choice(search.names()),
    default="greedy",
    show_default=True,
    help="How to choose the next mask to try.",
)
@click.option(
    "--objective",
    type=click.Choice(["tokens-per-second", "acceptance", "measured"]),
    default="tokens-per-second",
    show_default=True,
    help="Expected speed; agreement of masks up to --max-cost; or speed measured by generating.",
)
@click.option(
    "--max-cost",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.6,
    show_default=True,
    help="For acceptance: cost of a drafted token over a plain one.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help=f"Masks to try.  [default: {N_TRIALS}, without --minutes]",
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Time to search.")
@space_options(
    SHARE,
    unit_help="What masks are made of",
    share_help="Of the units, skipped at most.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="Where Optuna keeps its study, like sqlite:///study.db; taken up when it exists.",
)
@measuring_options
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path),
    callback=target_callback,
    help="With --strategy exit: the sweep.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=picture_callback,
    help="With --strategy exit: a heat map of the sweep, .png or .svg.",
)
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Find the mask that makes generation fastest, and keep it as the profile that generate uses.

    MODEL is a GGUF file; default: $PYSELFSPEC_MODEL, else "demo", the bundled model. Searches start
    from what scan-layers found on the same text.

    \b
    pyselfspec search model.gguf --minutes 10
    pyselfspec search model.gguf --strategy exit --plot exits.png
    """
    sweeps = options["strategy"] == "exit" and options["objective"] != "measured"
    if (options["csv_file"] or options["plot"]) and not sweeps:
        raise click.UsageError("--csv and --plot show the sweep of --strategy exit")
    if options["storage"] and options["strategy"] != "optuna":
        raise click.UsageError("--storage is for --strategy optuna; others keep no study")
    trials = options["trials"]
    if trials is None and options["minutes"] is None:
        trials = N_TRIALS
    budget = Budget(trials, options["minutes"])
    with opened(model, "match", options, keep=True) as bench:
        setting = _setting(bench, options)
        judge = _judge(bench, options)
        found = _search(search.load(options["strategy"])(setting), judge, bench, budget)
        best = best_of([*found, *map(judge, known_masks(bench.model))])
        saved = None
        if best.score is not None:
            shown = point(best.mask, best.score, bench.costs, expects=True)
            if (shown.speed or 0.0) > 1 and not options["no_profile"]:
                saved = profiles.save(profile_of(bench, shown, f"search {options['strategy']}"))
        _write_sweep(found, bench, options)
        if as_json:
            rows = [_row(trial, bench) for trial in found]
            result = {"model": model, "trials": rows, "best": _row(best, bench)}
            click.echo(json.dumps(result | {"profile": None if saved is None else str(saved)}))
        else:
            click.echo(_text(best, bench) + (" · saved as profile" if saved else ""))


def _setting(bench: Bench, options: dict[str, Any]) -> Setting:
    return Setting(
        space=Space.of(bench.context.mask_support, Unit(options["unit"])),
        share=options["share"],
        start=_start(bench),
        seed=options["seed"],
        context=bench.context,
        chunk=bench.texts[0],
        storage=options["storage"],
    )


def _start(bench: Bench) -> tuple[LayerMask, ...]:
    """What is known, every other block, and the best of what is in the file of results."""
    masks = known_masks(bench.model)
    try:
        masks.append(LayerMask.alternate(bench.model.n_layer))
    except MaskError:
        pass
    judged = [
        (point(mask, score, bench.costs, expects=True).speed or 0.0, mask)
        for mask, (n_chunks, score) in bench.results.totals().items()
        if n_chunks >= bench.n_chunks and mask.n_active < 2 * mask.n_layer
    ]
    judged.sort(key=lambda item: -item[0])
    masks += [mask for _speed, mask in judged[:N_START]]
    return tuple(dict.fromkeys(masks))


def _judge(bench: Bench, options: dict[str, Any]) -> Judge:
    if options["objective"] == "measured":
        first = first_scored(len(bench.texts[0]))
        prompts = [text[:first] for text in bench.texts]
        sampling = SamplingParams(seed=options["seed"])
        return Measured(bench.context, prompts, N_PREDICT, Fixed(), sampling)
    measuring = Measuring(bench.objective, bench.results, bench.n_chunks, Never())
    if options["objective"] == "acceptance":
        return Agreement(measuring, bench.costs, options["max_cost"])
    return Expected(measuring, bench.costs)


def _search(chosen: search.Search, judge: Judge, bench: Bench, budget: Budget) -> list[Trial]:
    found: list[Trial] = []
    start = time.monotonic()
    try:
        with progress_bar() as bar:
            task = bar.add_task("trying masks", total=budget.trials)
            for trial in search.run(chosen, judge, budget):
                found.append(trial)
                bar.update(task, completed=len(found))
                if budget.trials is None and budget.minutes is not None:
                    share = (time.monotonic() - start) / 60 / budget.minutes
                    bar.update(task, total=max(len(found), round(len(found) / max(share, 1e-9))))
    except KeyboardInterrupt:
        interrupted(bench.results)
        raise
    return found


def _write_sweep(found: list[Trial], bench: Bench, options: dict[str, Any]) -> None:
    """CSV and heat map of expected speeds by exit and draft length, where asked for."""
    sweep = {
        min(t.mask.skip_attn | t.mask.skip_ffn): gains(t.score, t.mask, bench.costs)
        for t in found
        if t.score is not None
    }
    if options["csv_file"] is not None:
        with (
            replacing(options["csv_file"]) as unfinished,
            unfinished.open("w", newline="", encoding="utf-8") as file,
        ):
            rows = csv.writer(file)
            rows.writerow(["exit", "draft_max", "expected_speed"])
            rows.writerows((e, g.n_draft, g.speed) for e, row in sweep.items() for g in row)
    if options["plot"] is not None:
        from ..plots import exits as picture

        speeds = {keep: [g.speed for g in row] for keep, row in sweep.items()}
        plots.save(picture.draw(speeds, bench.model.path.name), options["plot"])


def _row(trial: Trial, bench: Bench) -> dict[str, Any]:
    row: dict[str, Any] = {"mask": trial.mask.to_dict(), "value": trial.value}
    row["cost"] = bench.costs.draft(trial.mask)
    if trial.score is not None:
        row["agreement"] = trial.score.agreement
    return row


def _text(best: Trial, bench: Bench) -> str:
    if best.score is None:
        mask = best.mask
        return (
            f"best mask: skips {len(mask.skip_attn)} attention, {len(mask.skip_ffn)} feed-forward "
            f"parts · {best.value:.1f} tokens/s measured"
        )
    return best_line(point(best.mask, best.score, bench.costs, expects=True))
