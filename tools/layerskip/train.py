"""Trains a small Llama model that can draft from its own early blocks.

    python tools/layerskip/train.py tools/layerskip/demo.toml TEXT.txt.xz OUT --eval HELDOUT.txt

OUT becomes a Hugging Face directory; `pyselfspec models convert` makes a GGUF file of it. A run
that was interrupted goes on from its last checkpoint when started again. --recipe plain trains the
same model without layer dropout and exit losses, for comparison.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

try:
    import sentencepiece
    import torch
    from transformers import LlamaTokenizer
except ModuleNotFoundError as missing:
    sys.exit(f"Error: training needs {missing.name}: pip install 'pyselfspec[convert]'")

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tools.layerskip import config as settings
from tools.layerskip import data, evaluation, training

DEMO_CONFIG = Path(__file__).parent / "demo.toml"
TOKENIZER = "tokenizer.model"
CHECKPOINT = "checkpoint.pt"
LOG = "log.jsonl"
N_EVAL_ROW = 256
LOG_EVERY = 10  # steps

err = Console(stderr=True, highlight=False)


def tokenizer_in(out: Path, text: str, n_vocab: int) -> Any:
    """The tokenizer of an earlier start of this run, or one learnt from the text."""
    if not (out / TOKENIZER).exists():
        err.print("learning the vocabulary")
        data.make_tokenizer(text, n_vocab, out / TOKENIZER)
    return sentencepiece.SentencePieceProcessor(model_file=str(out / TOKENIZER))


def show_scores(scores: Sequence[evaluation.ExitScore]) -> None:
    table = Table("exit after", "loss", "agreement")
    for score in scores:
        table.add_row(str(score.exit), f"{score.loss:.3f}", f"{score.agreement:.3f}")
    err.print(table)


class Journal:
    """Progress bar, log file, evaluations and checkpoints of a run."""

    def __init__(self, run: training.Run, out: Path, held_out: data.Tokens | None, every: float):
        self.run, self.out, self.held_out, self.every = run, out, held_out, every
        self.peak = training.peak_flops(run.device)
        self.saved = time.monotonic()

    def log(self, record: dict[str, object]) -> None:
        with open(self.out / LOG, "a") as log:
            log.write(json.dumps(record) + "\n")
            log.flush()
            os.fsync(log.fileno())

    def note(self, at: training.Progress, bar: Progress, task: TaskID) -> None:
        share = at.flops_per_s / self.peak
        text = f"loss {at.loss:.3f} · {at.tokens_per_s:,.0f} tokens/s · {share:.0%} of peak"
        bar.update(task, completed=at.step + 1, description=text)
        if at.step % LOG_EVERY == 0:
            self.log(asdict(at) | {"share_of_peak": share})
        if time.monotonic() - self.saved > self.every:
            self.save(at.n_layer)

    def save(self, n_layer: int) -> None:
        self.run.save(self.out / CHECKPOINT)
        if self.held_out is not None:
            model, device = self.run.model, self.run.device
            scores = evaluation.score_exits(model, self.held_out, n_layer, device)
            self.log({"step": self.run.step, "exits": [asdict(s) for s in scores]})
            show_scores(scores)
        self.saved = time.monotonic()


def export(run: training.Run, out: Path) -> None:
    """Weights, configuration and tokenizer as transformers reads them."""
    LlamaTokenizer.from_pretrained(out, legacy=False, add_bos_token=True).save_pretrained(out)
    run.model.save_pretrained(out)


@click.command(help=__doc__)
@click.argument("config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("text_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--recipe", type=click.Choice(["layerskip", "plain"]), default="layerskip")
@click.option("--eval", "eval_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu")
@click.option("-t", "--threads", type=int, help="CPU threads; default: torch's.")
@click.option("--save-every", default=300.0, show_default=True, help="Seconds.")
def main(
    config_file: Path,
    text_file: Path,
    out: Path,
    recipe: str,
    eval_file: Path | None,
    device: str,
    threads: int | None,
    save_every: float,
) -> None:
    if threads:
        torch.set_num_threads(threads)
    try:
        config = settings.load(config_file)
        out.mkdir(parents=True, exist_ok=True)
        text = data.read_text(text_file)
        tokenizer = tokenizer_in(out, text, config.shape.n_vocab)
        rows = data.packed(data.tokenize(text, tokenizer), config.plan.sequence)
        held_out = None
        if eval_file:
            tokens = data.tokenize(data.read_text(eval_file), tokenizer)
            held_out = data.packed(tokens, config.plan.sequence)[:N_EVAL_ROW]
        run = training.Run.start(config, recipe == "plain", device)
        if (out / CHECKPOINT).exists():
            run.load(out / CHECKPOINT)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    passes = config.plan.tokens / rows[:, 1:].size
    err.print(f"{rows[:, 1:].size:,} tokens of text, {passes:.2f} passes, from step {run.step}")
    journal = Journal(run, out, held_out, save_every)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=config.n_step, completed=run.step)
        for at in run.train(rows):
            journal.note(at, bar, task)
    journal.save(config.shape.n_layer)
    export(run, out)


if __name__ == "__main__":
    main()
