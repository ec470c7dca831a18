"""Generates 32 tokens in one mode and prints the peak memory in kB. Run by ``speed`` as a program,
so that a mode has a process of its own."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import click

sys.path.append(str(Path(__file__).resolve().parents[2]))

from pyselfspec import Model
from pyselfspec.speculate.drafters import layer_skip
from tools.bench import _modes
from tools.bench._options import exit_option, model_argument

N_TOKENS = 32


@click.command()
@model_argument
@click.argument("mode")
@click.option("-t", "--threads", type=int, required=True)
@exit_option
def main(model: Path, mode: str, threads: int, exit_layer: int | None) -> None:
    with Model(model) as loaded, loaded.context(n_ctx=_modes.N_CTX, n_threads=threads) as context:
        mask = _modes.mask_for(loaded, exit_layer)
        table = layer_skip.LayerSkipDrafter(context, mask).costs()
        setup = _modes.Setup(context, mask, table, N_TOKENS, 0.0)
        parsed = None if mode == _modes.PLAIN else _modes.Mode.parse(mode)
        setup.generate(parsed, _modes.tokens_of(loaded, None)[0], 0)
    click.echo(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    main()
