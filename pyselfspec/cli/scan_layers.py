"""pyselfspec scan-layers: what each part of a model is worth, and which can be skipped together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .. import plots
from ..masks import profiles
from ..masks.space import Space, Unit
from ..selection import scans
from ..selection.measuring import AbortRatio, Confident, GiveUp, Measuring, Never, Pass
from ..selection.scan_report import (
    MEASURES,
    NOTHING_PAYS,
    ScanReport,
    best_line,
    report,
    to_dict,
    to_lines,
)
from ..selection.scans import Plan, Prune
from ._measuring import (
    Bench,
    followed,
    known_masks,
    measuring_options,
    opened,
    picture_callback,
    profile_of,
    space_options,
)
from ._options import common_options, model_argument


@click.command(name="scan-layers")
@model_argument
@click.option(
    "--mode",
    type=click.Choice(scans.names()),
    default="rank",
    show_default=True,
    help="single: each part alone. rank: and the least harmful together. greedy: skip the least "
    "harmful, again and again. anti: skip all, add back what matters most.",
)
@click.option(
    "--objective",
    type=click.Choice(list(MEASURES)),
    default="match",
    show_default=True,
    help="match: agreement of drafts with the full model. ppl: perplexity without the part.",
)
@space_options(
    Plan().share,
    unit_help="What is skipped at a time",
    share_help="Of the units that the last mask skips.",
)
@click.option(
    "--prune",
    type=click.IntRange(min=0),
    help="Leave so many of the worst out of each further pass (llama.cpp's PR 3565: 2).  "
    f"[default: {Prune().share:.0%} of those not needed]",
)
@click.option(
    "--abort-ratio",
    type=click.FloatRange(min=1, min_open=True),
    help="Give up masks with so many times the full model's perplexity after 3 chunks (PR 3565: "
    "30).  [default: give up what is surely not the best]",
)
@click.option("--exhaustive", is_flag=True, help="Prune nothing and give nothing up.")
@measuring_options
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=picture_callback,
    help="Draw the result, .png or .svg.",
)
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Find out what each attention and feed-forward part of a model is worth, and what can be
    skipped while drafting. Leaves a profile that generate then uses.

    MODEL is a GGUF file; default: $PYSELFSPEC_MODEL, else "demo", the bundled model. Results are
    kept as they come: after Ctrl-C the same command goes on.

    \b
    pyselfspec scan-layers model.gguf --plot scan.png
    pyselfspec scan-layers model.gguf --mode greedy --objective ppl --chunks 15
    """
    give_up, plan = _give_up(options), _plan(options)
    with opened(model, options["objective"], options) as bench:
        found = _scan(bench, options, plan, give_up)
        saved = None
        if found.best is not None and options["mode"] != "single" and not options["no_profile"]:
            source = f"scan-layers {options['mode']}"
            saved = profiles.save(profile_of(bench, found.best, source))
        path = bench.results.path
    if options["plot"] is not None:
        from ..plots import scan as picture

        plots.save(picture.draw(found, f"{model}, {options['mode']}"), options["plot"])
    if as_json:
        where = {"results": str(path), "profile": None if saved is None else str(saved)}
        click.echo(json.dumps({"model": model, "mode": options["mode"]} | where | to_dict(found)))
        return
    click.echo("\n".join(to_lines(found)))
    if found.best is not None:
        click.echo(f"\n{best_line(found.best)}" + (" · saved as profile" if saved else ""))
    elif options["objective"] == "match":
        click.echo(f"\n{NOTHING_PAYS}")
    click.echo(f"results: {path}", err=True)


def _plan(options: dict[str, Any]) -> Plan:
    if options["exhaustive"]:
        if options["prune"] or options["abort_ratio"]:
            raise click.UsageError("--exhaustive prunes nothing and aborts nothing")
        return Plan(options["share"], Prune(share=0))
    return Plan(options["share"], Prune(count=options["prune"]))


def _give_up(options: dict[str, Any]) -> GiveUp:
    if options["exhaustive"]:
        return Never()
    if options["abort_ratio"] is None:
        return Confident()
    if options["objective"] != "ppl":
        raise click.UsageError("--abort-ratio compares perplexities: use it with --objective ppl")
    return AbortRatio(options["abort_ratio"])


def _scan(bench: Bench, options: dict[str, Any], plan: Plan, give_up: GiveUp) -> ScanReport:
    space = Space.of(bench.context.mask_support, Unit(options["unit"]))
    measuring = Measuring(bench.objective, bench.results, bench.n_chunks, give_up)
    found = followed(scans.run(scans.load(options["mode"])(space, plan), measuring), bench.results)
    leaves_profile = options["objective"] == "match" and options["mode"] != "single"
    known = known_masks(bench.model) if leaves_profile else []
    reference = followed(
        measuring.scores(Pass(space.full, (space.full, *known), best_only=False)), bench.results
    )
    return report(
        options["objective"],
        reference[0].score,
        bench.results.totals(),
        [*reference, *found],
        space.units,
        bench.costs,
    )
