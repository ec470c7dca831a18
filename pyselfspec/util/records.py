"""JSON records in and out: the one place that reads and writes the package's small files. Pure.

A record is a frozen dataclass. Its fields, with their types, are the format of the file; ranges are
checked in ``__post_init__``. A record that has a file of its own also has a format number, which
goes up with every change, new fields included:

    @dataclass(frozen=True, slots=True)
    class Profile:
        FORMAT: ClassVar[int] = 1
        model: str
        mask: LayerMask

    records.save(path, profile)
    profile = records.load(path, Profile, what="profile")
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from ..errors import ArgumentError
from .files import read_limited, replacing

MAX_BYTES = 64 << 20  # largest file
BOM = codecs.BOM_UTF8  # some editors write it first
Data = dict[str, Any]


class Filed(Protocol):
    """A record with a file of its own."""

    FORMAT: ClassVar[int]


T = TypeVar("T")
FiledT = TypeVar("FiledT", bound=Filed)


class RecordError(ArgumentError):
    """Data that is not such a record; the message is the reason, as part of a sentence."""


def load(path: Path, cls: type[FiledT], *, what: str, fix: str = "remove it") -> FiledT:
    """Return the record in a file.

    what, fix: for the error, "FILE is no PROFILE (expected int, got str in n_layer); REMOVE IT".

    Raises RecordError for a file that holds no such record, OSError for one that cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise RecordError("no plain file")
        with path.open("rb") as file:
            return decode(read_limited(file, MAX_BYTES), cls)
    except ArgumentError as error:
        raise RecordError(f"{path} is no {what} ({error}); {fix}") from error


def save(path: Path, record: Filed) -> None:
    """Write a record with its format number; the file appears when it is complete.

    Raises ArgumentError for a path that cannot be a file, see `files.replacing`.
    """
    text = msgspec.json.format(encode(record), indent=1)
    with replacing(path) as unfinished:
        unfinished.write_bytes(text + b"\n")


def decode(text: bytes | str, cls: type[FiledT]) -> FiledT:
    """Return the record that `save` wrote as this text. Raises RecordError for any other text."""
    data = parse(text)
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise RecordError("it has no format number")
    number = data.pop("format")
    if number != cls.FORMAT:
        raise RecordError(f"its format is {number}, this version reads {cls.FORMAT}")
    return convert(data, cls)


def parse(text: bytes | str) -> Any:
    """Return the content of a JSON text: dicts, lists, strings and numbers. Raises RecordError for
    text that is not JSON."""
    try:
        return msgspec.json.decode(text.removeprefix(BOM) if isinstance(text, bytes) else text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RecordError(f"not JSON: {error}") from None


def convert(data: Any, cls: type[T], *, partial: bool = False) -> T:
    """Return parsed JSON as a record. Nothing is coerced, and nothing in the data may be left over.

    partial: fields with a default may be missing, for what people write by hand.

    Raises RecordError for missing and unknown fields, values of other types, values that
    ``__post_init__`` refuses with a ValueError or TypeError (then the cause of this one), and sets
    that name something twice.
    """
    try:
        record = msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        raise RecordError(_plainly(str(error))) from error.__cause__
    _require_same_fields(data, to_dict(record), partial)
    return record


def to_dict(record: Any) -> Data:
    """Return a record as dicts, lists, strings and numbers, ready for JSON; sets are in order.

    A record with a file of its own has its format number first.
    """
    if isinstance(record, dict):  # as it is: "deterministic" would sort the keys
        return record
    data: Data = msgspec.to_builtins(record, order="deterministic")
    number = getattr(record, "FORMAT", None)
    return data if number is None else {"format": number, **data}


def encode(record: Any) -> bytes:
    """A record, or what it consists of, as JSON on one line, without the line end.

    Numbers that are not finite become null, since JSON cannot express them.
    """
    return msgspec.json.encode(to_dict(record))


def _plainly(message: str) -> str:
    """Return msgspec's message as a part of a sentence.

    >>> _plainly("Expected `int`, got `bool` - at `$.mask.n_layer`")
    'expected int, got bool in mask.n_layer'
    """
    text, _, where = message.replace("`", "").partition(" - at $")
    place = where.removeprefix(".")
    return text[:1].lower() + text[1:] + (f" in {place}" if place else "")


def _require_same_fields(given: Any, used: Any, partial: bool, where: str = "") -> None:
    """Raise RecordError for a field that only one of data and record has."""
    if isinstance(given, dict) and isinstance(used, dict):
        for key in given.keys() - used.keys():
            raise RecordError(f"unknown field {where}{key}")
        for key in used.keys() - given.keys() - {"format"}:
            if not partial:
                raise RecordError(f"missing field {where}{key}")
        for key, value in given.items():
            _require_same_fields(value, used[key], partial, f"{where}{key}.")
    elif isinstance(given, list) and isinstance(used, list | tuple):
        if len(given) != len(used):  # a set
            twice = next(item for item in given if given.count(item) > 1)
            raise RecordError(f"{where.rstrip('.')} names {twice} twice")
        if given and isinstance(given[0], dict | list):
            for one, other in zip(given, used, strict=True):
                _require_same_fields(one, other, partial, where)
