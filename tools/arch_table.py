"""A table of what works with every architecture that llama.cpp knows, kept in the repository.

\b
    python tools/archs.py build FOLDER        # upstream's test program writes toy models
    python tools/arch_table.py write FOLDER   # measure them all and write the table
    python tools/arch_table.py check FOLDER   # measure and compare; status 1 where lines differ
    python tools/arch_table.py docs           # write the summary in docs/models.md

After a move to another llama.cpp the difference between two tables is what the move has changed.
Each model runs in a process of its own. tools/arch_rows.py says what the columns mean.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tools import archs, upstream
from tools.arch_rows import COLUMNS, NOTHING, Row, measure

TABLE = upstream.ROOT / "benchmarks" / "architectures.tsv"
PAGE = upstream.ROOT / "docs" / "models.md"
BEGIN, END = "<!-- architectures -->\n", "<!-- end of architectures -->"


def measure_in_own_process(path: Path) -> Row:
    found, crash = archs.run_in_own_process(__file__, path)
    return Row(path.stem) if crash else Row(**found)


def lines(rows: Iterable[Row]) -> list[str]:
    cells = [COLUMNS, *([getattr(row, name) for name in COLUMNS] for row in rows)]
    return ["\t".join(each) + "\n" for each in cells]


def difference(rows: Sequence[Row]) -> list[str]:
    """Lines of the kept table that are no longer true, and those that are instead."""
    kept = TABLE.read_text(encoding="utf-8").splitlines(keepends=True)
    return list(difflib.unified_diff(kept, lines(rows), TABLE.name, "measured", n=0))


def measured(folder: Path) -> list[Row]:
    """All models in the folder; what contradicts a promise is told at once."""
    rows = []
    for row in archs.for_each_model(folder, measure_in_own_process):
        rows.append(row)
        for fault in row.faults:
            click.echo(f"{row.model}: {fault}", err=True)
    return rows


#
# the summary for readers
#

DRAFTERS = {
    "any": "all",
    "replay": "`ngram`, heads, second models",
    "snapshots": "`ngram`, heads, second models",
    "checkpoints": "`ngram`, second models",
    NOTHING: "none",
}


def kept_rows() -> list[Row]:
    """The rows of the table in the repository."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return [Row(*line.split("\t")) for line in lines]


def summary(rows: Iterable[Row]) -> str:
    """A Markdown table of architectures by how they draft."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        name = row.model.rsplit("-", 1)[0]  # without dense or moe
        groups.setdefault((row.drafts, row.promised), {})[name] = None
    ranks = list(DRAFTERS)
    lines = ["| removal | drafters | exact | architectures |", "|---|---|---:|---|"]
    for (drafts, promised), names in sorted(groups.items(), key=lambda g: ranks.index(g[0][0])):
        removal = {NOTHING: "none"}.get(drafts, drafts)
        cells = (removal, DRAFTERS[drafts], promised, ", ".join(sorted(names)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_summary(page: str, rows: Iterable[Row]) -> str:
    """The page with a new table between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + summary(rows) + END + after


FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("check-one", hidden=True)
@click.argument("path", type=click.Path(path_type=Path))
def check_one(path: Path) -> None:
    click.echo(json.dumps(asdict(measure(path))))


@main.command()
@click.argument("folder", type=FOLDER)
def write(folder: Path) -> None:
    """Measure every model in FOLDER and write the table."""
    TABLE.write_text("".join(lines(measured(folder))), encoding="utf-8")


@main.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Measure every model in FOLDER; status 1 and the lines where the table differs."""
    changed = difference(measured(folder))
    click.echo("".join(changed), nl=False)
    sys.exit(bool(changed))


@main.command()
def docs() -> None:
    """Write the summary of the table into docs/models.md."""
    PAGE.write_text(with_summary(PAGE.read_text(encoding="utf-8"), kept_rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
