"""The report of a benchmark: one HTML page that needs nothing else, neither files nor hosts.

Also well-formed XML, so that any parser can check it.
"""

from __future__ import annotations

from jinja2 import Environment, StrictUndefined

from ..util import paths
from . import charts
from .figures import overall
from .sheets import notes, provenance, sheets, short
from .types import PLAIN, Results


def html(results: Results) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(paths.REPORT.read_text(encoding="utf-8"))
    every = {row.way: row for row in overall(results)}
    drafted = [row for row in every.values() if row.speed is not None]
    return template.render(
        setup=results.setup,
        best=max(drafted, key=lambda row: row.speed or 0.0, default=None),
        plain=every.get(PLAIN),
        short=short,
        sheets=sheets(results),
        notes=notes(results),
        provenance=provenance(results.setup),
        bars=charts.bars(results),
        acceptance=charts.acceptance(results),
        widths=None if results.widths is None else charts.by_width(results.widths),
        timeline=charts.timeline(results),
    )
