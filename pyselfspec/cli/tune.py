"""pyselfspec tune: a draft head for a model, trained on this machine from the model's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from rich.progress import TaskProgressColumn

from ..convert.quantize import TYPES
from ..errors import ArgumentError
from ..gguf.heads import N_BLOCKS_READ
from ..tune.config import DEVICES, DRAFT_VOCAB_SIZE, MINUTES, SEED, TYPE, TuneConfig
from ..util import paths, records
from ..util.extras import install_command
from ..util.files import require_target
from ._help import ManyOptions
from ._machine import DeviceOptions
from ._model import model_argument
from ._options import common_options, out_option, parse_tokens
from ._progress import stages
from ._types import Integer, Number, of_value, takes

if TYPE_CHECKING:
    from ..tune.run import TuneResult


def _head(path: Path) -> Path:
    require_target(path)
    return path


@cloup.command(name="tune", cls=ManyOptions)
@model_argument
@cloup.option_group(
    "Training data",
    cloup.option(
        "--minutes",
        type=Number(0, min_open=True),
        default=MINUTES,
        help="Longest time of this run in minutes; at most half of it goes to generating training "
        "text.",
    ),
    cloup.option(
        "--tokens",
        "n_tokens",
        type=Integer(1),
        help="Number of tokens of training text.  [default: as many as half of --minutes allows]",
    ),
    cloup.option(
        "--prompts",
        type=click.Path(path_type=Path, exists=True),
        help="Prompts for the training text: a .jsonl file of chats, a text file, or a folder of "
        "text files.  [default: bundled prompts]",
    ),
    cloup.option(
        "--data",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the training text and the model's hidden states; resumed if it exists.  "
        "[default: in the user's cache folder, by model]",
    ),
    cloup.option(
        "--seed",
        type=Integer(0),
        default=SEED,
        help="Seed for choosing prompts and for generating text.",
    ),
)
@cloup.option_group(
    "Draft head",
    out_option(
        "the head",
        "in the --data folder; installed for generate if it makes generation faster",
        _head,
    ),
    cloup.option(
        "--blocks",
        callback=of_value(parse_tokens),
        metavar="BLOCKS",
        help="Three blocks whose inputs the head reads, like 2,15,30; for the output of the last "
        "block, give its number plus 1.  [default: an early, a middle and the last block]",
    ),
    cloup.option(
        "--vocab",
        "draft_vocab_size",
        type=Integer(2),
        default=DRAFT_VOCAB_SIZE,
        help="Number of tokens in the vocabulary of the head: the most frequent ones of the "
        "training text.",
    ),
    cloup.option(
        "--type",
        "type_name",
        metavar="TYPE",
        type=click.Choice(list(TYPES), case_sensitive=False),
        default=TYPE,
        help="Type of the head's weights: q8_0, q4_0, f16 or another type of llama.cpp.",
    ),
    cloup.option(
        "--device",
        type=click.Choice(DEVICES),
        default=DEVICES[0],
        help="Device on which torch trains.",
    ),
)
@takes(machine=DeviceOptions)
@common_options
def command(model: str, as_json: bool, machine: DeviceOptions, **settings: Any) -> None:
    """Train a draft head for a model, on this machine.

    The model generates text, and the head learns to predict it. If the head makes generation
    faster, generate and the other commands use it from then on. After Ctrl-C, run the same command
    to resume. Needs pip install 'pyselfspec[tune]'.

    \b
    pyselfspec tune model.gguf --minutes 60
    pyselfspec tune model.gguf --prompts chats.jsonl --tokens 1000000 --out head.gguf
    """
    run = _load_run()
    config = TuneConfig(**settings)
    if config.blocks is not None and len(config.blocks) != N_BLOCKS_READ:
        raise click.BadParameter(
            f"--blocks takes {N_BLOCKS_READ} numbers, like 2,15,30; got {len(config.blocks)}"
        )
    context = machine.context_params()
    with machine.open_model(model) as loaded, stages(TaskProgressColumn()) as progress:
        result = run.tune(loaded, config, context=context, progress=progress)
    _show(result, as_json)


def _load_run() -> Any:
    """Import tune.run, which imports torch. Raises ArgumentError if torch is not installed."""
    try:
        from ..tune import run
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ArgumentError(f"tune needs torch: {install_command('tune')}") from None
    return run


def _show(result: TuneResult, as_json: bool) -> None:
    installed, card, speed = result.installed, result.card, result.speed
    if as_json:
        found = {
            "used": None if installed is None else paths.shown(str(installed)),
            "head": paths.shown(str(result.path)),
            "card": records.to_dict(card),
            "speed": records.to_dict(speed),
        }
        click.echo(records.encode(found).decode())
        return
    by_position = ", ".join(f"{rate:.2f}" for rate in card.acceptance)
    click.echo(f"{result.path}: held-out acceptance by draft position: {by_position}")
    click.echo(
        f"speed-up over plain decoding on held-out prompts: {speed.ngram:.2f} with ngram, "
        f"{speed.ngram_head:.2f} with ngram+head"
    )
    if installed is not None:
        click.echo(f"installed as {installed}; generate uses it by default")
        return
    if not speed.head_pays:
        click.echo(
            "the head does not make generation faster yet; run the same command again to train "
            "it further"
        )
    click.echo(f"to use the head, give generate --draft ngram+head:{result.path}")
