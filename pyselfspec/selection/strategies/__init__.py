"""Strategies: which masks to try next, given what is known of others. One file each, named as users
call it.

A strategy is a module here with a function ``make`` that takes a `Setting`, and the options, where
the module has ``Options``, a frozen dataclass. All here are generators, see `from_rounds`. A module
says ``ENDLESS = True`` where there is always another mask to try. The command line and the
conformance tests find it by listing this folder.

Strategies know masks and their scores, so they can be tested without a model; only clasp looks at
hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...masks.space import SHARE, Space
from ...util import by_name
from ..rounds import Round, Scored
from ._prune import Prune as Prune  # for greedy and anti

if TYPE_CHECKING:
    from ...runtime.context import Context

P = ParamSpec("P")


class Strategy(Protocol):
    """Life cycle: `ask` and `tell` in turn, until there is nothing left to ask, or nobody asks any
    more."""

    def ask(self) -> Round | None:
        """The masks to score next, None when there is nothing left to try."""

    def tell(self, scored: Sequence[Scored]) -> None:
        """The scores of all masks of the last round, in its order. Those given up in a round where
        only the best counts are not complete. A mask asked for again has the same score again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a strategy is made from.

    space: the units that masks are made of.
    share: of the units, skipped at most; 0 excluded, 1 included.
    start: masks known to be good, to be tried first by those that can.
    seed: of everything random.
    context, chunk: for strategies that look at hidden states, token ids of a text, and a context
        whose last sequence is free while `Strategy.ask` runs, with room for the text.
    """

    space: Space
    share: float = SHARE
    start: tuple[LayerMask, ...] = ()
    seed: int = 0
    context: Context | None = None
    chunk: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ArgumentError(f"the share to skip is above 0 and at most 1, got {self.share:g}")

    @property
    def n_max(self) -> int:
        """Units skipped at most."""
        return self.space.count(self.share)


Factory = Callable[[Setting], Strategy]
Rounds = Generator[Round, Sequence[Scored], None]


class FromRounds:
    """A strategy from a generator that yields rounds and is sent their scores."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._scored: Sequence[Scored] | None = None

    def ask(self) -> Round | None:
        try:
            return next(self._rounds) if self._scored is None else self._rounds.send(self._scored)
        except StopIteration:
            return None

    def tell(self, scored: Sequence[Scored]) -> None:
        self._scored = scored


def from_rounds(rounds: Callable[P, Rounds]) -> Callable[P, Strategy]:
    """Decorator: a generator function becomes one that makes strategies."""

    @wraps(rounds)
    def make(*args: P.args, **kwargs: P.kwargs) -> Strategy:
        return FromRounds(rounds(*args, **kwargs))

    return make


def names() -> tuple[str, ...]:
    """Names of all strategies, as the command line spells them."""
    return by_name.names(__path__)


@dataclass(frozen=True, slots=True)
class Named:
    """What makes strategies of one kind. endless: they always have another mask to try."""

    name: str
    make: Factory
    endless: bool = False

    def __call__(self, setting: Setting) -> Strategy:
        return self.make(setting)


def load(name: str, **options: Any) -> Named:
    """What makes strategies of this name, with options of its own.

    >>> greedy = load("greedy", prune=Prune(count=2))

    Raises ArgumentError for a name that is no file here, and for options that it does not have.
    """
    module = by_name.load(__name__, "strategy", name)
    known = options_of(name)
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ArgumentError(f"{option} is no option of the strategy {name}; {has}")
    make = partial(module.make, options=module.Options(**options)) if known else module.make
    return Named(name, make, getattr(module, "ENDLESS", False))


def options_of(name: str) -> tuple[str, ...]:
    """Names of a strategy's own options. Raises ArgumentError for a name that is no file here."""
    options = getattr(by_name.load(__name__, "strategy", name), "Options", None)
    return () if options is None else tuple(field.name for field in fields(options))


def resolve(strategy: str | Factory) -> Named:
    """What a name stands for; anything else that makes strategies is taken as it is."""
    if isinstance(strategy, str):
        return load(strategy)
    if isinstance(strategy, Named):
        return strategy
    return Named(getattr(strategy, "__name__", "own strategy"), strategy)


def in_order(candidates: Sequence[int], scored: Sequence[Scored]) -> list[int]:
    """Candidates with the best first; of equal ones the lower block."""
    ranks = {c: s.rank for c, s in zip(candidates, scored, strict=True)}
    return sorted(candidates, key=lambda c: (ranks[c], c))
