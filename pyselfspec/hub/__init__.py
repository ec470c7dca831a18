"""Models by name: which file a name stands for, what could be fetched, and fetching it.

A name is ``demo``, one of `packages.MODELS`, or ``hf:USER/REPO[:FILE]``. Nothing is fetched but by
`fetch`; a name of a model that is not here yet is an error that says how to get it. Knows no native
library.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from ..errors import ArgumentError, ModelFileError
from ..gguf import file as gguf_file
from ..util.paths import DEMO
from . import huggingface, packages
from .offer import Offer

DEMO_NAME = "demo"
FORMS = (DEMO_NAME, *packages.MODELS, huggingface.FORM)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that has a name. path: None where it is not here yet, the first part of a split
    one."""

    name: str
    type: str  # of most weights, as llama.cpp calls it
    n_bytes: int
    licence: str
    path: Path | None


def model_path(name: str | PathLike[str]) -> Path:
    """The file that a name stands for. What is no name is a path already, as is any Path.

    Raises what `named_path` does, and ModelFileError for what is neither a name nor looks like a
    file.
    """
    path = named_path(name)
    if isinstance(name, str) and path == Path(name) and not _looks_like_a_file(name):
        near = get_close_matches(name, FORMS, 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else "pyselfspec list shows the names of models"
        raise ModelFileError(f"{name}: no such file, and no name of a model; {hint}")
    return path


def _looks_like_a_file(name: str) -> bool:
    return bool(os.path.dirname(name)) or name.endswith(".gguf") or Path(name).exists()


def named_path(name: str | PathLike[str]) -> Path:
    """The same for files of any kind: what is no name may be missing.

    Raises ModelFileError for a model that has not been pulled, ArgumentError for what begins like a
    name and is none, or fits several files.
    """
    found = find(name) if isinstance(name, str) else None
    if found is None and isinstance(name, str) and _is_name(name):
        raise ModelFileError(
            f"{name} has not been pulled yet; get it with: pyselfspec pull {shlex.quote(name)}"
        )
    return found or Path(name)


def find(name: str) -> Path | None:
    """The file that a name stands for, None where it is not here, or is no name."""
    if name == DEMO_NAME:
        return DEMO
    if name in packages.MODELS:
        return packages.find(name)
    return huggingface.find(name) if huggingface.is_name(name) else None


def offer(name: str) -> Offer:
    """What fetching a name would bring. Asks the hub for ``hf:`` names.

    Raises ArgumentError for what is no name or fits several files, PullError when the hub does not
    answer or knows no such model.
    """
    if name in packages.MODELS:
        return packages.offer(name)
    if huggingface.is_name(name):
        return huggingface.offer(name)
    raise ArgumentError(f"{name!r} is no name of a model; names are {', '.join(FORMS)}")


def fetch(offered: Offer) -> Path:
    """Get a model, with a progress bar on a terminal, and where its file (the first part of a split
    one) is then.

    Raises PullError when it cannot be had, or is not what it should be; no file is left under its
    name then.
    """
    if offered.name in packages.MODELS:
        return packages.fetch(offered)
    return huggingface.fetch(offered)


def names() -> list[str]:
    """Names of all models that are here."""
    return list(here())


def here() -> dict[str, Path]:
    """All models that are here, by their names."""
    ours = {name: path for name in packages.MODELS if (path := packages.find(name)) is not None}
    return {DEMO_NAME: DEMO, **ours, **dict(huggingface.pulled())}


def entries() -> Iterator[Entry]:
    """All models with names: those that are here, and those of packages that are not."""
    yield Entry(DEMO_NAME, "Q8_0", DEMO.stat().st_size, "MIT, as the program", DEMO)
    for name, model in packages.MODELS.items():
        yield Entry(name, model.type.upper(), model.n_bytes, model.licence, packages.find(name))
    for name, path in huggingface.pulled():
        file = gguf_file.check(path)
        yield Entry(name, file.file_type, file.n_bytes, file.licence or "not stated", path)


def _is_name(name: str) -> bool:
    return name in packages.MODELS or huggingface.is_name(name)
