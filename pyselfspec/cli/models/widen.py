"""pyselfspec models widen: write a wider model with the same output, for benchmarks."""

from __future__ import annotations

from pathlib import Path

import click
import cloup
from gguf import GGMLQuantizationType

from ...convert.stream import read_model
from ...convert.widen import FLOATS, widen
from ...hub import model_path
from .._types import Integer
from ._writing import copy_arguments, write


@cloup.command(name="widen")
@copy_arguments
@cloup.option(
    "--factor",
    type=Integer(2),
    required=True,
    help="Multiply the hidden size of the model by this; 4 gives 16 times as many weights.",
)
@cloup.option(
    "--dequantize",
    "type_name",
    type=click.Choice([t.name.lower() for t in FLOATS], case_sensitive=False),
    help="Write quantized matrices in this float type, so that they can be quantized again.  "
    "[default: keep their types]",
)
def command(name: str, out: Path, as_json: bool, factor: int, type_name: str | None) -> None:
    """Write a wider model with the same output, for benchmarks.

    OUT repeats the weights of IN, so it generates the same text, at the speed of any model of its
    size.

    \b
    pyselfspec models widen demo wide.gguf --factor 4
    """
    dequantized = None if type_name is None else GGMLQuantizationType[type_name.upper()]
    write(widen(read_model(model_path(name)), factor, dequantized), out, as_json)
