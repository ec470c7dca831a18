"""pyselfspec models relayer: drop, repeat, reorder and zero blocks of a model."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ...convert.relayer import relayer
from ...convert.stream import read_model
from ...hub import model_path
from .._drafting import parse_blocks
from .._types import of_value
from ._writing import copy_arguments, write


def parse_order(text: str) -> list[int]:
    """Read block numbers and ranges in order, like ``0-9,5-9,3``."""
    # parse_blocks refuses a blank part, but not an empty one
    parts = (part or " " for part in text.split(","))
    return [il for part in parts for il in sorted(parse_blocks(part))]


@cloup.command(name="relayer")
@copy_arguments
@cloup.option(
    "--blocks",
    metavar="BLOCKS",
    callback=of_value(parse_order),
    help="Blocks of IN that make up OUT, in order, like 0-9,5-9,12-31.  [default: all]",
)
@cloup.option(
    "--zero-attn",
    metavar="BLOCKS",
    callback=of_value(parse_blocks, frozenset()),
    help="Set the attention output of these blocks of IN to zero, like 3,5,8-11.",
)
@cloup.option(
    "--zero-ffn",
    metavar="BLOCKS",
    callback=of_value(parse_blocks, frozenset()),
    help="Set the feed-forward output of these blocks of IN to zero.",
)
def command(
    name: str,
    out: Path,
    as_json: bool,
    blocks: list[int] | None,
    zero_attn: frozenset[int],
    zero_ffn: frozenset[int],
) -> None:
    """Write a model with blocks dropped, repeated or reordered.

    Blocks are numbered from 0 in the order of IN. Weights are copied unchanged; a mask in IN is
    adjusted to the blocks of OUT.

    \b
    pyselfspec models relayer model.gguf first4.gguf --blocks 0-3
    pyselfspec models relayer model.gguf deeper.gguf --blocks 0-9,5-9,10-31
    """
    if blocks is None and not zero_attn and not zero_ffn:
        raise click.UsageError(
            "there is no change to make; give --blocks, --zero-attn or --zero-ffn"
        )
    source = read_model(model_path(name))
    write(relayer(source, blocks, zero_attn=zero_attn, zero_ffn=zero_ffn), out, as_json)
