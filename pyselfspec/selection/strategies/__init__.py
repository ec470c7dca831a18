"""Strategies choose the next masks to score from the scores so far. Each is a file here, whose name
users give; others are registered as entry points.

The module has a function ``make(setting)``, or ``make(setting, options)`` if it has ``Options``, a
frozen dataclass. All here are generators, see `from_rounds`. Two optional constants: ``ENDLESS =
True`` if there is always another mask, ``READS_STATES = True`` if the strategy decodes text itself,
see `Setting`. The command line and the conformance tests find the module by listing this folder.

Other strategies use masks and scores only, so they can be tested without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...masks.space import SHARE, Space
from ...util import plugins
from ..rounds import Round, Scored
from ._prune import Prune as Prune  # option of greedy and anti

if TYPE_CHECKING:
    from ...runtime.context import Context

ENTRY_POINTS = "pyselfspec.strategies"

P = ParamSpec("P")


class Strategy(Protocol):
    """Callers call `ask` and `tell` in turn until `ask` returns None or the budget is used up."""

    def ask(self) -> Round | None:
        """Return the masks to score next, None if there are no more."""

    def tell(self, scored: Sequence[Scored]) -> None:
        """Receive the scores of the last round, in its order. Scores of abandoned masks are not
        complete. A repeated mask has the same score again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Arguments of a strategy.

    space: the units that masks are made of.
    share: largest share of the units to skip, above 0 and at most 1.
    start: good masks to score first, for strategies that can.
    seed: of random choices.
    context, chunk: for strategies with READS_STATES: token ids of a text, and a context whose last
        sequence is free while `Strategy.ask` runs and has K/V cells for the text.
    """

    space: Space
    share: float = SHARE
    start: tuple[LayerMask, ...] = ()
    seed: int = 0
    context: Context | None = None
    chunk: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ArgumentError(f"share is above 0 and at most 1, got {self.share:g}")

    @property
    def n_max(self) -> int:
        """Largest number of units to skip."""
        return self.space.count(self.share)


Factory = Callable[[Setting], Strategy]
Rounds = Generator[Round, Sequence[Scored], None]


class FromRounds:
    """A strategy made of a generator that yields rounds and receives their scores."""

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
    """Decorate a generator function so that it returns a strategy."""

    @wraps(rounds)
    def make(*args: P.args, **kwargs: P.kwargs) -> Strategy:
        return FromRounds(rounds(*args, **kwargs))

    return make


def names() -> tuple[str, ...]:
    """Return the names of this package's strategies, which help texts list."""
    return plugins.names(__path__)


def all_names() -> tuple[str, ...]:
    """Return the names of all strategies, including names that packages register."""
    return plugins.all_names(__path__, ENTRY_POINTS)


@dataclass(frozen=True, slots=True)
class NamedFactory:
    """A factory of strategies with its name. endless, reads_states: see the constants above."""

    name: str
    make: Factory
    endless: bool = False
    reads_states: bool = False

    def __call__(self, setting: Setting) -> Strategy:
        return self.make(setting)


def load(name: str, **options: Any) -> NamedFactory:
    """Return the factory of a strategy, with its own options.

    >>> greedy = load("greedy", prune=Prune(count=2))

    Raises ArgumentError for an unknown name and for options that the strategy does not have.
    """
    module = plugins.load(__name__, "strategy", name, ENTRY_POINTS)
    names = options_of(name)
    for option in options:
        if option not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise ArgumentError(f"the strategy {name} has no option {option}; {has}")
    make = partial(module.make, options=module.Options(**options)) if names else module.make
    endless, reads_states = (getattr(module, x, False) for x in ("ENDLESS", "READS_STATES"))
    return NamedFactory(name, make, endless, reads_states)


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of a strategy's own options. Raises ArgumentError for an unknown name."""
    options = getattr(plugins.load(__name__, "strategy", name, ENTRY_POINTS), "Options", None)
    return () if options is None else tuple(field.name for field in fields(options))


def resolve(strategy: str | Factory) -> NamedFactory:
    """Return the factory of this name; a factory is returned with its function's name."""
    if isinstance(strategy, str):
        return load(strategy)
    if isinstance(strategy, NamedFactory):
        return strategy
    return NamedFactory(getattr(strategy, "__name__", "own strategy"), strategy)


def in_order(candidates: Sequence[int], scored: Sequence[Scored]) -> list[int]:
    """Return the candidates, best first; ties go to the lower index."""
    ranks = {c: s.rank for c, s in zip(candidates, scored, strict=True)}
    return sorted(candidates, key=lambda c: (ranks[c], c))
