"""The folder of training data: files of texts that the model writes, and a description of them.

Several texts are generated in one batch, and each token is evaluated once. The contents of a file
depend on its number only, so an interrupted run continues where it stopped, and equal commands
write equal data.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.passes import Pass, Rows
from ..runtime.sampling import SEED_MAX, Sampler, SamplingParams
from ..util import records
from ..util.closable import Closing
from ..util.files import UNFINISHED, locked
from ..util.sizes import size_text
from .prompts import PromptSource
from .shards import F16_MAX, N_BEST, Shard

DESCRIPTION = "data.json"
N_TEXTS = 32  # per file
N_PROMPT = 384  # most tokens of a prompt
N_ANSWER = 256  # most tokens of an answer
TEMPERATURE = 0.7
GREEDY_PART = 3  # one text in this many is greedy, since drafts are often used with greedy decoding
SPACE_MARGIN = 1.05  # required disk space over the size of the data

OnTokens = Callable[[int], None]  # receives the number of tokens of each pass


@dataclass(frozen=True, slots=True)
class DataDescription:
    """The settings that determine the data in a folder.

    model: file name. blocks: whose input states are the features. digest: of the prompts.
    n_texts: texts per file. n_prompt, n_answer: most tokens of each.
    """

    FORMAT: ClassVar[int] = 1

    model: str
    fingerprint: str
    blocks: tuple[int, ...]
    n_embd: int
    prompts: str
    digest: str
    seed: int
    n_texts: int = N_TEXTS
    n_prompt: int = N_PROMPT
    n_answer: int = N_ANSWER

    @property
    def shard_tokens(self) -> int:
        """Most tokens of a file."""
        return self.n_texts * (self.n_prompt + self.n_answer)

    @property
    def token_bytes(self) -> int:
        """Bytes per token on disk."""
        return 2 * len(self.blocks) * self.n_embd + 4 + N_BEST * (4 + 2)


class TrainingData:
    """A folder of shards. Shard 0 is held out, the others are for training.

    Raises ArgumentError for a folder with other contents, such as another model's data.
    """

    def __init__(self, folder: Path, description: DataDescription) -> None:
        self.folder, self.description = folder, description
        path = folder / DESCRIPTION
        if path.exists():
            found = records.load(path, DataDescription, what="description of training data")
            if replace(found, model=description.model) != description:  # files may be renamed
                raise ArgumentError(f"{folder} holds data {_difference(found, description)}")
        elif folder.exists() and _has_files(folder):
            raise ArgumentError(
                f"{folder} has other files in it; give an empty or a new folder for the data"
            )

    @property
    def held_out_path(self) -> Path:
        return self._path(0)

    def shard_paths(self) -> list[Path]:
        """Return the existing shards for training."""
        paths: list[Path] = []
        while (path := self._path(1 + len(paths))).exists():
            paths.append(path)
        return paths

    @property
    def is_usable(self) -> bool:
        """Whether there is a held-out shard and one to train on."""
        return self.held_out_path.exists() and bool(self.shard_paths())

    @property
    def n_tokens(self) -> int:
        """Tokens in all shards."""
        paths = [path for path in (self.held_out_path, *self.shard_paths()) if path.exists()]
        return sum(map(Shard.count_tokens, paths))

    def require_space(self, n_tokens: int) -> None:
        """Raise ArgumentError if the disk has no space for n_tokens in all."""
        needed = int((n_tokens - self.n_tokens) * self.description.token_bytes * SPACE_MARGIN)
        free = shutil.disk_usage(_existing(self.folder)).free
        if needed > free:
            raise ArgumentError(
                f"data of {n_tokens} tokens need {needed >> 20} MiB more, but only {free >> 20} "
                f"MiB are free at {self.folder}; give fewer tokens or a folder on another disk"
            )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create the folder if it does not exist, and lock it.

        Raises ArgumentError if another process uses it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / DESCRIPTION
        if not path.exists():
            records.save(path, self.description)
        with locked(path, "give another folder for the data"):
            yield

    def describe_size(self, n_tokens: int) -> str:
        """Return a sentence on the disk space that n_tokens take."""
        size, million = (size_text(n * self.description.token_bytes) for n in (n_tokens, 10**6))
        return f"{self.folder}: {n_tokens} tokens take up to {size}, each million {million}"

    def write_next(
        self, context: Context, prompts: PromptSource, on_tokens: OnTokens = lambda _n: None
    ) -> Path:
        """Generate the first missing shard, in a context whose sequences are empty."""
        number = 0 if not self.held_out_path.exists() else 1 + len(self.shard_paths())
        requests = list(islice(self._requests(context, prompts, number), self.description.n_texts))
        path = self._path(number)
        generate_texts(context, self.description.blocks, requests, on_tokens).save(path)
        return path

    def _requests(
        self, context: Context, prompts: PromptSource, number: int
    ) -> Iterator[TextRequest]:
        settings, held_out = self.description, number == 0
        seed = settings.seed * 1_000_003 + number
        drawn = prompts.tokens(context.model, seed, held_out=held_out)
        for i, tokens in enumerate(drawn):
            prompt = tuple(tokens[-settings.n_prompt :])
            greedy = held_out or i % GREEDY_PART == 0
            own_seed = (seed * settings.n_texts + i) % SEED_MAX
            sampling = SamplingParams(0.0 if greedy else TEMPERATURE, seed=own_seed)
            yield TextRequest(prompt, sampling, len(prompt) + settings.n_answer)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05}.npz"


def _difference(found: DataDescription, required: DataDescription) -> str:
    """Return how the data found differ from those required, for an error message."""
    if found.fingerprint != required.fingerprint:
        return (
            f"of another model, {found.model}; give another folder for {required.model}, or remove "
            "this one"
        )
    if replace(found, model=required.model, digest=required.digest) == required:
        return (
            f"of an earlier version of the {found.prompts}; give another folder, or remove this one"
        )
    blocks = ", ".join(map(str, found.blocks))
    return (
        f"of other prompts or settings ({found.prompts}, blocks {blocks}, seed {found.seed}); give "
        "these settings or another folder, or remove this one"
    )


def _has_files(folder: Path) -> bool:
    return any(not each.name.startswith(UNFINISHED) for each in folder.iterdir())


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


#
# generating the texts
#


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt and how to continue it. n_max: most tokens of prompt and answer together."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    n_max: int


def generate_texts(
    context: Context,
    blocks: Sequence[int],
    requests: Iterable[TextRequest],
    on_tokens: OnTokens = lambda _n: None,
) -> Shard:
    """Generate an answer to every request, in the sequences of an empty context.

    blocks: whose input states become the features.
    """
    waiting, free = (
        deque(requests),
        list(range(min(context.n_seq_max, context.abilities.pass_width))),
    )
    running: list[_RunningText] = []
    finished: dict[int, Shard] = {}
    n_started = 0
    with ExitStack() as stack:
        while waiting or running:
            while waiting and free:
                text = _RunningText(context, free.pop(), n_started, waiting.popleft())
                n_started += 1
                running.append(stack.enter_context(text))
                text.read_prompt(blocks)
                on_tokens(len(text.request.prompt))
            going = [text for text in running if not text.ended]
            if going:
                _step(context, going, blocks)
                on_tokens(len(going))
            for text in running:
                if text.ended:
                    finished[text.number] = text.shard()
                    free.append(text.seq_id)
                    text.close()
            running = [text for text in running if not text.ended]
    return Shard.concatenate([finished[i] for i in range(n_started)])


def _step(context: Context, texts: Sequence[_RunningText], blocks: Sequence[int]) -> None:
    """Add one token to each text, in one pass."""
    rows = Rows.joined(Rows.of(t.seq_id, len(t.tokens), [t.next]) for t in texts)
    decoded = context.run(rows, Pass(leave=tuple(blocks)))
    assert decoded.hidden is not None
    best, probs = top_tokens(decoded.logits)
    for i, text in enumerate(texts):
        text.add([text.next], decoded.hidden.numpy()[i : i + 1], best[i : i + 1], probs[i : i + 1])
        text.choose(i)


def top_tokens(logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """Return the likeliest tokens of each row, likeliest first, and their probabilities.

    logits: float32 [n, n_vocab]. Returns int32 and float16 [n, N_BEST]; a vocabulary of fewer
    tokens is padded with 0.
    """
    n = min(N_BEST, logits.shape[1])
    best = np.argpartition(logits, -n, axis=1)[:, -n:]
    values = np.take_along_axis(logits, best, 1)
    order = np.lexsort((best, -values))  # ties go to the lowest id, as in greedy decoding
    best, values = np.take_along_axis(best, order, 1), np.take_along_axis(values, order, 1)
    top = values[:, :1]
    probs = np.exp(values - top) / np.exp(logits - top).sum(1, keepdims=True)
    missing = ((0, 0), (0, N_BEST - n))
    return np.pad(best.astype(np.int32), missing), np.pad(probs.astype(np.float16), missing)


@dataclass(eq=False)
class _RunningText(Closing):
    """A text that is being generated. tokens: evaluated so far. next: the token after them."""

    context: Context
    seq_id: int
    number: int
    request: TextRequest
    tokens: list[int] = field(default_factory=list)
    next: int = -1
    ended: bool = False

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.context.model, self.request.sampling)
        self._kept: list[tuple[NDArray[np.float16], NDArray[np.int32], NDArray[np.float16]]] = []

    def close(self) -> None:
        self._sampler.close()
        self.context.sequence(self.seq_id).drop()

    def read_prompt(self, blocks: Sequence[int]) -> None:
        prompt, n = self.request.prompt, self.context.n_batch
        for at in range(0, len(prompt), n):
            part = prompt[at : at + n]
            rows = Rows.of(self.seq_id, at, part)
            decoded = self.context.run(rows, Pass(leave=tuple(blocks)))
            assert decoded.hidden is not None
            best, probs = top_tokens(decoded.logits)
            self.add(part, decoded.hidden.numpy(), best, probs)
        self._sampler.begin(prompt)
        self.choose(len(part) - 1)

    def add(
        self,
        tokens: Sequence[int],
        states: NDArray[np.float32],
        best: NDArray[np.int32],
        probs: NDArray[np.float16],
    ) -> None:
        self.tokens += tokens
        self._kept.append((states.clip(-F16_MAX, F16_MAX).astype(np.float16), best, probs))

    def choose(self, row: int) -> None:
        """Sample the next token from a row of the last pass."""
        self.next = self._sampler.sample(self.context, row)
        ends = self.context.model.is_eog(self.next)
        self.ended = ends or len(self.tokens) >= self.request.n_max

    def shard(self) -> Shard:
        features, best, probs = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
        return Shard(
            np.array(self.tokens, np.int32),
            np.array([len(self.tokens)], np.int32),
            np.array([len(self.request.prompt)], np.int32),
            features,
            best,
            probs,
        )
