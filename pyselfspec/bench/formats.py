"""Results of a benchmark as text: Markdown for people, JSON, JSON lines and CSV for programs. Pure.

All of them carry the setup. JSON lines are what a file of results holds, and CSV has the same runs,
one on each line, lists and objects in it as JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from ..util import records
from .figures import rows
from .sheets import notes, provenance, sheets
from .types import Results, Run, Setup

# Of a run, what CSV leaves to the other formats.
NOT_IN_CSV = {"moments"}
SETUP_PREFIX = "setup."  # of columns, before the names of the setup's fields


def markdown(results: Results) -> str:
    tables = [f"**{each.title}**\n\n{each.markdown()}" for each in sheets(results)]
    said = [f"- {name}: {value}" for name, value in provenance(results.setup)]
    warned = [f"> {note}" for note in notes(results)]
    return "\n\n".join([*tables, *warned, "\n".join(said)]) + "\n"


def to_dict(results: Results) -> dict[str, Any]:
    """Setup, figures, runs and costs, ready for JSON."""
    return {
        "setup": records.to_dict(results.setup),
        "rows": [asdict(row) for row in rows(results)],
        "notes": notes(results),
        "runs": [records.to_dict(run) for run in results.runs],
        "widths": None if results.widths is None else records.to_dict(results.widths),
    }


def to_json(results: Results) -> str:
    return json.dumps(to_dict(results)) + "\n"


def json_lines(results: Results) -> str:
    """As in a file of results."""
    lines: list[object] = [results.setup, *results.runs]
    if results.widths is not None:
        lines.append(results.widths)
    return "".join(records.encode(line).decode() + "\n" for line in lines)


def to_csv(results: Results) -> str:
    """One line per run, behind a line of names; the setup is on every line."""
    names = [field.name for field in fields(Run) if field.name not in NOT_IN_CSV]
    setup = records.to_dict(results.setup)
    head = [*names, *(SETUP_PREFIX + name for name in setup)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for run in results.runs:
        data = records.to_dict(run)
        writer.writerow(map(_cell, [*(data[name] for name in names), *setup.values()]))
    return text.getvalue()


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def from_csv(text: str) -> list[dict[str, Any]]:
    """The runs of `to_csv`, with the setup's fields, every cell with the type that it had."""
    types = {field.name: field.type for field in (*fields(Run), *fields(Setup))}
    return [
        {
            name: cell if types.get(name.removeprefix(SETUP_PREFIX)) == "str" else json.loads(cell)
            for name, cell in line.items()
        }
        for line in csv.DictReader(io.StringIO(text))
    ]


FORMATS: dict[str, Callable[[Results], str]] = {
    "md": markdown,
    "json": to_json,
    "jsonl": json_lines,
    "csv": to_csv,
}
