"""pyselfspec convert: a Hugging Face checkpoint in, a GGUF model out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import cloup
from rich.progress import Progress as Bars

from ..convert.huggingface import architectures, convert_steps
from ..convert.quantize import TYPES, Progress, quantize_steps
from ..runtime import _lib
from ..runtime.context import N_THREADS_MAX
from ._options import bar_console, common_options
from ._writing import show_written


def _show_architectures(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo("\n".join(architectures()))
        ctx.exit()


@cloup.command(name="convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@cloup.option(
    "--type",
    "type_name",
    metavar="TYPE",
    type=click.Choice(list(TYPES), case_sensitive=False),
    default="f16",
    show_default=True,
    help="Type of the weights: f32, f16, bf16, q8_0, q4_k_m and llama.cpp's others.",
)
@cloup.option(
    "-t",
    "--threads",
    type=click.IntRange(1, N_THREADS_MAX),
    help="CPU threads for quantizing.  [default: all cores]",
)
@cloup.option(
    "--architectures",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_architectures,
    help="List the architectures that can be converted, one a line.",
)
@common_options
def command(source: Path, out: Path, type_name: str, threads: int | None, as_json: bool) -> None:
    """Write a GGUF model with llama.cpp's own converter and quantizer.

    SOURCE is the folder of a Hugging Face checkpoint, or a GGUF file with float weights; OUT is
    replaced if it exists. Folders
    need pip install 'pyselfspec[convert]'; for some architectures the converter runs code that is
    in the folder, so it must be one you trust.

    \b
    pyselfspec convert layerskip-llama3.2-1B model.gguf --type q8_0
    """
    write_steps = quantize_steps if source.is_file() else convert_steps
    with closing(write_steps(source, out, type_name, n_threads=threads)) as steps:
        _show(steps)
    show_written(out, as_json)


def _show(steps: Iterable[Progress]) -> None:
    """Follow the steps with a bar per stage."""
    console = bar_console()
    with Bars(console=console, disable=console.quiet or _lib.is_verbose()) as bars:
        tasks: dict[str, Any] = {}
        for step in steps:
            if step.stage not in tasks:
                tasks[step.stage] = bars.add_task(step.stage)
            bars.update(tasks[step.stage], completed=step.done, total=step.total)
