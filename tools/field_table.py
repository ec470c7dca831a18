"""Prints the table of request fields of docs/serving.md, or writes it there:
python tools/field_table.py [--write]"""

from __future__ import annotations

import sys
from pathlib import Path

from pyselfspec.serve.protocol.request_fields import RULES, Treatment

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
START, END = "<!-- request fields -->\n", "<!-- end of request fields -->\n"


def table() -> str:
    """Return the table in Markdown."""
    rows = ["| fields | of requests for | what becomes of them |", "| --- | --- | --- |"]
    for rule in RULES:
        names = ", ".join(f"`{name}`" for name in rule.names)
        *others, last = rule.where
        where = f"{', '.join(others)} and {last}" if others else last
        what = rule.treatment.value
        if rule.treatment is Treatment.REFUSED:
            what += f", unless null or {rule.note}".replace("null or null", "null")
        elif rule.note:
            what += f"; {rule.note}"
        rows.append(f"| {names} | {where} | {what} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """Return the text of the page with the table as it is now."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table(), end="")
