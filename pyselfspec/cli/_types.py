"""Types of option values, whose errors state what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)
FILE.name = "file"  # in help texts
FOLDER = click.Path(path_type=Path, file_okay=False)
FOLDER.name = "folder"


class Integer(click.IntRange):
    """Integer in a range."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(_message(value, "an integer", self), param, ctx)


class IntegerOrAuto(Integer):
    """Integer in a range, or auto."""

    name = "integer|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


class Number(click.FloatRange):
    """Finite number in a range."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(super().convert(value, param, ctx))
        except click.BadParameter:
            number = math.nan
        if not math.isfinite(number):
            self.fail(_message(value, "a number", self), param, ctx)
        return number


class Choice(click.Choice[str]):
    """One of all names, of which help texts show some."""

    def __init__(self, shown: Sequence[str], every: Sequence[str]) -> None:
        super().__init__(every)
        self._shown = shown

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self._shown)}]"


def _message(value: Any, kind: str, bounds: click.IntRange | click.FloatRange) -> str:
    """Return the error message for a value that is not of this kind or not within the bounds."""
    limits = []
    if bounds.min is not None:
        limits.append(f"{'above' if bounds.min_open else 'of at least'} {bounds.min:.15g}")
    if bounds.max is not None:
        limits.append(f"{'below' if bounds.max_open else 'at most'} {bounds.max:.15g}")
    return f"{value!r} is not {kind} {' and '.join(limits)}".rstrip()
