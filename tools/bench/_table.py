"""Tables in Markdown, made from records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tools.records import Record

RULES = {"<": "---", ">": "---:"}


@dataclass(frozen=True, slots=True)
class Table:
    """What is shown of the records that are called ``record``.

    columns: headings. align: "<" (text) or ">" (numbers) for each. cells: of one record, a list for
    every row.
    """

    record: str
    columns: tuple[str, ...]
    align: str
    cells: Callable[[Record], Iterable[Sequence[str]]]

    def __post_init__(self) -> None:
        if len(self.align) != len(self.columns):
            raise ValueError(f"{len(self.columns)} columns, {len(self.align)} alignments")

    def rows(self, record: Record) -> list[str]:
        found = [list(cells) for cells in self.cells(record)]
        if any(len(cells) != len(self.columns) for cells in found):
            raise ValueError(f"a row of {self.record!r} has not {len(self.columns)} cells")
        return [_line(cells) for cells in found]

    def markdown(self, records: Iterable[Record]) -> str:
        """The whole table; empty when there are no records of this kind."""
        rows = [row for r in records if r["bench"] == self.record for row in self.rows(r)]
        rule = f"|{'|'.join(RULES[side] for side in self.align)}|"
        return "\n".join([_line(self.columns), rule, *rows]) if rows else ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
