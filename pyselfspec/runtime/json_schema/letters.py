"""Sets of characters inside JSON strings, as GBNF: what JSON escapes is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

Ranges = tuple[tuple[int, int], ...]  # first and last code points, ascending and disjoint

LAST = 0x10FFFF
ANY: Ranges = ((0, LAST),)
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
_RAW: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, LAST))
_CONTROLS: Ranges = ((0, 0x1F), (0x7F, 0x7F))
_HALVES = re.compile("[\ud800-\udfff]")


def union(parts: Iterable[tuple[int, int]]) -> Ranges:
    """Return all characters of some ranges, which may overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(parts):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Return all other characters."""
    ends = [-1, *(end for each in ranges for end in each), LAST + 1]
    gaps = zip(ends[::2], ends[1::2], strict=True)
    return tuple((last + 1, first - 1) for last, first in gaps if last + 1 < first)


def _common(a: Ranges, b: Ranges) -> Ranges:
    pairs = ((max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b)
    return tuple(pair for pair in pairs if pair[0] <= pair[1])


def letters(ranges: Ranges) -> str:
    """Return GBNF for one character of a set, as it is written inside a JSON string; "" if JSON
    cannot write any of them."""
    choices = []
    if raw := _common(ranges, _RAW):
        choices.append(f"[{''.join(map(_range, raw))}]")
    controls = [code for a, b in _common(ranges, _CONTROLS) for code in range(a, b + 1)]
    short = [_SHORT[code] for code in _SHORT if _common(ranges, ((code, code),))]
    if short:
        choices.append(r'"\\" [' + "".join(f"\\x{ord(each):02X}" for each in short) + "]")
    for high in sorted({code >> 4 for code in controls}):
        low = "".join(f"{code & 15:x}" for code in controls if code >> 4 == high)
        if low := "".join(each for each in low if high << 4 | int(each, 16) not in _SHORT):
            choices.append(rf'"\\u00{high:x}" [{low}]')
    return " | ".join(choices)


def _range(ends: tuple[int, int]) -> str:
    first, last = (f"\\x{end:02X}" if end < 0x100 else f"\\U{end:08X}" for end in ends)
    return first if first == last else f"{first}-{last}"


def quoted(text: str) -> str:
    """Return GBNF for exactly this text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def written(value: Any) -> str:
    """Return the JSON of a string, a number or a name, with characters as they are."""
    text = json.dumps(value, ensure_ascii=False)
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def one_letter(letter: str) -> str:
    """Return GBNF for one character, as it is written inside a JSON string."""
    return quoted(written(letter)[1:-1])
