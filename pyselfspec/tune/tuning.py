"""From a model to a head for it: data, training, a file. Every stage goes on where an earlier run
was cut off."""

from __future__ import annotations

import datetime
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import __version__
from ..errors import ArgumentError, UnsupportedError
from ..gguf import heads
from ..runtime.context import N_CTX_UNIT
from ..runtime.model import Model
from ..util import paths
from ..util.files import replacing
from . import asking, export
from .asking import Prompts
from .batches import Batch, Packer
from .card import Card
from .data import About, Data
from .known import Known
from .shards import Rows, Shard
from .training import Counts, Training, half_pays
from .wanted import Wanted

STATE, HEAD = "training.pt", "head.gguf"  # in the folder of the data
N_SIDE = 16  # texts that are written side by side
WRITING_SHARE = 0.5  # of the time, for the data
N_POSITIONS = 4  # of drafts on held-out text
EVERY = 50  # batches between looks at it
SAVED_S = 60.0  # seconds between checkpoints
N_TOGETHER = 4  # shards whose texts are mixed


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. folder: has all that was done so far, which the next run takes up."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"stopped; {folder} has what was done so far")
        self.folder = folder


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done and how much of it is, 0 to 1; news: something worth a line."""

    doing: str
    share: float
    news: str | None = None


Follow = Callable[[Progress], None]


def ignore(_progress: Progress) -> None:
    """For those who do not want to know."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A head's file, what its card says, and prompts to try it on that it has not learned from."""

    path: Path
    card: Card
    held_out: tuple[tuple[int, ...], ...]


def tune(
    model: Model, wanted: Wanted, *, context: dict[str, Any], follow: Follow = ignore
) -> Tuned:
    """Train a head for a model and write its file.

    context: options of Context, for the passes over the model's texts.

    Raises UnsupportedError for a model that cannot have a head, ArgumentError for settings that do
    not go together or a folder of other data, OSError where something cannot be written,
    Interrupted for Ctrl-C.
    """
    clock = _Clock(time.monotonic(), 60 * wanted.minutes)
    device = _device(wanted.device)
    _require_suitable(model, context)
    known = Known.of(model.path)
    prompts = asking.bundled() if wanted.prompts is None else asking.read(wanted.prompts)
    data = Data(folder_of(model, wanted), _about(model, wanted, prompts))
    out = data.folder / HEAD if wanted.out is None else wanted.out
    if wanted.out is not None:
        export.require_out(out)
    n_tokens = max(2 * data.about.shard_tokens, wanted.n_tokens or 0)  # to learn from, and held out
    data.require_room(n_tokens)
    follow(Progress("writing text", 0.0, data.size_of(n_tokens)))
    if context.get("n_threads") is not None:
        torch.set_num_threads(context["n_threads"])
    with data.open():
        try:
            _write_data(model, data, prompts, wanted, context, clock, follow)
            learned = _Learning(known, data, wanted, device)
            learned.go_on(clock.for_training(), follow)
        except KeyboardInterrupt:
            raise Interrupted(data.folder) from None
        card = learned.card(model)
        head, own = learned.training.average, learned.own
        export.write(out, head, own, known.source, data.about.blocks, card, wanted.type_name)
    shard = Shard.load(data.held_out)
    return Tuned(out, card, tuple(shard.prompts_of()))


def install(model: Model, head: Path) -> Path:
    """Put a head where ``generate`` finds it by itself, and say where. Raises OSError where it
    cannot be put."""
    path = heads.tuned_path(model.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        shutil.copyfile(head, unfinished)
    return path


def folder_of(model: Model, wanted: Wanted) -> Path:
    """Of the data, in the user's cache unless given."""
    return wanted.folder or paths.cache("tune") / model.fingerprint[:32]


def _about(model: Model, wanted: Wanted, prompts: Prompts) -> About:
    given = {"n_texts": wanted.n_texts, "n_answer": wanted.n_answer}
    blocks = default_blocks(model) if wanted.blocks is None else wanted.blocks
    if len(blocks) != heads.N_BLOCKS_READ or sorted(set(blocks)) != list(blocks):
        raise ArgumentError(
            f"a head reads {heads.N_BLOCKS_READ} different blocks in rising order, got {blocks}"
        )
    if not all(1 <= block <= model.n_layer for block in blocks):
        raise ArgumentError(f"blocks are 1 to {model.n_layer} here, got {blocks}")
    return About(
        model=model.path.name,
        fingerprint=model.fingerprint,
        blocks=tuple(blocks),
        n_embd=model.n_embd,
        prompts=prompts.name,
        digest=prompts.digest,
        seed=wanted.seed,
        **{name: value for name, value in given.items() if value is not None},
    )


def default_blocks(model: Model) -> tuple[int, ...]:
    """An early one, one in the middle, and the last. llama.cpp itself would read what leaves the
    last block, too, but finds it in a few architectures only."""
    n = model.n_layer
    if n <= heads.N_BLOCKS_READ:
        raise UnsupportedError(
            f"{model.path.name} has {n} blocks; a head reads the states entering three of them, "
            "the first one not counted"
        )
    early = 2 if n > 4 else 1
    return early, max(n // 2, early + 1), n - 1


def _device(name: str) -> str:
    if name == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("torch finds no CUDA device: train on the CPU, or install torch for it")
    return name


@dataclass(frozen=True, slots=True)
class _Clock:
    start: float
    seconds: float

    @property
    def share(self) -> float:
        """Of the time that has passed."""
        return min(1.0, (time.monotonic() - self.start) / self.seconds)

    def for_training(self) -> _Clock:
        """What is left, and no less than training's own share."""
        now = time.monotonic()
        left = self.seconds - (now - self.start)
        return _Clock(now, max(left, self.seconds * (1 - WRITING_SHARE)))


#
# data
#


def _write_data(
    model: Model,
    data: Data,
    prompts: Prompts,
    wanted: Wanted,
    options: dict[str, Any],
    clock: _Clock,
    follow: Follow,
) -> None:
    """Up to the tokens that are wanted, or for its share of the time; a shard for each purpose at
    least."""
    model.require_tokenizer("tuning needs one to write text")
    n_text = data.about.n_prompt + data.about.n_answer
    with model.context(
        n_ctx=N_SIDE * n_text, n_batch=2 * N_SIDE, n_seq_max=N_SIDE, **options
    ) as context:
        while not (data.held_out.exists() and data.shards()) or not _has_enough(
            data, wanted, clock
        ):
            data.require_room(data.n_tokens + data.about.shard_tokens)
            seen = data.n_tokens

            def progress(n: int) -> None:
                nonlocal seen
                seen += n
                follow(Progress("writing text", _written_share(seen, wanted, clock)))

            data.write_next(context, prompts, progress)


def _has_enough(data: Data, wanted: Wanted, clock: _Clock) -> bool:
    return _written_share(data.n_tokens, wanted, clock) >= 1


def _written_share(n_tokens: int, wanted: Wanted, clock: _Clock) -> float:
    if wanted.n_tokens is not None:
        return min(1.0, n_tokens / max(1, wanted.n_tokens))
    return min(1.0, clock.share / WRITING_SHARE)


def _require_suitable(model: Model, options: dict[str, Any]) -> None:
    architecture = model.file.architecture
    with model.context(n_ctx=N_CTX_UNIT, **options) as context:
        if not context.has_memory:
            raise UnsupportedError(
                f"architecture {architecture}: keeps no K/V cache and writes no text, so there is "
                "nothing to draft"
            )
        if not context.can_rollback:
            raise UnsupportedError(
                f"architecture {architecture}: its memory cannot take tokens back, so it cannot "
                "use a draft head"
            )


#
# training
#


class _Learning:
    """Training on the shards of a folder, from where its checkpoint is."""

    def __init__(self, known: Known, data: Data, wanted: Wanted, device: str) -> None:
        self._data, self._wanted, self._device = data, wanted, device
        self._settings = {
            "n_own": wanted.n_own, "n_lines": wanted.n_lines, "n_rows": wanted.n_rows,
            **asdict(wanted.training),
        }  # fmt: skip
        self._path = data.folder / STATE
        self._seconds = 0.0
        n_vocab = known.source.file.n_vocab
        state = self._load()
        if state is None:
            first = [Shard.load(path) for path in data.shards()]
            self.own = own_tokens(first, min(wanted.n_own, n_vocab), n_vocab)
            scale = feature_scale(first[0], data.about.n_embd)
        else:
            self.own, scale = state["own"].numpy(), state["scale"].numpy()
        torch.manual_seed(wanted.seed)
        head = known.head(known.shape(len(self.own)), self.own, scale).to(device)
        half = half_pays(device) if wanted.half is None else wanted.half
        self.training = Training(head, wanted.training, half=half)
        if state is not None:
            self.training.restore(state["training"])
            self._seconds = state["seconds"]
        size = {"n_lines": wanted.n_lines, "n_rows": wanted.n_rows}
        self._packer = Packer(self.own, n_vocab, known.embedded, device=device, **size)
        self._held_out = self._look_at_held_out()
        self.counts: Counts | None = None

    def _look_at_held_out(self) -> list[Batch]:
        texts = Shard.load(self._data.held_out).texts()
        found = list(self._packer.batches(texts))
        if not found:  # few and short texts: the same again
            n = self._wanted.n_lines * self._wanted.n_rows
            found = list(self._packer.batches(texts * -(-n // max(1, sum(map(len, texts))))))
        return found

    def go_on(self, clock: _Clock, follow: Follow) -> None:
        """Until the time is over."""
        begin = saved = time.monotonic()
        before = self._seconds
        training, n_batches = self.training, self._wanted.n_batches

        def share() -> float:
            return clock.share if n_batches is None else min(1.0, training.n_batches / n_batches)

        try:
            for batch in self._batches():
                if share() >= 1:
                    break
                training.learn(batch)
                self._seconds = before + time.monotonic() - begin
                news = self._news() if training.n_batches % EVERY == 0 else None
                follow(Progress("training", share(), news))
                if time.monotonic() - saved > SAVED_S:
                    self.save()
                    saved = time.monotonic()
        finally:
            self.save()
        follow(Progress("training", 1.0, self._news()))

    def _batches(self) -> Iterator[Batch]:
        """Without end: texts of a few shards mixed, then those of others. Texts that fill no batch
        are taken again."""
        while True:
            rng = np.random.default_rng((self._wanted.seed, self.training.n_batches))
            names = self._data.shards()
            for _ in range(0, len(names), N_TOGETHER):
                order = rng.permutation(len(names))[:N_TOGETHER]
                texts = [text for i in order for text in Shard.load(names[i]).texts()]
                yield from self._packer.batches(self._endless(texts, rng))

    def _endless(self, texts: Sequence[Rows], rng: np.random.Generator) -> Iterator[Rows]:
        """All of them, and again where they are too few for a batch."""
        n_wanted = self._wanted.n_lines * self._wanted.n_rows
        n = 0
        while n < n_wanted:
            for i in rng.permutation(len(texts)):
                yield texts[i]
                n += len(texts[i])

    def _news(self) -> str:
        self.counts = self.training.held_out(self._held_out, N_POSITIONS)
        by_position = " ".join(f"{each:.2f}" for each in self.counts.acceptance)
        return (
            f"{self.training.n_tokens / 1e6:.2f} million tokens seen; of drafts on held-out text "
            f"are right, by position: {by_position}"
        )

    def save(self) -> None:
        state = {
            "settings": self._settings,
            "own": torch.from_numpy(self.own),
            "scale": self.training.head.scale.cpu(),
            "seconds": self._seconds,
            "training": self.training.state(),
        }
        with replacing(self._path) as unfinished:
            torch.save(state, unfinished)

    def _load(self) -> dict[str, Any] | None:
        if not self._path.exists():
            return None
        fix = f"remove {self._path} to train anew on the same data"
        try:
            state: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise ArgumentError(f"the checkpoint is broken ({error}); {fix}") from None
        if state["settings"] != self._settings:
            raise ArgumentError(f"an earlier run trained with other settings; {fix}")
        return state

    def card(self, model: Model) -> Card:
        assert self.counts is not None
        return Card(
            model=paths.shown(model.path.name),
            fingerprint=model.fingerprint,
            blocks=self._data.about.blocks,
            data=self._data.about.prompts,
            n_written=self._data.n_tokens,
            n_seen=self.training.n_tokens,
            minutes=self._seconds / 60,
            acceptance=tuple(round(each, 4) for each in self.counts.acceptance),
            version=__version__,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )


def own_tokens(shards: Sequence[Shard], n: int, n_vocab: int) -> NDArray[np.int64]:
    """The n tokens that the model says most, by its probabilities, in order of their ids; where
    the data has fewer, the first ids beside them."""
    weights = np.zeros(n_vocab)
    for shard in shards:
        weights += np.bincount(shard.best.ravel(), shard.probs.astype(float).ravel(), n_vocab)
    return np.sort(np.argsort(-weights, kind="stable")[:n]).astype(np.int64)


def feature_scale(shard: Shard, n_embd: int) -> NDArray[np.float32]:
    """What brings the states of each block to values of about 1, by the usual state: those of the
    first token of a text are far larger."""
    states = shard.features.astype(np.float32).reshape(len(shard), -1, n_embd)
    sizes = np.sqrt(np.median((states**2).mean(-1), 0))
    return np.repeat(1 / np.maximum(sizes, 1e-6), n_embd).astype(np.float32)
