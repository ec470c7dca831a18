"""Options as fields of frozen dataclasses, and types of their values, whose errors state what is
allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup

from ._help import Rare

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
FILE.name = "file"  # in help texts
FOLDER = click.Path(path_type=Path, file_okay=False)
FOLDER.name = "folder"


def option(*names: str, **settings: Any) -> Any:
    """Declare a field that holds the value of an option; settings are those of cloup.option."""
    return field(metadata={"names": names, "settings": settings})


def rare(*names: str, **settings: Any) -> Any:
    """Declare a field like ``option``, for an option that few need."""
    return option(*names, cls=Rare, **settings)


def of_value(parse: Callable[[Any], Any], default: Any = None) -> Callable[..., Any]:
    """Return a callback for an option whose value a function reads. default: without a value."""
    return lambda _ctx, _param, value: default if value is None else parse(value)


def takes(**classes: type[Any]) -> Callable[[F], F]:
    """Add the options of frozen dataclasses to a command, which gets each class as one argument.

    A class's own options come before those of its bases, below the heading that its ``title`` is.
    """
    groups = []
    for cls in classes.values():
        by_title: dict[str, list[Any]] = {}
        for owner in filter(is_dataclass, cls.__mro__):
            bases = filter(is_dataclass, owner.__bases__)
            inherited = {each.name for base in bases for each in fields(base)}
            by_title.setdefault(owner.title, []).extend(  # type: ignore[attr-defined]
                cloup.option(*each.metadata["names"], each.name, **each.metadata["settings"])
                for each in fields(owner)
                if each.name not in inherited
            )
        groups += [cloup.option_group(title, *options) for title, options in by_title.items()]

    def decorate(command: F) -> F:
        @wraps(command)
        def with_options(**given: Any) -> Any:
            for name, cls in classes.items():
                given[name] = cls(**{each.name: given.pop(each.name) for each in fields(cls)})
            return command(**given)

        return together(*groups)(with_options)  # type: ignore[return-value]

    return decorate


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator for several options, given in the order of the help text."""

    def decorate(command: F) -> F:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


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
