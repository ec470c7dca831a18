"""Drafters as users name them: "ngram+model:small.gguf", or a list of single names. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

SIGN = "+"  # between drafters that are joined
COLON = ":"  # before a drafter's file

Names = str | Sequence[str]  # joined by SIGN, or one each


class Named(NamedTuple):
    """A drafter's name, and the file it was given; None where it was given none."""

    name: str
    file: str | None = None


def split(names: Names, known: Collection[str]) -> tuple[Named, ...]:
    """The drafters of one text, in order.

    A file's name may hold + and colons: it ends before a + that the name of a drafter follows, if
    that is followed by +, a colon or the end. In a list it ends with its item.

    known: names of drafters. Names that are not among them come out all the same.
    """
    if not isinstance(names, str):
        return tuple(map(_one, names))
    after = "|".join(map(re.escape, known))
    ends = re.compile(rf"\+(?=(?:{after})(?:[+:]|$))")
    found = []
    rest: str | None = names
    while rest is not None:
        name = re.split(r"[+:]", rest, maxsplit=1)[0]
        rest = rest[len(name) :]
        file = None
        if rest.startswith(COLON):
            end = ends.search(rest)
            stop = end.start() if end else len(rest)
            file, rest = rest[1:stop], rest[stop:]
        found.append(Named(name, file))
        rest = rest[1:] if rest else None
    return tuple(found)


def _one(item: str) -> Named:
    name, colon, file = item.partition(COLON)
    return Named(name, file if colon else None)
