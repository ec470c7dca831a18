"""-o key=value: options of a drafter, by the fields of its ``Options``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..speculate import drafters
from ..speculate.draft_names import Named


def options_from(
    named: Sequence[Named], pairs: Sequence[str], read_mask: Callable[[str], LayerMask]
) -> tuple[Any, ...]:
    """Return the ``Options`` of each drafter that has one of the given fields.

    pairs: ``field=value``; values are converted to the types of the fields, masks read from files.
    Raises UsageError for an unknown or repeated field, ArgumentError for a wrong value.
    """
    classes = {name: drafters.load(name).Options for name, _ in named}
    values: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        owners = [name for name, cls in classes.items() if key in _fields(cls)]
        if not equals or not owners:
            what = "; ".join(f"{n} has {_listed(_fields(cls))}" for n, cls in classes.items())
            raise click.UsageError(
                f"-o {pair}: give KEY=VALUE, where KEY is an option of a drafter: {what}"
            )
        for name in owners:
            if key in values.setdefault(name, {}):
                raise click.UsageError(f"-o {key} is given twice; give it once")
            kind = get_type_hints(classes[name])[key]
            values[name][key] = _value(value, kind, pair, read_mask)
    return tuple(
        drafters.options_of(each, **values[each.name]) for each in named if each.name in values
    )


def _fields(cls: type[Any]) -> list[str]:
    return [field.name for field in fields(cls)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _value(text: str, kind: Any, pair: str, read_mask: Callable[[str], LayerMask]) -> Any:
    if LayerMask in getattr(kind, "__args__", (kind,)):
        return read_mask(text)
    if Path in getattr(kind, "__args__", (kind,)):
        return Path(text)
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise ArgumentError(f"-o {pair}: the value is one of {_listed(get_args(kind))}")
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        raise ArgumentError(f"-o {pair}: {reason[:1].lower()}{reason[1:]}") from None
