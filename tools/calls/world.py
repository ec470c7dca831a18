"""The open objects of a run of random calls, and its arguments: more often right than wrong.

Lies that no interface can find out, such as records of tokens that a sequence does not hold, are
not told.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pyselfspec import LayerMask, Model
from pyselfspec.runtime.context import Context
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.kv import KVSequence
from pyselfspec.runtime.sequence_snapshot import SavedSequence
from pyselfspec.util.closable import Closing

if TYPE_CHECKING:
    from tools.random_calls import Calls, Files

T = TypeVar("T")
WRONG = (-1, 0, 1, 7, 100_000, 2**31 - 1, -(2**31), 2**31, 2**32 + 1, 2**40)
MANY = 3  # objects of a kind that are open at once


class World(Closing):
    """The open objects of a run, the closed ones that calls may still name, and its choices."""

    def __init__(self, rng: random.Random, calls: Calls, files: Files) -> None:
        self.rng, self.calls, self.files = rng, calls, files
        self.models: list[Model] = []
        self.contexts: list[Context] = []
        self.heads: list[DraftHead] = []
        self.others: list[Any] = []  # samplers, embedding contexts, projectors
        self.saved: list[tuple[Context, SavedSequence]] = []
        self.checkpoints: list[tuple[KVSequence, Any]] = []
        self.fresh: dict[
            tuple[Any, ...], tuple[list[int], str | None]
        ] = {}  # texts of fresh contexts

    def close(self) -> None:
        for each in (*self.heads, *self.others, *self.contexts, *self.models):
            each.close()

    def make(self, what: str, call: Callable[[], T]) -> T | None:
        """Make a call; what: as it is shown."""
        made: T | None = self.calls.make(what, call)
        return made

    def often(self, p: float = 0.8) -> bool:
        return self.rng.random() < p

    def number(self, low: int, high: int) -> int:
        """Return a number in a range, or sometimes any other."""
        if low <= high and self.often(0.9):
            return self.rng.randint(low, high)
        return self.rng.choice(WRONG)

    def context(self) -> Context | None:
        """Return a context; in most cases an open one."""
        still = [each for each in self.contexts if not each.closed]
        pool = still if still and self.often(0.97) else self.contexts
        return self.rng.choice(pool) if pool else None

    def model(self) -> Model | None:
        """Return a model, seldom a closed one."""
        return self.rng.choice(self.models) if self.models else None

    def add(self, pool: list[Any], made: Any) -> None:
        """Keep what was made; the oldest one makes room, open or not."""
        if made is None:
            return
        pool.append(made)
        if len(pool) > MANY:
            self.make(f"close {type(pool[0]).__name__}", pool.pop(0).close)

    def tokens(self, model: Model, low: int = 1, high: int = 12) -> list[int]:
        """Return ids; with a wrong one among them now and then."""
        n = self.rng.randint(low, high)
        found = [self.rng.randrange(3, min(250, model.n_vocab)) for _ in range(n)]
        if found and not self.often(0.95):
            found[self.rng.randrange(n)] = self.rng.choice((*WRONG, model.n_vocab))
        return found

    def sequence(self, context: Context) -> KVSequence | None:
        """Return one of the context's sequences; None where the id was wrong."""
        i = self.number(0, context.n_seq_max - 1)
        return self.make(f"sequence({i})", lambda: context.sequence(i))

    def states(self, n: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return rows of states, sometimes of another shape or not numbers."""
        rng = np.random.default_rng(self.rng.randrange(1 << 30))
        if not self.often(0.9):
            n, width = (
                max(0, n + self.rng.choice((-1, 1))),
                max(1, width + self.rng.choice((-1, 1))),
            )
        found = rng.standard_normal((n, width), np.float32)
        if not self.often(0.97):
            found[:] = np.nan
        return found

    def mask(self, model: Model) -> LayerMask | None:
        """Return a mask, sometimes of a model with another number of blocks."""
        n = model.n_layer if self.often(0.95) else model.n_layer + 1
        blocks = [[il for il in range(n) if not self.often(0.7)] for _ in range(2)]
        return self.make(
            f"mask {n} {blocks}", lambda: LayerMask.skipping(n, attn=blocks[0], ffn=blocks[1])
        )

    def adapters(self, context: Context) -> Any:
        """Return adapters for a pass: mostly None; else of any model that was open."""
        if self.often(0.85) or not self.models:
            return None
        model = context.model if self.often(0.6) else self.rng.choice(self.models)
        return tuple((each, self.rng.choice((0.5, 1.0))) for each in model.adapters)
