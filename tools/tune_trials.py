"""Trains variants of draft heads on the same data: by the states they read, with and without
attention, by draft vocabulary and number of draft positions in the loss.

    python tools/tune_trials.py MODEL DATA --batches 200

DATA is a folder that ``pyselfspec tune MODEL --data DATA`` has written. Every head sees the same
texts in the same order. Prints a Markdown table: held-out acceptance rate by draft position, and
the mean number of accepted tokens of four.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np
import torch
from gguf.quants import dequantize
from numpy.typing import NDArray

from pyselfspec.tune.config import DRAFT_VOCAB_SIZE, TrainingOptions
from pyselfspec.tune.head import Head
from pyselfspec.tune.shards import Batch, Packer, Shard
from pyselfspec.tune.train import Trainer, bfloat16_is_faster, feature_scale, frequent_tokens
from pyselfspec.tune.weights import BaseModelWeights

N_LINES, N_ROWS = 4, 256
ALL = (0, 1, 2)
RATE, RATE_OTHER = TrainingOptions().rate, TrainingOptions().rate_other
LAST_BLOCK = {  # tensors of a block, and what they are in a head
    name: name
    for name in (
        "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"
    )
} | {"attn_norm": "attn_norm_2"}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A kind of head and how it is trained.

    states: which of the three states in the data the head reads.
    draft_vocab_size: tokens that the head can draft.
    n_lines: lines of a batch; all trials train on the same number of tokens.
    last_block: the head's block begins as a copy of the model's last block, with zero weights for
        the token's embedding.
    """

    name: str
    states: tuple[int, ...] = ALL
    attention: bool = True
    draft_vocab_size: int = DRAFT_VOCAB_SIZE
    options: TrainingOptions = field(default_factory=TrainingOptions)
    from_scratch: bool = False
    last_block: bool = False
    n_lines: int = N_LINES


TRIALS = (
    Trial("as tune does it"),
    Trial("the last state alone", states=(2,)),
    Trial("the early and the middle one", states=(0, 1)),
    Trial("no attention", attention=False),
    *(Trial(f"{n} tokens", draft_vocab_size=n) for n in (1024, 2048, 4096, 16384)),
    Trial("one step unrolled", options=TrainingOptions(n_steps=1)),
    Trial("four steps unrolled", options=TrainingOptions(n_steps=4)),
    Trial("output from scratch", from_scratch=True),
    Trial("begins as the last block", last_block=True),
    *(Trial(f"batches of {n}", n_lines=n // N_ROWS) for n in (256, 512)),
    *(
        Trial(
            f"rates times {by}",
            options=TrainingOptions(rate=by * RATE, rate_other=by * RATE_OTHER),
        )
        for by in (0.5, 2, 4)
    ),
)


@dataclass(frozen=True)
class Given:
    """Model, data and settings that all trials share."""

    weights: BaseModelWeights
    shards: Sequence[Shard]
    held_out: Shard
    n_batches: int
    bfloat16: bool

    def acceptance(self, trial: Trial) -> tuple[tuple[float, ...], float, float]:
        """Return acceptance by position, mean accepted tokens of four, training seconds."""
        torch.manual_seed(0)
        n_vocab = self.weights.source.file.n_vocab
        vocab = frequent_tokens(self.shards, min(trial.draft_vocab_size, n_vocab), n_vocab)
        shape = replace(self.weights.head_shape(len(vocab)), attention=trial.attention)
        head = self.weights.new_head(shape, vocab, self._scale(trial))
        if trial.from_scratch:
            torch.nn.init.normal_(head.output.weight, std=shape.n_embd**-0.5)
        if trial.last_block:
            self._copy_last_block(head)
        trainer = Trainer(head, trial.options, bfloat16=self.bfloat16)
        size = {"n_lines": trial.n_lines, "n_rows": N_ROWS}
        packer = Packer(vocab, n_vocab, self.weights.embeddings, device="cpu", **size)
        start = time.process_time()
        for batch in self._batches(packer, self.n_batches * N_LINES // trial.n_lines):
            trainer.learn(batch)
        seconds = time.process_time() - start
        counts = trainer.evaluate(list(packer.batches(self.held_out.texts())))
        return counts.acceptance, counts.mean_accepted, seconds

    def _copy_last_block(self, head: Head) -> None:
        last = self.weights.source.file.n_layer - 1
        tensors = {tensor.name: tensor for tensor in self.weights.source.tensors}
        with torch.no_grad():
            for name, of_head in LAST_BLOCK.items():
                stored = tensors[f"blk.{last}.{name}.weight"]
                values = torch.tensor(dequantize(stored.rows, stored.type)).squeeze()
                weight = getattr(head, of_head).weight.zero_()
                weight[..., -values.shape[-1] :] = values  # after the columns for the token

    def _scale(self, trial: Trial) -> NDArray[np.float32]:
        n_embd = self.weights.source.file.n_embd
        scale = feature_scale(self.shards[0], n_embd)
        for state in set(ALL) - set(trial.states):
            scale[state * n_embd : (state + 1) * n_embd] = 0
        return scale

    def _batches(self, packer: Packer, n_batches: int) -> Iterator[Batch]:
        rng, n = np.random.default_rng(0), 0
        texts = [text for shard in self.shards for text in shard.texts()]
        while True:
            for batch in packer.batches(texts[i] for i in rng.permutation(len(texts))):
                if n == n_batches:
                    return
                n += 1
                yield batch


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--batches", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--only", multiple=True, help="A trial by its name; may be given several times.")
@click.option("-t", "--threads", type=click.IntRange(min=1), default=1, show_default=True)
def main(model: Path, data: Path, batches: int, only: tuple[str, ...], threads: int) -> None:
    """Train every kind of head for a while and print its acceptance rates."""
    torch.set_num_threads(threads)
    paths = sorted(data.glob("[0-9]*.npz"))
    shards = [Shard.load(path) for path in paths[1:]]
    given = Given(
        BaseModelWeights.open(model),
        shards,
        Shard.load(paths[0]),
        batches,
        bfloat16_is_faster("cpu"),
    )
    n = sum(map(len, shards))
    click.echo(f"{n} tokens of data, {batches * N_LINES * N_ROWS} seen\n")
    click.echo("| head | 1 | 2 | 3 | 4 | accepted of four | CPU s |\n|---|---|---|---|---|---|---|")
    for trial in TRIALS:
        if not only or trial.name in only:
            found, expected, seconds = given.acceptance(trial)
            by_position = " | ".join(f"{each:.2f}" for each in found)
            click.echo(f"| {trial.name} | {by_position} | {expected:.2f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
