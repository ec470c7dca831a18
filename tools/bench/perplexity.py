"""Perplexity by llama-perplexity and by scan-layers, on the bundled text."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import click

from pyselfspec import LayerMask, Model
from pyselfspec.selection import chunks
from pyselfspec.selection.objectives import Setting
from pyselfspec.selection.objectives.perplexity import Objective as Perplexity
from tools.records import Record, provenance

from . import scan
from ._options import keep, model_argument, run_options
from ._table import Table
from ._upstream_programs import folder_argument, run

N_TRIES = 5
PPL = re.compile(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)")


def their_perplexity(
    folder: Path, model: Path, threads: int, n_ctx: int, n_chunks: int
) -> list[float]:
    """Return llama-perplexity's perplexity of the bundled text, and its standard error."""
    with tempfile.TemporaryDirectory() as temporary:
        text = Path(temporary, "text.txt")
        text.write_text(chunks.sample_text(), encoding="utf-8")
        sizes = ["-c", str(n_ctx), "-b", str(n_ctx), "-ub", str(n_ctx), "--chunks", str(n_chunks)]
        program: list[str | Path] = [folder / "llama-perplexity", "-m", model, "-f", text, *sizes]
        for _ in range(N_TRIES):  # under load it may end before its log is out
            said, _peak = run([*program, "-t", str(threads), "-ngl", "0"])
            found = PPL.search(said)
            if found is not None:
                break
    if found is None:
        raise click.ClickException(f"llama-perplexity reports no figure:\n{said[-2000:]}")
    return [float(found[1]), float(found[2])]


def our_perplexity(model: Path, threads: int, n_ctx: int, n_chunks: int) -> list[float]:
    """Return the perplexity that scan-layers computes."""
    with Model(model) as loaded, scan.context_of(loaded, n_ctx, threads) as context:
        texts = scan.texts_of(loaded, n_ctx, n_chunks)
        score = scan.score_of(Perplexity(Setting(context, texts)), LayerMask.full(loaded.n_layer))
    return [score.perplexity, score.perplexity * score.stderr]


@click.command()
@folder_argument
@model_argument
@run_options
@click.option("-c", "--ctx-size", "n_ctx", default=512)
@click.option("--chunks", "n_chunks", type=click.IntRange(min=1), default=15)
def command(
    folder: Path, model: Path, threads: int, out: Path | None, n_ctx: int, n_chunks: int
) -> None:
    """Perplexity of MODEL by llama-perplexity in FOLDER and by scan-layers, on the same text.

    FOLDER is what ``peers build`` has made.
    """
    theirs = their_perplexity(folder.resolve(), model, threads, n_ctx, n_chunks)
    ours = our_perplexity(model, threads, n_ctx, n_chunks)
    record = {"n_ctx": n_ctx, "n_chunks": n_chunks, "theirs": theirs, "ours": ours}
    given = f" -c {n_ctx} --chunks {n_chunks}"
    head = provenance("perplexity", model, threads, given, command="perplexity FOLDER")
    keep(head | record, TABLES[0], out)


def cells(record: Record) -> list[list[str]]:
    theirs, ours = ("{:.4f} ± {:.4f}".format(*record[key]) for key in ("theirs", "ours"))
    return [[record["model"], f"{record['n_chunks']} of {record['n_ctx']}", theirs, ours]]


TABLES = (
    Table(
        "perplexity",
        ("model", "chunks", "llama-perplexity", "scan-layers --objective perplexity"),
        "<<>>",
        cells,
    ),
)
