"""Trains a head and counts how many of its draft tokens would be accepted on held-out text.

The loss is the cross entropy with the model's distribution over the draft vocabulary. The step size
is constant and the result is a moving average of the weights, so training can stop, and continue
from a checkpoint, at any time.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ArgumentError
from ..util.files import replacing
from .config import TrainingOptions, TuneConfig
from .data import TrainingData
from .head import Head
from .muon import Muon
from .shards import Batch, Packer, Shard, TextRows
from .weights import BaseModelWeights

CHECKPOINT = "training.pt"  # in the folder of the data
WARMUP = 50  # batches
N_AVERAGED = 200  # approximate number of batches in the moving average of the weights
CLIP_NORM = 1.0
UNIT = 256  # rows
EPSILON = 1e-9
N_POSITIONS = 4  # draft positions that are evaluated
N_EVALUATE = 50  # batches between two evaluations
SAVE_S = 60.0  # seconds between checkpoints
N_MIXED = 4  # shards whose texts are mixed


@dataclass(frozen=True, slots=True)
class HeldOutCounts:
    """Greedy draft tokens by draft position, int64 [n_positions]: drafted after only accepted ones,
    and accepted."""

    n_drafted: NDArray[np.int64]
    n_accepted: NDArray[np.int64]

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Acceptance rate by position, given that the positions before it were accepted."""
        return tuple((self.n_accepted / np.maximum(1, self.n_drafted)).tolist())

    @property
    def mean_accepted(self) -> float:
        """Expected number of accepted tokens of a draft."""
        return float(np.cumprod(self.acceptance).sum())


class Trainer:
    """A head, a moving average of its weights, and the optimizers' state.

    bfloat16: whether to compute in bfloat16.
    """

    def __init__(self, head: Head, options: TrainingOptions, *, bfloat16: bool) -> None:
        self.head, self.options, self._bfloat16 = head, options, bfloat16
        self.average = deepcopy(head).requires_grad_(False)
        self.n_batches = self.n_tokens = 0
        self.seconds = 0.0
        inner = [p for name, p in head.named_parameters() if p.ndim > 1 and name != "output.weight"]
        other = [p for name, p in head.named_parameters() if p.ndim == 1 or name == "output.weight"]
        self._optimizers = (
            Muon(inner, options.rate, torch.bfloat16 if bfloat16 else torch.float32),
            torch.optim.AdamW(other, lr=options.rate_other, weight_decay=0.0, betas=(0.9, 0.95)),
        )

    @property
    def draft_vocab(self) -> NDArray[np.int64]:
        """Ids of the tokens that the head can draft, int64 [draft_vocab_size]."""
        ids: NDArray[np.int64] = self.head.draft_vocab.cpu().numpy()
        return ids

    def learn(self, batch: Batch) -> float:
        """Train on a batch and return its loss."""
        start = time.monotonic()
        with self._precision(batch):
            loss = _loss(self.head, batch, self.options)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), CLIP_NORM)
        warm = min(1.0, (self.n_batches + 1) / WARMUP)
        rates = (self.options.rate, self.options.rate_other)
        for optimizer, rate in zip(self._optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * warm
            optimizer.step()
            optimizer.zero_grad()
        self.n_batches += 1
        self.n_tokens += batch.texts.numel()
        self._update_average()
        self.seconds += time.monotonic() - start
        return float(loss.detach())

    def _update_average(self) -> None:
        part = max(1 / N_AVERAGED, 2 / (self.n_batches + 1))  # early weights are forgotten faster
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.head.parameters(), strict=True):
                mean.lerp_(now, min(1.0, part))

    def evaluate(self, batches: Sequence[Batch], n_steps: int = N_POSITIONS) -> HeldOutCounts:
        """Draft n_steps tokens from every row with the averaged weights and count the accepted."""
        counts = HeldOutCounts(np.zeros(n_steps, np.int64), np.zeros(n_steps, np.int64))
        for batch in batches:
            with torch.no_grad(), self._precision(batch):
                _count(self.average, batch, counts)
        return counts

    def _precision(self, batch: Batch) -> AbstractContextManager[Any]:
        if not self._bfloat16:
            return nullcontext()
        cast: AbstractContextManager[Any] = torch.autocast(
            batch.features.device.type, torch.bfloat16
        )
        return cast

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs to continue."""
        return {
            "head": self.head.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "n_batches": self.n_batches,
            "n_tokens": self.n_tokens,
            "seconds": self.seconds,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        self.average.load_state_dict(state["average"])
        for optimizer, each in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        self.n_batches, self.n_tokens = state["n_batches"], state["n_tokens"]
        self.seconds = state["seconds"]


#
# training on a folder of data
#


def train(
    weights: BaseModelWeights,
    data: TrainingData,
    config: TuneConfig,
    time_share: Callable[[], float],
    progress: Callable[[float, str | None], None],
) -> tuple[Trainer, HeldOutCounts]:
    """Train on the data from the checkpoint in its folder, or from the start, and evaluate.

    time_share: the share of the time that has passed, 0 to 1.
    progress: receives the share that is done, 0 to 1, and a message or None.
    Saves a checkpoint every minute and at the end, also after an exception.
    Raises ArgumentError for a checkpoint that is broken or of other settings.
    """
    trainer = _new_or_restored(weights, data, config)
    packer = Packer(
        trainer.draft_vocab, weights.source.file.n_vocab, weights.embeddings,
        n_lines=config.n_lines, n_rows=config.n_rows, device=config.device,
    )  # fmt: skip
    held_out = _held_out_batches(packer, data, config)

    def share() -> float:
        if config.n_batches is None:
            return time_share()
        return min(1.0, trainer.n_batches / config.n_batches)

    saved = time.monotonic()
    try:
        for batch in _training_batches(packer, data, config, trainer):
            if share() >= 1:
                break
            trainer.learn(batch)
            is_due = trainer.n_batches % N_EVALUATE == 0
            progress(share(), _report(trainer, trainer.evaluate(held_out)) if is_due else None)
            if time.monotonic() - saved > SAVE_S:
                _save(trainer, data, config)
                saved = time.monotonic()
    finally:
        _save(trainer, data, config)
    counts = trainer.evaluate(held_out)
    progress(1.0, _report(trainer, counts))
    return trainer, counts


def _report(trainer: Trainer, counts: HeldOutCounts) -> str:
    by_position = " ".join(f"{rate:.2f}" for rate in counts.acceptance)
    return (
        f"trained on {trainer.n_tokens / 1e6:.2f} million tokens; held-out acceptance by draft "
        f"position: {by_position}"
    )


def _new_or_restored(weights: BaseModelWeights, data: TrainingData, config: TuneConfig) -> Trainer:
    state = _load(data, config)
    if state is None:
        n_vocab = weights.source.file.n_vocab
        shards = [Shard.load(path) for path in data.shard_paths()]
        vocab = frequent_tokens(shards, min(config.draft_vocab_size, n_vocab), n_vocab)
        scale = feature_scale(shards[0], data.description.n_embd)
    else:
        vocab, scale = (state["trainer"]["head"][name].numpy() for name in ("draft_vocab", "scale"))
    torch.manual_seed(config.seed)
    head = weights.new_head(weights.head_shape(len(vocab)), vocab, scale).to(config.device)
    bfloat16 = bfloat16_is_faster(config.device) if config.bfloat16 is None else config.bfloat16
    trainer = Trainer(head, config.training, bfloat16=bfloat16)
    if state is not None:
        trainer.restore(state["trainer"])
    return trainer


def _settings(config: TuneConfig) -> dict[str, Any]:
    """Return the settings that must not change between the runs of a training."""
    names = ("draft_vocab_size", "n_lines", "n_rows")
    return {name: getattr(config, name) for name in names} | asdict(config.training)


def _save(trainer: Trainer, data: TrainingData, config: TuneConfig) -> None:
    with replacing(data.folder / CHECKPOINT) as unfinished:
        torch.save({"settings": _settings(config), "trainer": trainer.state()}, unfinished)


def _load(data: TrainingData, config: TuneConfig) -> dict[str, Any] | None:
    path = data.folder / CHECKPOINT
    if not path.exists():
        return None
    fix = f"remove {path} to train from the start on the same data"
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ArgumentError(f"the checkpoint is broken ({error}); {fix}") from None
    if state["settings"] != _settings(config):
        raise ArgumentError(f"the checkpoint is of other settings; {fix}")
    return state


def _held_out_batches(packer: Packer, data: TrainingData, config: TuneConfig) -> list[Batch]:
    texts = Shard.load(data.held_out_path).texts()
    batches = list(packer.batches(texts))
    if not batches:  # the texts do not fill one batch: repeat them
        n_rows = config.n_lines * config.n_rows
        batches = list(packer.batches(texts * -(-n_rows // max(1, sum(map(len, texts))))))
    return batches


def _training_batches(
    packer: Packer, data: TrainingData, config: TuneConfig, trainer: Trainer
) -> Iterator[Batch]:
    """Yield batches without end, from the texts of a few shards at a time."""
    while True:
        rng = np.random.default_rng((config.seed, trainer.n_batches))
        paths = data.shard_paths()
        for _ in range(0, len(paths), N_MIXED):
            order = rng.permutation(len(paths))[:N_MIXED]
            texts = [text for i in order for text in Shard.load(paths[i]).texts()]
            yield from packer.batches(_repeat(texts, config.n_lines * config.n_rows, rng))


def _repeat(texts: Sequence[TextRows], n_rows: int, rng: np.random.Generator) -> Iterator[TextRows]:
    """Yield all texts in random order, repeatedly until they have n_rows rows."""
    n = 0
    while n < n_rows:
        for i in rng.permutation(len(texts)):
            yield texts[i]
            n += len(texts[i])


def frequent_tokens(shards: Sequence[Shard], n: int, n_vocab: int) -> NDArray[np.int64]:
    """Return the n tokens with the highest total probability, in order of ids, int64 [n]; the
    lowest ids complete them if the data has fewer."""
    weights = np.zeros(n_vocab)
    for shard in shards:
        weights += np.bincount(shard.best.ravel(), shard.probs.astype(float).ravel(), n_vocab)
    return np.sort(np.argsort(-weights, kind="stable")[:n]).astype(np.int64)


def feature_scale(shard: Shard, n_embd: int) -> NDArray[np.float32]:
    """Return factors that bring the median state of each block to a mean square of 1, float32
    [n_features]. Not the mean state: states of first tokens are far larger."""
    states = shard.features.astype(np.float32).reshape(len(shard), -1, n_embd)
    sizes = np.sqrt(np.median((states**2).mean(-1), 0))
    return np.repeat(1 / np.maximum(sizes, 1e-6), n_embd).astype(np.float32)


#
# arithmetic
#


def _loss(head: Head, batch: Batch, options: TrainingOptions) -> Tensor:
    """Return the cross entropy with the model's distribution, averaged over the rows that are
    scored in each step."""
    total = torch.zeros((), device=batch.features.device)
    usable = batch.scored & (batch.probs.sum(-1) > 0)
    steps = head.steps(batch.features, batch.embedded, batch.texts, options.n_steps)
    for step, output in enumerate(steps):
        at, weights = _pad_rows(usable & (batch.before >= step))
        logits = head.logits(output.flatten(0, 1)[at]).float()
        probs = batch.probs.flatten(0, 1)[at]
        probs = probs / probs.sum(-1, keepdim=True).clamp(min=EPSILON)
        best = batch.best.flatten(0, 1)[at].clamp(min=0)
        expected = (probs * logits.gather(-1, best)).sum(-1)
        loss = ((logits.logsumexp(-1) - expected) * weights).sum() / weights.sum().clamp(min=1)
        total = total + options.decay**step * loss
    return total / sum(options.decay**step for step in range(options.n_steps))


def _pad_rows(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the chosen rows, padded with 0 to a multiple of UNIT, and weights: 1
    for a chosen row, 0 for padding.

    oneDNN keeps a kernel and its memory for every size of matrix: without padding that came to 13
    GB within an hour.
    """
    found = chosen.flatten().nonzero()[:, 0]
    rows = found.new_zeros(-(-len(found) // UNIT) * UNIT)
    rows[: len(found)] = found
    weights = torch.zeros(len(rows), device=found.device)
    weights[: len(found)] = 1
    return rows, weights


def _count(head: Head, batch: Batch, counts: HeldOutCounts) -> None:
    """Add the drafts from every row of a batch."""
    n_steps = len(counts.n_drafted)
    going = torch.ones_like(batch.scored)
    steps = head.steps(batch.features, batch.embedded, batch.texts, n_steps)
    for step, output in enumerate(steps):
        drafted = going & batch.scored & (batch.before >= step)
        accepted = drafted & (head.logits(output).argmax(-1) == batch.best[..., 0])
        counts.n_drafted[step] += int(drafted.sum())
        counts.n_accepted[step] += int(accepted.sum())
        going = torch.cat([torch.zeros_like(accepted[:, :1]), accepted[:, :-1]], 1)


def bfloat16_is_faster(device: str) -> bool:
    """Whether bfloat16 is faster than float32 here; without hardware support it is a hundred times
    slower."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)


def _product_seconds(dtype: torch.dtype) -> float:
    """Return the shortest of five times of a small matrix product."""
    a = torch.ones(256, 512, dtype=dtype)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        a @ a.T
        times.append(time.perf_counter() - start)
    return min(times)
