"""A terminal that keeps what is shown, so that tests see what people see."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])")


def rows(shown: str, width: int) -> list[str]:
    """Return the rows of a terminal of this width after this was written to it.

    Every character fills one cell. A full row goes on in the next one only with the next
    character, as in xterm. Raises ValueError for control sequences other than colours, steps to the
    left and erasing to the end of the row.
    """
    cells: list[list[str]] = [[]]
    column, at = 0, 0
    while at < len(shown):
        control = _CONTROL.match(shown, at)
        at = at + 1 if control is None else control.end()
        if control is not None:
            column = _controlled(cells[-1], column, control[1], control[2])
        elif shown[at - 1] == "\n":
            cells.append([])
            column = 0
        elif shown[at - 1] != "\r":
            if column == width:
                cells.append([])
                column = 0
            cells[-1][column:] = [*cells[-1][column:column], shown[at - 1]]
            column += 1
    return ["".join(row) for row in cells]


def _controlled(row: list[str], column: int, number: str, what: str) -> int:
    if what == "D":
        return max(0, column - int(number or 1))
    if what == "K" and number in ("", "0"):
        del row[column:]
    elif what != "m":
        raise ValueError(f"no such control sequence is expected: {number}{what}")
    return column
