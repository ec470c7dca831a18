"""Results of a benchmark as Markdown, JSON, JSON lines and CSV. Pure.

All formats include the setup. JSON lines are the format of a file of results. CSV has one line for
each run, with lists and objects as JSON.
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
from .tables import notes, provenance, tables
from .types import Results, Run

# Fields of Run that CSV leaves out.
NOT_IN_CSV = {"steps"}
SETUP_PREFIX = "setup."  # of the columns with fields of Setup


def markdown(results: Results) -> str:
    found = [f"**{each.title}**\n\n{each.markdown()}" for each in tables(results)]
    warnings = [f"> {note}" for note in notes(results)]
    setup = [f"- {name}: {value}" for name, value in provenance(results.setup)]
    return "\n\n".join([*found, *warnings, "\n".join(setup)]) + "\n"


def to_dict(results: Results) -> dict[str, Any]:
    """Return setup, figures, runs and costs as a JSON object."""
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
    """Return the text of a file of results."""
    lines: list[object] = [results.setup, *results.runs]
    if results.widths is not None:
        lines.append(results.widths)
    return "".join(records.encode(line).decode() + "\n" for line in lines)


def to_csv(results: Results) -> str:
    """Return a line of names and one line per run, which includes the setup."""
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


FORMATS: dict[str, Callable[[Results], str]] = {
    "md": markdown,
    "json": to_json,
    "jsonl": json_lines,
    "csv": to_csv,
}
