"""pyselfspec widen: a wider model that computes the same, for benchmarks."""

from __future__ import annotations

from pathlib import Path

import click
import cloup
from gguf import GGMLQuantizationType

from ..convert.widen import FLOATS, widen
from ._writing import copy_arguments, read, write


@cloup.command(name="widen")
@copy_arguments
@cloup.option(
    "--factor",
    type=int,
    required=True,
    help="Multiply the width by this; 4 makes 16 times the weights.",
)
@cloup.option(
    "--dequantize",
    "type_name",
    type=click.Choice([t.name.lower() for t in FLOATS], case_sensitive=False),
    help="Write quantized matrices as floats, to quantize them anew.",
)
def command(name: str, out: Path, as_json: bool, factor: int, type_name: str | None) -> None:
    """Write a model of several times the width that writes the same text.

    IN is a GGUF file or a name, see pyselfspec list. Its weights come several times, so OUT costs
    what a model of its size costs and is no better than IN: it is for benchmarks. OUT is replaced
    if it exists.

    \b
    pyselfspec widen demo wide.gguf --factor 4
    """
    dequantized = None if type_name is None else GGMLQuantizationType[type_name.upper()]
    write(widen(read(name), factor, dequantized), out, as_json)
