"""pyselfspec calibrate: what passes cost on this machine, kept for generate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import cloup
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from .. import plots
from ..costs.by_bytes import costs_by_bytes
from ..costs.calibration import Calibration, key_of, load, require_place, save
from ..costs.table import CostTable
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..speculate.calibrate import measured, to_time
from ..speculate.drafters import Drafter
from ..util import paths
from ._drafting import mask_from, mask_options
from ._options import (
    bar_console,
    common_options,
    context_options,
    context_params,
    ctx_size,
    model_argument,
    model_params,
    open_model,
)

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@cloup.command(name="calibrate")
@model_argument
@mask_options
@context_options
@cloup.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path),
    help="Also draw the costs into this file, .png or .svg; it is replaced if it exists.",
)
@common_options
def command(model: str, as_json: bool, plot_file: Path | None, **options: Any) -> None:
    """Measure how long full and masked passes take here, so that generate knows what pays.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".
    Without a mask, the one that generate would take; where it would take none, full passes only.
    Give --ctx-size, --threads and what concerns GPUs and K/V as you give them to generate: they are
    part of what is measured.
    """
    if plot_file is not None:
        plots.require(plot_file)
    with (
        open_model(model, **model_params(options)) as loaded,
        loaded.context(n_ctx=ctx_size(loaded, options), **context_params(options)) as context,
    ):
        found, drafter = to_time(context, mask_from(loaded.n_layer, options))
        with closing(drafter):
            require_place(key_of(context, drafter.identity))
            calibration = _measure(context, drafter)
            shares = bool(drafter.identity.get("shares"))
        mask = found.mask or LayerMask.full(loaded.n_layer)
        estimated = costs_by_bytes(loaded.file, mask, shares)
    if as_json:
        path = paths.shown(str(calibration.key.path))
        click.echo(json.dumps(calibration.to_dict() | {"file": path}))
    else:
        click.echo("\n".join(_lines(calibration, estimated if found.mask else None)))
    kept = save(calibration)
    if not as_json:
        click.echo(f"kept in {paths.shown(str(kept))}, where generate finds it", err=True)
    if plot_file is not None:
        from ..plots import costs as picture

        plots.save(picture.draw(calibration.table, estimated, model), plot_file)


def _measure(context: Context, drafter: Drafter) -> Calibration:
    console = bar_console()
    columns = (TextColumn("calibrating"), BarColumn(), TaskProgressColumn())
    kept = None
    try:
        with Progress(*columns, console=console, disable=console.quiet) as progress:
            task = progress.add_task("", total=1.0)
            for so_far in measured(
                context, drafter, lambda share: progress.update(task, completed=share)
            ):
                if load(so_far.key) is None:  # half a table is better than none
                    kept = save(so_far)
        return so_far
    except KeyboardInterrupt:
        what = "only costs in an empty context are kept" if kept else "nothing new is kept"
        click.echo(f"stopped; {what}, the same command starts again", err=True)
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
    best = [calibration.table.levels[0].speedup(a) for a in ACCEPTANCES]
    lines.append("best length  " + "  ".join(f"{n:5}" for _, n in best))
    lines.append("speed        " + "  ".join(f"{speed:4.2f}x" for speed, _ in best))
    lines.append(_verdict([n for _, n in best]))
    return lines


def _verdict(lengths: Sequence[int]) -> str:
    """What the best draft lengths at ACCEPTANCES mean."""
    pays = next((a for a, n in zip(ACCEPTANCES, lengths, strict=True) if n), None)
    if pays is None:
        return f"drafts do not pay here, even if {ACCEPTANCES[-1]:.0%} of their tokens are accepted"
    return f"drafts pay here if {pays:.0%} or more of their tokens are accepted"


def _over(us: Sequence[float], plain: float) -> str:
    return "  ".join(f"{each / plain:.2f}" for each in us)
