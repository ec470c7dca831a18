"""Models by name: their files, and downloads.

Each module of this folder is a source of models, see `_source`: the bundled one, files in packages,
files of the Hugging Face hub under their usual or full names, and files that other programs keep.
Only `fetch` downloads; the name of a model that is not on this machine is an error with the command
to get it. Does not load the native library.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from ..errors import ArgumentError, ModelFileError, SelfSpecWarning, UnknownModelError
from ..gguf import file as gguf_file
from ..util import plugins
from . import catalogue, huggingface, packages
from ._source import UNSTATED, Download, Entry, Offer, Source, pull

SOURCES: tuple[Source, ...] = tuple(
    plugins.load(__name__, "source", name) for name in plugins.names(__path__)
)
DOWNLOADS = tuple(source for source in SOURCES if isinstance(source, Download))
N_NEAR = 4  # names in the error for an unknown one
LIST = "pyselfspec models list shows the names"
FIND = (
    f"{LIST}, pyselfspec models search finds others, and pyselfspec models pull also takes "
    f"{huggingface.FORM} or its URL"
)


def model_path(name: str | PathLike[str]) -> Path:
    """Return the file of a model by name. Returns a Path, and a string that is a path, unchanged.

    Raises the errors of `named_path`, and UnknownModelError for a string that is neither a name nor
    looks like a path.
    """
    path = named_path(name)
    if not isinstance(name, str) or path != Path(name):
        return path
    if not (os.path.dirname(name) or name.endswith(".gguf") or os.path.exists(name)):
        raise UnknownModelError(f"no such file, and {_unknown(name, _names())}")
    if not path.parent.exists():
        repository = huggingface.named(name)
        if repository is not None:
            raise ModelFileError(
                f"{name}: no such file; if it is a model of the Hugging Face hub, get it with: "
                f"{pull(repository)}"
            )
    return path


def _unknown(name: str, known: Collection[str], otherwise: str = FIND) -> str:
    """Return the message for an unknown name, with the most similar known ones. otherwise: what to
    do if no known name is similar."""
    longer = [each for each in known if name and each.startswith(name)]
    near = (longer or get_close_matches(name, known, N_NEAR, 0.8))[:N_NEAR]
    if near:
        *others, last = near
        listed = f"{', '.join(others)} or {last}" if others else last
        get = "" if find(near[0]) else f"; get it with: {pull('NAME' if others else last)}"
        return f"unknown model {name!r} (did you mean {listed}?){get}"
    return f"unknown model {name!r}; {otherwise}"


def named_path(name: str | PathLike[str]) -> Path:
    """Return the file of a name; returns any other string as a path, which need not exist.

    Raises ModelFileError for a model that has not been pulled, UnknownModelError for a malformed
    name, ArgumentError for one that matches several files.
    """
    if not isinstance(name, str):
        return Path(name)
    name = huggingface.canonical(name)
    source = _source(name)
    if source is None:
        return Path(name)
    found = source.find(name)
    if found is None:
        raise _absent(source, name)
    return found


def _source(name: str) -> Source | None:
    return next((source for source in SOURCES if source.is_name(name)), None)


def _absent(source: Source, name: str) -> ModelFileError:
    return ModelFileError(f"{name} has not been pulled yet; get it with: {source.how_to_get(name)}")


def find(name: str) -> Path | None:
    """Return the file of a name; None if it is not on this machine or is not a name."""
    source = _source(name)
    return None if source is None else source.find(name)


def name_to_pull(text: str) -> str:
    """Return the name for an argument of ``pull``, also for a URL or USER/REPO. Returns any other
    text unchanged."""
    name = huggingface.canonical(text)
    return name if _source(name) else huggingface.named(name) or name


def remove(name: str) -> Path:
    """Delete the file of a model from the cache of pyselfspec. Return its path.

    Raises ArgumentError for any other model: files of the user, the demo model, and models that
    other programs keep or share.
    """
    path = removable(name)
    path.unlink()
    return path


def removable(name: str) -> Path:
    """Return the file that `remove` would delete. Raises the same errors."""
    name = huggingface.canonical(name)
    source = _source(name)
    if source is None:
        unknown = _unknown(name, to_remove(), LIST)
        raise UnknownModelError(f"{unknown}; only pulled models can be removed")
    try:
        is_here = source.find(name) is not None
    except ArgumentError:  # several files have this name
        is_here = True
    if not is_here:
        raise ArgumentError(f"{name} is not on this machine; nothing was removed")
    return source.removable(name)


def to_remove() -> list[str]:
    """Return the names of the models that can be removed."""
    return [name for name, _ in packages.installed()]


def offer(name: str) -> Offer:
    """Return what `fetch` would download. Contacts the hub for its files.

    Raises UnknownModelError for an unknown name, ArgumentError for one that matches several files,
    ModelFileError for a model that another program downloads, PullError if the hub cannot be
    reached or does not have the model.
    """
    source = _source(name)
    if source is None:
        raise UnknownModelError(_unknown(name, _names()))
    if not isinstance(source, Download):
        raise _absent(source, name)
    return source.offer(name)


def fetch(offered: Offer) -> Path:
    """Download a model, with a progress bar on a terminal. Return its file, or the first part of a
    split one.

    Raises PullError if the download fails or has the wrong digest; then no file is left.
    """
    return next(each for each in DOWNLOADS if each.is_name(offered.name)).fetch(offered)


def installed() -> dict[str, Path]:
    """Return the files of all models on this machine, by name: short names first, and the shortest
    one of a file that has several."""
    pairs = [pair for source in SOURCES for pair in source.installed()]
    pairs += catalogue.usual_names(dict(pairs))
    names: dict[Path, str] = {}
    for name, path in sorted(pairs, key=lambda pair: (len(pair[0]), pair[0])):
        names.setdefault(path, name)
    return {name: path for path, name in names.items()}


def to_pull() -> list[Entry]:
    """Return the models that `fetch` can get by a name alone and that are not here."""
    here = installed()
    return [each for name, each in _known().items() if name not in here]


def entries() -> Iterator[Entry]:
    """Yield all models on this machine, then those to pull. Warns of files that cannot be read."""
    known = _known()
    for name, path in installed().items():
        if name in known:
            yield replace(known.pop(name), path=path)
            continue
        try:
            file = gguf_file.check(path)
        except ModelFileError as error:
            warnings.warn(SelfSpecWarning(f"{name} is not listed: {error}"), stacklevel=2)
            continue
        yield Entry(name, file.file_type, file.n_bytes, file.licence or UNSTATED, path)
    yield from known.values()


def _known() -> dict[str, Entry]:
    return {each.name: each for source in DOWNLOADS for each in source.known()}


def _names() -> list[str]:
    return list({**installed(), **_known()})
