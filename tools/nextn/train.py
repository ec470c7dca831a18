"""Trains a small model with draft heads in its own file, for benchmarks of such heads.

    python tools/nextn/train.py TEXT.txt.xz nextn.gguf --heads 2

The blocks begin as the first ones of the bundled demo, whose vocabulary the model has, and go on
training; the heads begin as blocks that do nothing. A few minutes are enough for heads that are
often right about this small model; that says nothing about the heads of large models.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np

try:
    import torch
except ModuleNotFoundError as missing:
    sys.exit(f"Error: training needs {missing.name}: pip install 'pyselfspec[convert]'")

sys.path.append(str(Path(__file__).resolve().parents[2]))

from pyselfspec import Model
from pyselfspec.convert.stream import read_model
from pyselfspec.errors import SelfSpecError
from pyselfspec.util.paths import DEMO
from tools.layerskip.data import DataError, Tokens, packed, read_text
from tools.nextn import files
from tools.nextn.network import Network
from tools.nextn.training import Plan, Training, acceptance

N_ROWS = 256  # tokens of a line of a batch
N_HELD_OUT = 32  # lines
CHARACTERS = 4_000_000  # of the text; more than a few minutes of training read


def tokens_of(path: Path) -> Tokens:
    """Return the tokens of a text's documents, each after a BOS token."""
    with Model(DEMO) as model:
        documents = read_text(path)[:CHARACTERS].split("\n\n\n")
        rows = [model.tokenize(document) for document in documents]
    return np.concatenate([np.asarray(row, np.uint16) for row in rows])


def report(message: str) -> None:
    click.echo(message, err=True)


@click.command(help=__doc__, context_settings={"show_default": True})
@click.argument("text", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--blocks", "n_layer", type=click.IntRange(1, 12), default=4, help="Of the demo.")
@click.option("--heads", "n_nextn", type=click.IntRange(1, 4), default=1)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=Plan().minutes)
@click.option("--steps", "n_steps", type=click.IntRange(min=1), default=Plan().n_steps)
@click.option(
    "--first",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the model with its first head only here.",
)
@click.option("--seed", default=Plan().seed)
@click.option("--type", "type_name", type=click.Choice(list(files.TYPES)), default="q8_0")
@click.option("-t", "--threads", type=click.IntRange(min=1), default=torch.get_num_threads())
def main(
    text: Path,
    out: Path,
    n_layer: int,
    n_nextn: int,
    minutes: float,
    n_steps: int,
    first: Path | None,
    seed: int,
    type_name: str,
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    try:
        source = read_model(DEMO)
        rows = packed(tokens_of(text), N_ROWS)
        network = Network(files.shape_of(source, n_layer, n_nextn), seed)
        files.copy_weights(network, source)
        training = Training(network, Plan(minutes, n_steps, seed=seed))
        for _losses in training.run(rows[N_HELD_OUT:], report):
            pass
        files.write(out, network, source, type_name)
        if first:
            files.write(first, network, source, type_name, n_nextn=1)
    except (SelfSpecError, DataError, OSError) as error:
        raise click.ClickException(str(error)) from None
    held_out = torch.from_numpy(rows[:N_HELD_OUT].astype("int64"))
    rates = " ".join(f"{rate:.2f}" for rate in acceptance(network, held_out))
    report(f"{training.n_steps_done} steps; acceptance by draft position on other text: {rates}")


if __name__ == "__main__":
    main()
