"""Fit a linear map for an exit of a model on a text, see pyselfspec/lab/drafters/exit_map.py.

    python tools/fit_exit_map.py MODEL TEXT --exit-layer 10 --out map.json
    pyselfspec generate MODEL --draft layer-skip --exit-layer 10 -o map=map.json

Prints on how many tokens; at the end of the text, which is not fitted on, how often the exit's
likeliest token is the model's, without the map and with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pyselfspec import Context, LayerMask, Model
from pyselfspec.errors import SelfSpecError
from pyselfspec.lab.drafters import exit_map
from pyselfspec.runtime.passes import FULL
from pyselfspec.speculate.pass_requests import run_request

N_TEST = 1024  # tokens at the end


def agreement(
    context: Context, tokens: Sequence[int], found: exit_map.ExitMap
) -> tuple[float, float]:
    """Return the share of the model's likeliest tokens that the exit finds, without the map and
    with it."""
    seq, n_layer = context.sequence(), context.model.n_layer
    jump = exit_map.Jump(context, found)
    mask = LayerMask.early_exit(n_layer, found.exit_layer)
    n_plain = n_mapped = n_all = 0
    for first in range(0, len(tokens), exit_map.N_CHUNK):
        part = tokens[first : first + exit_map.N_CHUNK]
        seq.drop()
        context.decode(part, mask=mask)
        exits = [context.best(i) for i in range(len(part))]
        seq.drop()
        left = context.decode(part, hidden_at=found.exit_layer).hidden
        full = [context.best(i) for i in range(len(part))]
        assert left is not None
        for i, token in enumerate(part):
            mapped = run_request(context, jump.request(seq, i, token, left[i : i + 1], FULL))
            n_mapped += mapped.best(0) == full[i]
        n_plain += sum(a == b for a, b in zip(exits, full, strict=True))
        n_all += len(part)
    seq.drop()
    return n_plain / n_all, n_mapped / n_all


@click.command(help=__doc__)
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("text", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--exit-layer", type=click.IntRange(min=1), required=True)
@click.option("--tokens", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(model: Path, text: Path, exit_layer: int, tokens: int, threads: int, out: Path) -> None:
    try:
        with Model(model) as opened, opened.context(n_ctx=512, n_threads=threads) as context:
            start = text.read_text(encoding="utf-8", errors="replace")[: 12 * (tokens + N_TEST)]
            ids = opened.tokenize(start)[: tokens + N_TEST]
            found = exit_map.fit(context, ids[:-N_TEST], exit_layer, text.name)
            exit_map.save(out, found)
            plain, mapped = agreement(context, ids[-N_TEST:], found)
    except (SelfSpecError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{out}: fitted on {found.n_tokens} tokens")
    click.echo(f"of {N_TEST} tokens, the exit finds {plain:.3f} without the map, {mapped:.3f} with")


if __name__ == "__main__":
    main()
