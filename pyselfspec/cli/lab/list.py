"""pyselfspec lab list: the experimental methods, their speed, and how to use them."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby

import click
import cloup

from ...lab.catalog import EXPERIMENTS
from .._options import json_option

INTRODUCTION = """\
Experimental methods: slower than the defaults in our measurements, or not measured. Select one with
the option that is shown here; other help texts do not list it. The text stays that of the full
model, except with --unverified. Speeds are relative to plain decoding, on one thread; details are
in benchmarks/README.md and benchmarks/LOG.md."""
WIDTH = 80  # columns


@cloup.command(name="list")
@json_option
def command(as_json: bool) -> None:
    """List experimental methods, their speed, and how to use them.

    Other help texts do not list these methods.

    \b
    pyselfspec lab list
    pyselfspec lab generate demo -p "Once upon a time" --draft lookahead
    pyselfspec lab generate demo -p "Once upon a time" --adapt-share 0.05 --adapt-state masks.json
    pyselfspec lab generate demo -p "Once upon a time" --exit-layer 3 --unverified
    """
    if as_json:
        click.echo(json.dumps({"experiments": [asdict(each) for each in EXPERIMENTS]}))
        return
    formatter = click.HelpFormatter(width=WIDTH)
    formatter.write_text(INTRODUCTION)
    for kind, group in groupby(EXPERIMENTS, lambda each: each.kind):
        with formatter.section(kind.capitalize()):
            rows = [
                (each.use, f"{each.about} Speed: {each.speed or 'not recorded'}.") for each in group
            ]
            formatter.write_dl(rows, col_max=38)
    click.echo(formatter.getvalue(), nl=False)
