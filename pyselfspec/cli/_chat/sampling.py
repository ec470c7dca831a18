"""Sampling options in a chat, by their names on the command line and with its errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import click

from ...errors import ArgumentError
from .._sampling import SamplingOptions
from .._types import takes

DEFAULT = "default"  # in place of a value


@click.command()
@takes(options=SamplingOptions)
def _command(options: SamplingOptions) -> SamplingOptions:
    return options


_PARAMS = {  # by their long names, without dashes
    name.removeprefix("--"): param
    for param in _command.params
    for name in param.opts
    if name.startswith("--")
}
_NAMES = [max(param.opts, key=len).removeprefix("--") for param in _command.params]  # one of each


def parsed(arguments: Sequence[str]) -> SamplingOptions:
    """Return the sampling options of a command line."""
    with _command.make_context("sampling", [*arguments]) as context:
        return cast(SamplingOptions, _command.invoke(context))


def require_name(name: str) -> None:
    if name not in _PARAMS:
        raise ArgumentError(f"there is no sampling option {name!r}; they are {', '.join(_NAMES)}")


def changed(options: SamplingOptions, name: str, value: str) -> SamplingOptions:
    """Return the options with the one of a known name changed. Raises ArgumentError for a value
    that the command line refuses, too."""
    try:
        read = parsed([] if value == DEFAULT else [f"--{name}={value}"])
    except click.BadParameter as error:
        raise ArgumentError(f"{name}: {error.message}") from None
    field = _PARAMS[name].name
    return replace(options, **{field: getattr(read, field)})


def listed(options: SamplingOptions) -> Iterator[str]:
    """Yield a line for each option, with its value."""
    width = max(map(len, _NAMES))
    for name in _NAMES:
        yield f"{name:{width}}  {_shown(getattr(options, _PARAMS[name].name))}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(repr, value)) or "none"
    return "not set" if value is None else str(value)
