"""``demo``: the small model in the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import ArgumentError
from ..util.paths import DEMO

NAME = "demo"


def is_name(text: str) -> bool:
    return text == NAME


def find(_name: str) -> Path:
    return DEMO


def installed() -> Iterator[tuple[str, Path]]:
    yield NAME, DEMO


def how_to_get(_name: str) -> str:
    return "pip install pyselfspec"


def removable(name: str) -> Path:
    raise ArgumentError(f"{name} is part of pyselfspec and cannot be removed")
