"""From a model to a draft head for it. Every stage continues where an earlier run stopped."""

from __future__ import annotations

import datetime
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import ArgumentError, UnsupportedError
from ..gguf import heads
from ..runtime.context import Context
from ..runtime.context_options import N_CTX_UNIT
from ..runtime.model import Model
from ..runtime.sampling import GREEDY
from ..speculate.completion import Completion
from ..util import paths
from ..util.files import replacing
from ..util.progress import Interrupted, OnProgress, Progress, ignore_progress
from .config import TuneConfig
from .data import DataDescription, TrainingData
from .export import Card, require_head_target, write_head
from .prompts import PromptSource, bundled_prompts, read_prompts
from .shards import Shard
from .train import HeldOutCounts, Trainer, train
from .weights import BaseModelWeights

HEAD = "head.gguf"  # in the folder of the data
N_SEQUENCES = 16  # texts that are generated in one batch
DATA_SHARE = 0.5  # of the time
N_PREDICT = 96  # tokens of an answer whose speed is measured
N_PROMPTS = 12  # answers whose speed is measured
GAIN_MIN = 0.02  # a smaller speed-up is not worth the head's memory
WITHOUT_HEAD = "ngram"  # the drafter in use if there is no head


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """Medians over prompts. plain: tokens per second of plain decoding. ngram, ngram_head: speed
    over plain decoding, without and with the head."""

    plain: float
    ngram: float
    ngram_head: float

    @property
    def head_pays(self) -> bool:
        """Whether the head makes drafting faster by GAIN_MIN or more."""
        return self.ngram_head >= (1 + GAIN_MIN) * self.ngram


@dataclass(frozen=True, slots=True)
class TuneResult:
    """A head's file, its card and its speed. installed: where generate finds it, None if it was not
    installed."""

    path: Path
    card: Card
    speed: SpeedComparison
    installed: Path | None


def tune(
    model: Model,
    config: TuneConfig,
    *,
    context: dict[str, Any],
    progress: OnProgress = ignore_progress,
) -> TuneResult:
    """Train a head for a model, write its file, measure it and install it if it pays.

    context: options of Context for all passes of the model.

    Raises UnsupportedError for a model that cannot use a head, ArgumentError for invalid or
    contradictory settings and for a folder of other data, OSError for files that cannot be written,
    Interrupted for Ctrl-C while data is generated or the head is trained.
    """
    run = _Run(model, config, context, progress)
    run.require_possible()
    with run.data.open():
        try:
            run.generate_data()
            trainer, counts = run.train()
        except KeyboardInterrupt:
            raise Interrupted(run.data.folder) from None
        card = run.export(trainer, counts)
    speed = run.measure()
    installed = install(model, run.out) if config.out is None and speed.head_pays else None
    return TuneResult(run.out, card, speed, installed)


class _Run:
    """The stages of `tune`."""

    def __init__(
        self, model: Model, config: TuneConfig, context: dict[str, Any], progress: OnProgress
    ) -> None:
        self._model, self._config, self._options = model, config, context
        self._progress = progress
        self._clock = _Clock(time.monotonic(), 60 * config.minutes)
        _require_device(config.device)
        _require_suitable(model, context)
        self._weights = BaseModelWeights.open(model.path)
        self._prompts = (
            bundled_prompts() if config.prompts is None else read_prompts(config.prompts)
        )
        folder = config.folder or paths.cache("tune") / model.fingerprint[:32]
        self.data = TrainingData(folder, _describe_data(model, config, self._prompts))
        self.out = folder / HEAD if config.out is None else config.out

    def require_possible(self) -> None:
        """Raise ArgumentError if the head cannot be written or the data does not fit on disk."""
        if self._config.out is not None:
            require_head_target(self.out)
        n_tokens = max(2 * self.data.description.shard_tokens, self._config.n_tokens or 0)
        self.data.require_space(n_tokens)
        self._progress(Progress("generating text", 0, 1, self.data.describe_size(n_tokens)))

    def generate_data(self) -> None:
        """Write shards up to the configured size or time, but a held-out and a training shard."""
        self._model.require_tokenizer("tuning needs one to write text")
        data, n_seen = self.data, self.data.n_tokens
        n_text = data.description.n_prompt + data.description.n_answer

        def share() -> float:
            if self._config.n_tokens is not None:
                return min(1.0, n_seen / max(1, self._config.n_tokens))
            return min(1.0, self._clock.share / DATA_SHARE)

        def count(n_tokens: int) -> None:
            nonlocal n_seen
            n_seen += n_tokens
            self._progress(Progress("generating text", share(), 1))

        with self._model.context(
            n_ctx=N_SEQUENCES * n_text,
            n_batch=2 * N_SEQUENCES,
            n_seq_max=N_SEQUENCES,
            **self._options,
        ) as context:
            while not data.is_usable or share() < 1:
                data.require_space(data.n_tokens + data.description.shard_tokens)
                data.write_next(context, self._prompts, count)
                n_seen = data.n_tokens

    def train(self) -> tuple[Trainer, HeldOutCounts]:
        """Train for the time that is left, at least for the share that is not for data."""
        if self._options.get("n_threads") is not None:
            torch.set_num_threads(self._options["n_threads"])
        clock = self._clock.for_training()

        def progress(share: float, message: str | None) -> None:
            self._progress(Progress("training", share, 1, message))

        return train(self._weights, self.data, self._config, lambda: clock.share, progress)

    def export(self, trainer: Trainer, counts: HeldOutCounts) -> Card:
        """Write the head's file and return its card."""
        card = Card(
            model=paths.shown(self._model.path.name),
            fingerprint=self._model.fingerprint,
            blocks=self.data.description.blocks,
            data=self.data.description.prompts,
            n_data=self.data.n_tokens,
            n_trained=trainer.n_tokens,
            minutes=trainer.seconds / 60,
            acceptance=tuple(round(rate, 4) for rate in counts.acceptance),
            version=__version__,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
        type_name = self._config.type_name
        write_head(self.out, trainer.average, self._weights.source, card.blocks, card, type_name)
        return card

    def measure(self) -> SpeedComparison:
        """Measure the head on held-out prompts."""
        prompts = Shard.load(self.data.held_out_path).prompt_tokens()[:N_PROMPTS]

        def progress(share: float) -> None:
            self._progress(Progress("measuring", share, 1))

        return compare_speed(
            self._model, self.out, prompts, context=self._options, progress=progress
        )


@dataclass(frozen=True, slots=True)
class _Clock:
    """Time limit: `seconds` from `start`, in time.monotonic()."""

    start: float
    seconds: float

    @property
    def share(self) -> float:
        """Share of the time that has passed, 0 to 1."""
        return min(1.0, (time.monotonic() - self.start) / self.seconds)

    def for_training(self) -> _Clock:
        """Return a clock from now for the time left, at least for 1 - DATA_SHARE of all of it."""
        now = time.monotonic()
        left = self.seconds - (now - self.start)
        return _Clock(now, max(left, self.seconds * (1 - DATA_SHARE)))


#
# checks and settings
#


def _describe_data(model: Model, config: TuneConfig, prompts: PromptSource) -> DataDescription:
    sizes = {"n_texts": config.n_texts, "n_answer": config.n_answer}
    blocks = default_blocks(model) if config.blocks is None else config.blocks
    if len(blocks) != heads.N_BLOCKS_READ or sorted(set(blocks)) != list(blocks):
        raise ArgumentError(
            f"a head reads {heads.N_BLOCKS_READ} different blocks in rising order, got {blocks}"
        )
    if not all(1 <= block <= model.n_layer for block in blocks):
        raise ArgumentError(f"blocks of this model are 1 to {model.n_layer}, got {blocks}")
    return DataDescription(
        model=model.path.name,
        fingerprint=model.fingerprint,
        blocks=tuple(blocks),
        n_embd=model.n_embd,
        prompts=prompts.name,
        digest=prompts.digest,
        seed=config.seed,
        **{name: value for name, value in sizes.items() if value is not None},
    )


def default_blocks(model: Model) -> tuple[int, ...]:
    """Return an early block, one in the middle and the last. Not the output of the last block:
    llama.cpp can read it in a few architectures only."""
    n = model.n_layer
    if n <= heads.N_BLOCKS_READ:
        raise UnsupportedError(
            f"{model.path.name} has {n} blocks; a head reads the input states of three blocks "
            "other than the first"
        )
    early = 2 if n > 4 else 1
    return early, max(n // 2, early + 1), n - 1


def _require_device(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(
            'torch finds no CUDA device; train with device="cpu" (--device cpu), or install torch '
            "with CUDA"
        )


def _require_suitable(model: Model, options: dict[str, Any]) -> None:
    architecture = model.file.architecture
    with model.context(n_ctx=N_CTX_UNIT, **options) as context:
        if not context.abilities.has_memory:
            raise UnsupportedError(
                f"architecture {architecture}: keeps no K/V cache and writes no text, so there is "
                "nothing to draft"
            )
        if not context.abilities.can_rollback:
            raise UnsupportedError(
                f"architecture {architecture}: its memory cannot take tokens back, so it cannot "
                "use a draft head"
            )


#
# the result
#


def install(model: Model, head: Path) -> Path:
    """Copy a head to where ``generate`` finds it and return that path. Raises OSError."""
    path = heads.tuned_path(model.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        shutil.copyfile(head, unfinished)
    return path


def compare_speed(
    model: Model,
    head: Path,
    prompts: Sequence[Sequence[int]],
    *,
    context: dict[str, Any],
    progress: Callable[[float], None] = lambda share: None,
) -> SpeedComparison:
    """Measure answers to the prompts plainly, with n-gram drafts, and with the head too, in turns.

    Each variant has its own context: in a shared one, n-gram drafts would copy earlier answers. The
    first prompt is a warm-up. Raises ArgumentError for fewer than two prompts.
    """
    if len(prompts) < 2:
        raise ArgumentError(f"measuring speed takes two prompts or more, got {len(prompts)}")
    variants = (None, WITHOUT_HEAD, f"{WITHOUT_HEAD}+head:{head}")
    speeds: dict[str | None, list[float]] = {variant: [] for variant in variants}
    n_ctx = max(map(len, prompts)) + N_PREDICT + 64
    with ExitStack() as stack:
        contexts = {
            variant: stack.enter_context(model.context(n_ctx=n_ctx, **context))
            for variant in variants
        }
        for i, prompt in enumerate(prompts):
            for variant in variants:
                speed = _tokens_per_second(contexts[variant], prompt, variant)
                if i:
                    speeds[variant].append(speed)
            progress((i + 1) / len(prompts))
    plain = speeds[None]
    ratios = (
        statistics.median(a / b for a, b in zip(speeds[variant], plain, strict=True))
        for variant in variants[1:]
    )
    return SpeedComparison(statistics.median(plain), *ratios)


def _tokens_per_second(context: Context, prompt: Sequence[int], draft: str | None) -> float:
    """Generate an answer and return its speed, without the time for the prompt."""
    context.sequence().drop()
    completion = Completion(context, prompt, draft=draft, sampling=GREEDY, n_predict=N_PREDICT)
    for _piece in completion:
        pass
    stats = completion.stats
    return 1e6 * len(completion.tokens) / max(1, stats.total_us - stats.prefill_us)
