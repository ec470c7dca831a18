"""Models by name: which file a name stands for, what could be fetched, and fetching it.

A name is ``demo``, one of `packages.MODELS`, or ``hf:USER/REPO[:FILE]``; an address of the Hugging
Face hub stands for the latter. Nothing is fetched but by
`fetch`; a name of a model that is not here yet is an error that says how to get it. Knows no native
library.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator
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


class UnknownModelError(ModelFileError):
    """Neither a file nor the name of a model."""


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

    Raises what `named_path` does, and UnknownModelError for what is neither a name nor looks like a
    file.
    """
    path = named_path(name)
    if isinstance(name, str) and path == Path(name) and not _looks_like_a_file(name):
        raise UnknownModelError(f"no such file, and {_unknown(name)}")
    if isinstance(name, str) and path == Path(name) and not path.parent.exists():
        repository = huggingface.named(name)
        if repository is not None:
            raise ModelFileError(
                f"{name}: no such file; a model of the Hugging Face hub is named {repository}, and "
                f"fetched with: {_pull(repository)}"
            )
    return path


def _unknown(name: str, known: Collection[str] = FORMS) -> str:
    """Say that this is not the name of a model, and which known name may be meant."""
    longer = [each for each in known if name and each.startswith(name)]
    near = longer or get_close_matches(name, known, 1, 0.8)
    if near:
        fetched = near[0] == DEMO_NAME or find(near[0]) is not None
        get = "" if fetched else f" Get it with: {_pull(near[0])}"
        return f"unknown model {name!r}; did you mean {near[0]}?{get}"
    return (
        f"unknown model {name!r}; names are {', '.join(FORMS)}; pyselfspec pull takes USER/REPO or "
        "a Hugging Face URL, too"
    )


def _pull(name: str) -> str:
    return f"pyselfspec pull {shlex.quote(name)}"


def _looks_like_a_file(name: str) -> bool:
    return bool(os.path.dirname(name)) or name.endswith(".gguf") or Path(name).exists()


def named_path(name: str | PathLike[str]) -> Path:
    """The same for files of any kind: what is no name may be missing.

    Raises ModelFileError for a model that has not been pulled, ArgumentError for what begins like a
    name and is none, or fits several files.
    """
    if not isinstance(name, str):
        return Path(name)
    name = huggingface.canonical(name)
    found = find(name)
    if found is None and _is_name(name):
        raise ModelFileError(f"{name} has not been pulled yet; get it with: {_pull(name)}")
    return found or Path(name)


def find(name: str) -> Path | None:
    """The file that a name stands for, None where it is not here, or is no name."""
    if name == DEMO_NAME:
        return DEMO
    if name in packages.MODELS:
        return packages.find(name)
    return huggingface.find(name) if huggingface.is_name(name) else None


def wanted(text: str) -> str:
    """The name that a user who wants to fetch a model means: also by its address, or by USER/REPO.
    Anything else is returned as it is."""
    name = huggingface.canonical(text)
    return name if _is_name(name) else huggingface.named(name) or name


def remove(name: str) -> Path:
    """Delete the file of a model that `fetch` has put into the cache of pyselfspec; returns where
    it was.

    Raises ArgumentError for any other model: files of the user, the one that comes with the
    package, and those in the cache of the Hugging Face hub, which belongs to all its users.
    """
    path = removable(name)
    path.unlink()
    return path


def removable(name: str) -> Path:
    """The file that `remove` would delete; raises ArgumentError as it does."""
    name = huggingface.canonical(name)
    if name in packages.MODELS:
        found = packages.find(name)
        if found is None:
            raise ArgumentError(f"{name} is not here, so there is nothing to remove")
        return found
    if huggingface.is_name(name):
        repository = huggingface.parse(name).repo
        raise ArgumentError(
            f"{name} is in the cache that all programs which use the Hugging Face hub share; "
            f"remove it with: hf cache rm model/{repository}"
        )
    if name == DEMO_NAME:
        raise ArgumentError(f"{name} comes with pyselfspec and cannot be removed")
    fetched = [each for each in packages.MODELS if packages.find(each) is not None]
    raise ArgumentError(f"{_unknown(name, fetched)}; only models that pull has fetched are removed")


def offer(name: str) -> Offer:
    """What fetching a name would bring. Asks the hub for ``hf:`` names.

    Raises ArgumentError for what is no name or fits several files, PullError when the hub does not
    answer or knows no such model.
    """
    if name in packages.MODELS:
        return packages.offer(name)
    if huggingface.is_name(name):
        return huggingface.offer(name)
    raise ArgumentError(_unknown(name))


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
