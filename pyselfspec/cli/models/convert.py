"""pyselfspec models convert: write a GGUF file from a Hugging Face checkpoint or a GGUF file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
import cloup
from rich.progress import TaskID

from ...convert.huggingface import architectures, convert_steps
from ...convert.quantize import TYPES, quantize_steps
from ...runtime.ffi import load
from .._machine import threads_settings
from .._options import common_options
from .._progress import progress
from .._types import FILE
from ._writing import out_argument, show_written


def _show_architectures(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo("\n".join(architectures()))
        ctx.exit()


@cloup.command(name="convert")
@cloup.argument(
    "source",
    type=FILE,
    help="Folder of a Hugging Face checkpoint, or a GGUF file with float weights.",
)
@out_argument
@cloup.option(
    "--type",
    "type_name",
    metavar="TYPE",
    type=click.Choice(list(TYPES), case_sensitive=False),
    default="f16",
    help="Type of the weights: f32, f16, bf16, q8_0, q4_k_m or another type of llama.cpp.",
)
@cloup.option("-t", "--threads", **threads_settings("Number of CPU threads for quantizing."))
@cloup.option(
    "--architectures",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_architectures,
    help="List the architectures that can be converted, one per line, and exit.",
)
@common_options
def command(source: Path, out: Path, type_name: str, threads: int | None, as_json: bool) -> None:
    """Convert a Hugging Face checkpoint, or quantize a GGUF file.

    Writes a GGUF file with llama.cpp's converter and quantizer. Checkpoints need pip install
    'pyselfspec[convert]'. For some architectures the converter runs code from the checkpoint's
    folder: convert only what you trust.

    \b
    pyselfspec models convert layerskip-llama3.2-1B model.gguf --type q8_0
    """
    write_steps = quantize_steps if source.is_file() else convert_steps
    tasks: dict[str, TaskID] = {}  # one bar for each stage
    with (
        closing(write_steps(source, out, type_name, n_threads=threads)) as steps,
        progress(hidden=load.is_verbose()) as bars,
    ):
        for step in steps:
            if step.stage not in tasks:
                tasks[step.stage] = bars.add_task(step.stage)
            bars.update(tasks[step.stage], completed=step.n_done, total=step.n_total)
    show_written(out, as_json)
