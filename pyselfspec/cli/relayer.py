"""pyselfspec relayer: drop, repeat, reorder and silence blocks of a model."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ..convert.relayer import relayer
from ._drafting import parse_blocks
from ._writing import copy_arguments, read, write


def parse_order(ctx: click.Context, param: click.Parameter, text: str | None) -> list[int] | None:
    """Callback of an option that takes blocks in an order, like ``0-9,5-9,3``."""
    if text is None:
        return None
    parts = (part or " " for part in text.split(","))  # an empty part is no block
    return [il for part in parts for il in sorted(parse_blocks(ctx, param, part))]


@cloup.command(name="relayer")
@copy_arguments
@cloup.option(
    "--blocks",
    metavar="BLOCKS",
    callback=parse_order,
    help="The blocks of OUT in their order, like 0-9,5-9,12-31.  [default: all of IN]",
)
@cloup.option(
    "--zero-attn",
    metavar="BLOCKS",
    callback=parse_blocks,
    default="",
    help="Blocks whose attention adds nothing in OUT, like 3,5,8-11.",
)
@cloup.option(
    "--zero-ffn",
    metavar="BLOCKS",
    callback=parse_blocks,
    default="",
    help="Blocks whose feed-forward sublayer adds nothing in OUT.",
)
def command(
    name: str,
    out: Path,
    as_json: bool,
    blocks: list[int] | None,
    zero_attn: frozenset[int],
    zero_ffn: frozenset[int],
) -> None:
    """Write a model made of blocks of another one.

    IN is a GGUF file or a name, see pyselfspec list; OUT is replaced if it exists. Blocks are
    numbered from 0, as they are in IN. All weights are copied as they are. A draft mask in the
    model follows its blocks.

    \b
    pyselfspec relayer model.gguf first4.gguf --blocks 0-3
    pyselfspec relayer model.gguf deeper.gguf --blocks 0-9,5-9,10-31
    """
    if blocks is None and not zero_attn and not zero_ffn:
        raise click.UsageError("say what to change: --blocks, --zero-attn or --zero-ffn")
    write(relayer(read(name), blocks, zero_attn=zero_attn, zero_ffn=zero_ffn), out, as_json)
