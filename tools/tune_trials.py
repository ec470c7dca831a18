"""Alternatives for draft heads on the same data: which states they read, with and without
attention, how many tokens they know, how deep they learn.

    python tools/tune_trials.py MODEL DATA --batches 200

DATA is a folder that ``pyselfspec tune MODEL --data DATA`` has written. Every head sees the same
texts in the same order. Prints a table in Markdown: of drafts on held-out text, how many are
right by position, and how many tokens of four that makes.
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

from pyselfspec.tune.batches import Batch, Packer
from pyselfspec.tune.head import Head
from pyselfspec.tune.known import Known
from pyselfspec.tune.shards import Shard
from pyselfspec.tune.training import Training, half_pays
from pyselfspec.tune.tuning import N_POSITIONS, feature_scale, own_tokens
from pyselfspec.tune.wanted import N_OWN, Options

N_LINES, N_ROWS = 4, 256
ALL = (0, 1, 2)
RATE, RATE_OTHER = Options().rate, Options().rate_other
LAST_BLOCK = {  # tensors of a block, and what they are in a head
    name: name
    for name in (
        "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"
    )
} | {"attn_norm": "attn_norm_2"}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """states: which of the three that the data has are read. n_own: tokens that the head knows.
    n_lines: of a batch; all trials see as many tokens.
    last_block: the block begins as a copy of the model's last one, which reads the states given to
    the head; what it knows of the token begins at zero."""

    name: str
    states: tuple[int, ...] = ALL
    attention: bool = True
    n_own: int = N_OWN
    options: Options = field(default_factory=Options)
    from_scratch: bool = False
    last_block: bool = False
    n_lines: int = N_LINES


TRIALS = (
    Trial("as tune does it"),
    Trial("the last state alone", states=(2,)),
    Trial("the early and the middle one", states=(0, 1)),
    Trial("no attention", attention=False),
    *(Trial(f"{n} tokens", n_own=n) for n in (1024, 2048, 4096, 16384)),
    Trial("one step unrolled", options=Options(n_steps=1)),
    Trial("four steps unrolled", options=Options(n_steps=4)),
    Trial("output from scratch", from_scratch=True),
    Trial("begins as the last block", last_block=True),
    *(Trial(f"batches of {n}", n_lines=n // N_ROWS) for n in (256, 512)),
    *(
        Trial(f"rates times {by}", options=Options(rate=by * RATE, rate_other=by * RATE_OTHER))
        for by in (0.5, 2, 4)
    ),
)


@dataclass(frozen=True)
class Given:
    """What all trials have in common."""

    known: Known
    shards: Sequence[Shard]
    held_out: Shard
    n_batches: int
    half: bool

    def acceptance(self, trial: Trial) -> tuple[tuple[float, ...], float, float]:
        """By position; tokens of four that are right; seconds of training."""
        torch.manual_seed(0)
        n_vocab = self.known.source.file.n_vocab
        own = own_tokens(self.shards, min(trial.n_own, n_vocab), n_vocab)
        shape = replace(self.known.shape(len(own)), attention=trial.attention)
        head = self.known.head(shape, own, self._scale(trial))
        if trial.from_scratch:
            torch.nn.init.normal_(head.output.weight, std=shape.n_embd**-0.5)
        if trial.last_block:
            self._copy_last_block(head)
        training = Training(head, trial.options, half=self.half)
        size = {"n_lines": trial.n_lines, "n_rows": N_ROWS}
        packer = Packer(own, n_vocab, self.known.embedded, device="cpu", **size)
        start = time.process_time()
        for batch in self._batches(packer, self.n_batches * N_LINES // trial.n_lines):
            training.learn(batch)
        seconds = time.process_time() - start
        counts = training.held_out(list(packer.batches(self.held_out.texts())), N_POSITIONS)
        return counts.acceptance, counts.n_expected, seconds

    def _copy_last_block(self, head: Head) -> None:
        last = self.known.source.file.n_layer - 1
        tensors = {tensor.name: tensor for tensor in self.known.source.tensors}
        with torch.no_grad():
            for name, of_head in LAST_BLOCK.items():
                stored = tensors[f"blk.{last}.{name}.weight"]
                values = torch.tensor(dequantize(stored.rows, stored.type)).squeeze()
                weight = getattr(head, of_head).weight.zero_()
                weight[..., -values.shape[-1] :] = values  # behind what is for the token

    def _scale(self, trial: Trial) -> NDArray[np.float32]:
        n_embd = self.known.source.file.n_embd
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
    """Train every kind of head for a while and print what its drafts are worth."""
    torch.set_num_threads(threads)
    paths = sorted(data.glob("[0-9]*.npz"))
    shards = [Shard.load(path) for path in paths[1:]]
    given = Given(Known.of(model), shards, Shard.load(paths[0]), batches, half_pays("cpu"))
    n = sum(map(len, shards))
    click.echo(f"{n} tokens of data, {batches * N_LINES * N_ROWS} seen\n")
    click.echo("| head | 1 | 2 | 3 | 4 | right of four | CPU s |\n|---|---|---|---|---|---|---|")
    for trial in TRIALS:
        if not only or trial.name in only:
            found, expected, seconds = given.acceptance(trial)
            by_position = " | ".join(f"{each:.2f}" for each in found)
            click.echo(f"| {trial.name} | {by_position} | {expected:.2f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
