"""Searches: which mask makes generation fastest. One file each, named as users call it.

A search is a module here with a class ``Search``, made from a `Setting`. The command line and the
conformance tests find it by listing this folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...masks.score import Score
from ...masks.space import SHARE, Space
from ...runtime.context import Context
from ...util import by_name


@dataclass(frozen=True, slots=True)
class Trial:
    """A mask that was tried. value: the higher, the better; score: None where only the speed was
    measured."""

    mask: LayerMask
    value: float
    score: Score | None = None


class Search(Protocol):
    """Life cycle: ``ask`` and ``tell`` in turn; the same mask is never worth telling twice."""

    def ask(self) -> LayerMask | None:
        """The next mask to try; None when there is nothing left to try."""

    def tell(self, trial: Trial) -> None:
        """What the mask asked for last is worth."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a search is made from.

    space: the units that masks are made of.
    share: of the units, skipped at most.
    start: masks known to be good, tried first.
    seed: of everything random.
    context, chunk: for searches that look at hidden states, text, and a context whose last
        sequence is free while `ask` runs, with room for the text.
    storage: where a search may keep a study of its own, as a URL; None for nowhere.
    """

    space: Space
    share: float = SHARE
    start: tuple[LayerMask, ...] = ()
    seed: int = 0
    context: Context | None = None
    chunk: tuple[int, ...] = ()
    storage: str | None = None

    @property
    def n_max(self) -> int:
        return self.space.count(self.share)


class SearchFactory(Protocol):
    def __call__(self, setting: Setting) -> Search: ...


class Judge(Protocol):
    """Says what a mask is worth."""

    def __call__(self, mask: LayerMask) -> Trial: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Trials, or minutes, or whichever is used up first. At least one of them is given."""

    trials: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.trials is None and self.minutes is None:
            raise ArgumentError("a search needs a budget: trials or minutes")
        if self.trials is not None and self.trials < 1:
            raise ArgumentError(f"a search makes 1 trial or more, got {self.trials}")
        if self.minutes is not None and not self.minutes > 0:
            raise ArgumentError(f"a search takes more than 0 minutes, got {self.minutes:g}")


def names() -> tuple[str, ...]:
    """Names of all searches, as the command line spells them."""
    return by_name.names(__path__)


def load(name: str) -> SearchFactory:
    """The ``Search`` class of a file. Raises ArgumentError for a name that is no file here."""
    factory: SearchFactory = by_name.load(__name__, "search", name).Search
    return factory


def run(search: Search, judge: Judge, budget: Budget) -> Iterator[Trial]:
    """Trials as they are made. A mask asked for again is not judged again, and counts."""
    known: dict[LayerMask, Trial] = {}
    deadline = None if budget.minutes is None else time.monotonic() + 60 * budget.minutes
    n = 0
    while (budget.trials is None or n < budget.trials) and (
        deadline is None or time.monotonic() < deadline
    ):
        mask = search.ask()
        if mask is None:
            return
        if mask not in known:
            known[mask] = judge(mask)
        search.tell(known[mask])
        n += 1
        yield known[mask]


def best_of(trials: Sequence[Trial]) -> Trial:
    """The first of the best."""
    return max(trials, key=lambda trial: trial.value)
