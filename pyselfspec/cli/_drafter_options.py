"""-o key=value: options of a drafter, by the fields of its ``Options``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..speculate import drafters


def options_from(name: str, pairs: Sequence[str], read_mask: Callable[[str], LayerMask]) -> Any:
    """The drafter's ``Options`` with these fields; values are read as the fields' types, masks from
    files. Raises ArgumentError for what is no field or no value of one."""
    cls = drafters.load(name).Options
    types = get_type_hints(cls)
    known = [field.name for field in fields(cls)]
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in known:
            what = ", ".join(known) if known else "none"
            raise click.UsageError(f"-o {pair}: the drafter {name} has the options: {what}")
        if key in values:
            raise click.UsageError(f"-o {key} is given twice")
        values[key] = _value(value, types[key], pair, read_mask)
    return cls(**values)


def _value(text: str, kind: Any, pair: str, read_mask: Callable[[str], LayerMask]) -> Any:
    if LayerMask in getattr(kind, "__args__", (kind,)):
        return read_mask(text)
    if Path in getattr(kind, "__args__", (kind,)):
        return Path(text)
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        raise ArgumentError(f"-o {pair}: {reason[:1].lower()}{reason[1:]}") from None
