"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .. import _lib
from ..errors import ArgumentError
from ..model import Model
from ..models import DEMO
from ..types import LayerMask

F = TypeVar("F", bound=Callable[..., Any])

DEMO_WORD = "demo"


def model_argument(command: F) -> F:
    return click.argument("model", envvar="PYSELFSPEC_MODEL", default=DEMO_WORD)(command)


def _set_verbose(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    _lib.set_verbose(value)


def common_options(command: F) -> F:
    """Options of every command that loads a model."""
    command = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_verbose,
        help="Show llama.cpp's log on stderr.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def open_model(name: str, n_gpu_layers: int | None = None) -> Model:
    """The model at a path, or the bundled one for the word ``demo``."""
    return Model(DEMO if name == DEMO_WORD else name, n_gpu_layers=n_gpu_layers)


def parse_blocks(_ctx: click.Context, _param: click.Parameter, text: str) -> frozenset[int]:
    """Callback of options that take block numbers and ranges, like ``3,5,8-11``."""
    blocks: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match:
            raise click.BadParameter(f"{part!r} is no block and no range; write e.g. 3,5,8-11")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise click.BadParameter(f"the range {part.strip()} runs backwards")
        blocks += range(first, last + 1)
    if len(set(blocks)) < len(blocks):
        twice = next(il for i, il in enumerate(blocks) if il in blocks[:i])
        raise click.BadParameter(f"block {twice} is named twice")
    return frozenset(blocks)


def parse_tokens(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Callback of options that take token ids, like ``1,5,9``."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of token ids; write e.g. 1,5,9") from None


def read_text(path: str) -> str:
    """The UTF-8 text of a file, or of stdin for ``-``."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = "stdin" if path == "-" else path
        raise ArgumentError(
            f"{where} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from None


def mask_from(
    n_layer: int,
    mask_file: str | None,
    skip_attn: frozenset[int],
    skip_ffn: frozenset[int],
) -> LayerMask | None:
    """The mask that the options describe, None when they describe none."""
    if mask_file is not None:
        if skip_attn or skip_ffn:
            raise click.UsageError("give --mask, or --skip-attn and --skip-ffn, not both")
        return LayerMask.from_json(read_text(mask_file)).require(n_layer)
    if skip_attn or skip_ffn:
        return LayerMask(n_layer, skip_attn, skip_ffn)
    return None
