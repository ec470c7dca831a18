"""The folder of what a head learns from: shards, and a file that says what they are of.

Every shard is made by itself from its number, so that an interrupted run goes on where it was, and
the same command makes the same data again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.sampling import SEED_MAX, SamplingParams
from ..util import records
from ..util.files import UNFINISHED, locked
from ..util.sizes import size_text
from . import writing
from .asking import Prompts
from .shards import N_BEST, Shard
from .writing import Asked, Progress

MANIFEST = "data.json"
N_TEXTS = 32  # of a shard
N_PROMPT = 384  # tokens at most
N_ANSWER = 256
TEMPERATURE = 0.7
GREEDY_PART = 3  # one text in so many is greedy, as many answers are
ROOM = 1.05  # what is asked of the disk, of what is needed


@dataclass(frozen=True, slots=True)
class About:
    """What the shards of a folder are of. n_texts, n_prompt, n_answer: of a shard, of a text."""

    FORMAT: ClassVar[int] = 1

    model: str
    fingerprint: str
    blocks: tuple[int, ...]
    n_embd: int
    prompts: str
    digest: str  # of the prompts
    seed: int
    n_texts: int = N_TEXTS
    n_prompt: int = N_PROMPT
    n_answer: int = N_ANSWER

    @property
    def shard_tokens(self) -> int:
        """At most."""
        return self.n_texts * (self.n_prompt + self.n_answer)

    @property
    def token_bytes(self) -> int:
        """What a token takes on the disk."""
        return 2 * len(self.blocks) * self.n_embd + 4 + N_BEST * (4 + 2)


class Data:
    """A folder of shards, made where it is not there yet.

    Raises ArgumentError for a folder with something else in it, such as another model's data.
    """

    def __init__(self, folder: Path, about: About) -> None:
        self.folder, self.about = folder, about
        manifest = folder / MANIFEST
        if manifest.exists():
            there = records.load(manifest, About, what="description of data for tuning")
            if replace(there, model=about.model) != about:  # files may be renamed
                raise ArgumentError(f"{folder} holds data {_difference(there, about)}")
        elif folder.exists() and _has_files(folder):
            raise ArgumentError(
                f"{folder} has other files in it: give an empty or a new folder for the data"
            )

    @property
    def held_out(self) -> Path:
        return self._path(0)

    def shards(self) -> list[Path]:
        """Those for training that are there."""
        there: list[Path] = []
        while (path := self._path(1 + len(there))).exists():
            there.append(path)
        return there

    @property
    def n_tokens(self) -> int:
        """In all shards."""
        there = [path for path in (self.held_out, *self.shards()) if path.exists()]
        return sum(Shard.n_tokens_of(path) for path in there)

    def require_room(self, n_tokens: int) -> None:
        """Raise ArgumentError where the disk has no room for so many tokens in all."""
        needed = int((n_tokens - self.n_tokens) * self.about.token_bytes * ROOM)
        free = shutil.disk_usage(_existing(self.folder)).free
        if needed > free:
            raise ArgumentError(
                f"data of {n_tokens} tokens need {needed >> 20} MiB more, but only {free >> 20} "
                f"MiB are free at {self.folder}; give fewer tokens or a folder on another disk"
            )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the folder where it is not there yet, and keep other processes from it.

        Raises ArgumentError where another one is at work there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = self.folder / MANIFEST
        if not manifest.exists():
            records.save(manifest, self.about)
        with locked(manifest, "give another folder for the data"):
            yield

    def size_of(self, n_tokens: int) -> str:
        """What so many tokens take, for whoever waits."""
        size, million = (size_text(n * self.about.token_bytes) for n in (n_tokens, 10**6))
        return f"{self.folder}: data of {n_tokens} tokens take up to {size}, each million {million}"

    def write_next(
        self, context: Context, prompts: Prompts, progress: Progress = writing.ignore
    ) -> Path:
        """Write the first shard that is missing."""
        number = 0 if not self.held_out.exists() else 1 + len(self.shards())
        asked = list(islice(self._asked(context, prompts, number), self.about.n_texts))
        path = self._path(number)
        writing.write(context, self.about.blocks, asked, progress).save(path)
        return path

    def _asked(self, context: Context, prompts: Prompts, number: int) -> Iterator[Asked]:
        about, held_out = self.about, number == 0
        seed = about.seed * 1_000_003 + number
        drawn = prompts.tokens(context.model, seed, held_out=held_out)
        for i, tokens in enumerate(drawn):
            prompt = tuple(tokens[-about.n_prompt :])
            greedy = held_out or i % GREEDY_PART == 0
            own_seed = (seed * about.n_texts + i) % SEED_MAX
            sampling = SamplingParams(0.0 if greedy else TEMPERATURE, seed=own_seed)
            yield Asked(prompt, sampling, len(prompt) + about.n_answer)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05}.npz"


def _difference(there: About, asked: About) -> str:
    """What an error says of data that were not asked for."""
    if there.fingerprint != asked.fingerprint:
        return (
            f"of another model, {there.model}; give another folder for those of {asked.model}, or "
            "remove it"
        )
    if replace(there, model=asked.model, digest=asked.digest) == asked:
        return (
            f"of the {there.prompts} as they were then, which have changed since; give another "
            "folder, or remove it"
        )
    return (
        f"of other prompts or settings ({there.prompts}, blocks {_words(there.blocks)}, seed "
        f"{there.seed}); ask for the same, give another folder, or remove it"
    )


def _words(blocks: tuple[int, ...]) -> str:
    return ", ".join(map(str, blocks))


def _has_files(folder: Path) -> bool:
    return any(not each.name.startswith(UNFINISHED) for each in folder.iterdir())


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
