"""A terminal that keeps what is shown, so that tests see what people see."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])")


def rows(shown: str, width: int) -> list[str]:
    """Return the rows of a terminal of this width after this was written to it.

    Every character fills one cell. A full row goes on in the next one only with the next
    character, as in xterm. Raises ValueError for control sequences other than colours, steps to the
    left and up, and erasing of a row or its end.
    """
    cells: list[list[str]] = [[]]
    row, column, at = 0, 0, 0
    while at < len(shown):
        control = _CONTROL.match(shown, at)
        at = at + 1 if control is None else control.end()
        character = shown[at - 1]
        if control is not None and control[2] == "A":
            row -= int(control[1] or 1)
            assert row >= 0, "above the screen"
        elif control is not None:
            column = _controlled(cells[row], column, control[1], control[2])
        elif character == "\r":
            column = 0
        else:
            if character == "\n" or column == width:
                row, column = row + 1, 0
                cells += [[] for _ in range(row + 1 - len(cells))]
            if character != "\n":
                cells[row][column:] = [*cells[row][column:column], character]
                column += 1
    return ["".join(row) for row in cells]


def _controlled(row: list[str], column: int, number: str, what: str) -> int:
    if what == "D":
        return max(0, column - int(number or 1))
    if what == "K" and number in ("", "0", "2"):
        del row[0 if number == "2" else column :]
    elif what != "m":
        raise ValueError(f"no such control sequence is expected: {number}{what}")
    return column
