"""pyselfspec tune: a draft head for a model, trained on this machine from the model's file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..convert.quantize import TYPES
from ..errors import ArgumentError
from ..gguf.heads import N_BLOCKS_READ
from ..tune.wanted import DEVICES, MINUTES, N_OWN, SEED, TYPE, Wanted
from ..util import paths, records
from ..util.files import require_target
from ._options import (
    bar_console,
    common_options,
    context_params,
    device_options,
    model_argument,
    model_params,
    open_model,
    parse_tokens,
)

if TYPE_CHECKING:
    from ..tune.gain import Gain
    from ..tune.tuning import Follow, Tuned


def _head_callback(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        require_target(path)
    return path


@cloup.command(name="tune")
@model_argument
@cloup.option_group(
    "What to learn from",
    cloup.option(
        "--minutes",
        type=click.FloatRange(min=0, min_open=True),
        default=MINUTES,
        show_default=True,
        help="How long this run takes; half of it at most for writing text to learn from.",
    ),
    cloup.option(
        "--tokens",
        type=click.IntRange(min=1),
        help="Tokens of text to learn from.  [default: what there is time for]",
    ),
    cloup.option(
        "--prompts",
        type=click.Path(path_type=Path, exists=True),
        help="What the model is asked: a .jsonl file of chats, a text, or a folder of texts.  "
        "[default: bundled prompts]",
    ),
    cloup.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the text and the states that it is learned from; taken up again if it "
        "exists.  [default: in the user's cache folder, by model]",
    ),
    cloup.option(
        "--seed",
        type=click.IntRange(min=0),
        default=SEED,
        show_default=True,
        help="Of the prompts and of the texts that the model writes.",
    ),
)
@cloup.option_group(
    "The head",
    cloup.option(
        "--out",
        type=click.Path(path_type=Path),
        callback=_head_callback,
        help="Its file; replaced if it exists.  [default: in the folder of the data, "
        "with a copy for generate if it pays]",
    ),
    cloup.option(
        "--blocks",
        callback=parse_tokens,
        help="Three blocks whose entering states the head reads, like 2,15,30; one more than the "
        "last stands for what leaves that.  [default: an early one, one in the middle, the last]",
    ),
    cloup.option(
        "--vocab",
        type=click.IntRange(min=2),
        default=N_OWN,
        show_default=True,
        help="How many of the model's tokens it can draft, the most frequent ones.",
    ),
    cloup.option(
        "--type",
        "type_name",
        metavar="TYPE",
        type=click.Choice(list(TYPES), case_sensitive=False),
        default=TYPE,
        show_default=True,
        help="Type of its weights: q8_0, q4_0, f16 and llama.cpp's others.",
    ),
    cloup.option(
        "--device",
        type=click.Choice(DEVICES),
        default=DEVICES[0],
        show_default=True,
        help="Where torch trains.",
    ),
)
@device_options
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Train a draft head for a model, which generate then uses by itself if it pays.

    The model writes text, and the head learns to guess it.
    Ctrl-C loses little: the same command goes on. Needs pip install 'pyselfspec[tune]'.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".

    \b
    pyselfspec tune model.gguf --minutes 60
    pyselfspec tune model.gguf --prompts chats.jsonl --tokens 1000000 --out head.gguf
    """
    tuning, measuring = _modules()
    if options["blocks"] is not None and len(options["blocks"]) != N_BLOCKS_READ:
        raise click.BadParameter(f"--blocks takes {N_BLOCKS_READ} numbers")
    wanted = Wanted(
        minutes=options["minutes"],
        n_tokens=options["tokens"],
        prompts=options["prompts"],
        folder=options["data"],
        out=options["out"],
        blocks=options["blocks"],
        n_own=options["vocab"],
        type_name=options["type_name"].lower(),
        device=options["device"],
        seed=options["seed"],
    )
    context = context_params(options)
    with open_model(model, **model_params(options)) as loaded, _progress(tuning) as follow:
        tuned = tuning.tune(loaded, wanted, context=context, follow=follow)
        gain = measuring.measure(
            loaded, tuned.path, tuned.held_out[: measuring.N_PROMPTS], context=context
        )
        used = None
        if options["out"] is None and gain.pays:
            used = tuning.install(loaded, tuned.path)
    _show(tuned, gain, used, as_json)


def _modules() -> Any:
    """What trains, and what measures; torch is imported here."""
    try:
        from ..tune import gain, tuning
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ArgumentError("tune needs torch: pip install 'pyselfspec[tune]'") from None
    return tuning, gain


@contextmanager
def _progress(tuning: Any) -> Iterator[Follow]:
    """A bar on the terminal, and a line for what is new; says how to go on after Ctrl-C."""
    console = bar_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    try:
        with Bars(*columns, TimeRemainingColumn(), console=console, disable=console.quiet) as bars:
            task = bars.add_task("opening the model", total=1)

            def follow(done: Any) -> None:
                bars.update(task, description=done.doing, completed=done.share)
                if done.news is not None:
                    click.echo(done.news, err=True)

            yield follow
    except tuning.Interrupted as stop:
        click.echo(
            f"stopped; {stop.folder} has the work so far, the same command goes on", err=True
        )
        raise


def _show(tuned: Tuned, gain: Gain, used: Path | None, as_json: bool) -> None:
    """used: where generate finds the head by itself."""
    if as_json:
        found = {
            "used": None if used is None else paths.shown(str(used)),
            "head": paths.shown(str(tuned.path)),
            "card": records.to_dict(tuned.card),
            "speed": records.to_dict(gain),
        }
        click.echo(records.encode(found).decode())
        return
    by_position = ", ".join(f"{each:.2f}" for each in tuned.card.acceptance)
    click.echo(f"{tuned.path}: of drafts on held-out text are right, by position: {by_position}")
    click.echo(
        f"held-out prompts, times plain decoding: {gain.copies:.2f} with copies alone, "
        f"{gain.both:.2f} with the head too"
    )
    if used is not None:
        click.echo(f"generate uses it by itself, from {used}")
        return
    if not gain.pays:
        click.echo("it gains nothing here yet; running the same command again may help")
    click.echo(f"use it with --draft ngram+head:{tuned.path}")
