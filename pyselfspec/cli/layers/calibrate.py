"""pyselfspec layers calibrate: measure the times of passes on this machine, for generate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import cloup
from rich.progress import BarColumn, TaskProgressColumn, TextColumn

from ... import plots
from ...costs import store
from ...costs.by_bytes import costs_by_bytes
from ...costs.speedup import best_length
from ...costs.store import Calibration, StoreKey
from ...costs.table import CostTable
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...speculate.calibrate import measured, to_time
from ...speculate.drafters import Drafter
from ...util import paths, records
from .._drafting import MaskOptions
from .._machine import MachineOptions
from .._model import model_or_demo_argument
from .._options import common_options, plot_option
from .._progress import progress
from .._types import takes

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@cloup.command(name="calibrate")
@model_or_demo_argument
@takes(masks=MaskOptions, machine=MachineOptions)
@plot_option("Draw the times")
@common_options
def command(
    model: str, masks: MaskOptions, machine: MachineOptions, plot: Path | None, as_json: bool
) -> None:
    """Measure how long full and masked passes take on this machine.

    Saves the times; generate and the other commands use them to decide when drafting saves time.
    Without mask options, measures passes with the mask that generate would use; if it would use
    none, measures passes of the full model only. Give this command the same machine options as
    generate, because they change the times.
    """
    with machine.open(model) as (loaded, context):
        with to_time(context, masks.mask(loaded.n_layer)) as (found, drafter):
            key = store.key_of(context)
            store.require_writable(key)
            calibration = _measure(context, drafter, key)
            shares = bool(drafter.identity.get("shares"))
        mask = found.mask or LayerMask.full(loaded.n_layer)
        estimated = costs_by_bytes(loaded.file, mask, shares)
    if as_json:
        data = records.to_dict(calibration)
        belongs_to = records.to_dict(key) | {name: data.pop(name) for name in ("n_ctx", "drafter")}
        what = {"format": store.StoredCosts.FORMAT, "key": belongs_to}
        click.echo(json.dumps(what | data | {"file": paths.shown(str(key.path))}))
    else:
        click.echo("\n".join(_lines(calibration, estimated if found.mask else None)))
    path = store.save_calibration(key, calibration)
    if not as_json:
        click.echo(f"saved to {paths.shown(str(path))}; generate reads it from there", err=True)
    if plot is not None:
        from ...plots import costs as picture

        plots.save(picture.draw(calibration.table, estimated, model), plot)


def _measure(context: Context, drafter: Drafter, key: StoreKey) -> Calibration:
    is_stored = False
    try:
        with progress(TextColumn("calibrating"), BarColumn(), TaskProgressColumn()) as bar:
            task = bar.add_task("", total=1.0)
            for so_far in measured(
                context, drafter, lambda share: bar.update(task, completed=share)
            ):
                if store.load(key).calibration(so_far.n_ctx, so_far.drafter) is None:
                    store.save_calibration(
                        key, so_far
                    )  # so that an interrupted run leaves one level
                    is_stored = True
        return so_far
    except KeyboardInterrupt:
        what = "saved the costs in an empty context only" if is_stored else "saved nothing new"
        click.echo(f"stopped; {what}; run the same command to start again", err=True)
        raise


def _lines(calibration: Calibration, estimated: CostTable | None) -> list[str]:
    lines = []
    for costs in calibration.table.levels:
        plain = costs.plain_us
        lines += [
            f"{costs.n_past} tokens of context: {plain / 1000:.3g} ms per token",
            f"  full pass, 1 to {len(costs.full_us)} tokens   {_over(costs.full_us, plain)}",
        ]
        if not costs.only_copies:
            lines += [
                f"  verification pass           {_over(costs.verify_us, plain)}",
                f"  draft token {costs.token_us / plain:.2f}, "
                f"shared blocks of the last one {costs.last_us / plain:.2f}",
            ]
    if estimated is not None and not costs.only_copies:
        first = estimated.levels[0]
        lines.append(f"  draft token by weight bytes {first.token_us / first.plain_us:.2f}")
    lines.append("acceptance   " + "  ".join(f"{a:5.2f}" for a in ACCEPTANCES))
    best = [best_length(calibration.table.levels[0], a) for a in ACCEPTANCES]
    lines.append("best length  " + "  ".join(f"{n:5}" for _, n in best))
    lines.append("speed        " + "  ".join(f"{speed:4.2f}x" for speed, _ in best))
    lines.append(_verdict([n for _, n in best]))
    return lines


def _verdict(lengths: Sequence[int]) -> str:
    """Return a sentence on the best draft lengths at ACCEPTANCES."""
    pays = next((a for a, n in zip(ACCEPTANCES, lengths, strict=True) if n), None)
    if pays is None:
        return f"drafts do not pay here, even if {ACCEPTANCES[-1]:.0%} of their tokens are accepted"
    return f"drafts pay here if {pays:.0%} or more of their tokens are accepted"


def _over(us: Sequence[float], plain: float) -> str:
    return "  ".join(f"{each / plain:.2f}" for each in us)
