"""Tables in Markdown, made from records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyselfspec.bench import tables
from tools.records import Record


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the records with the name ``record``.

    columns: headings. align: "<" (text) or ">" (numbers) for each. cells: of one record, a list for
    every row.
    """

    record: str
    columns: tuple[str, ...]
    align: str
    cells: Callable[[Record], Iterable[Sequence[str]]]

    def __post_init__(self) -> None:
        tables.Table(self.record, self.columns, self.align, ())  # or its ValueError

    def markdown(self, records: Iterable[Record]) -> str:
        """The whole table; empty when there are no records of this kind."""
        rows = [row for r in records if r["bench"] == self.record for row in self.cells(r)]
        return tables.Table(self.record, self.columns, self.align, rows).markdown() if rows else ""
