"""Controllers: how long to draft. One file each; the file name is the name users give.

A controller is a module here with a function ``make`` that takes a table of costs. Pure: a
controller sees steps and answers with limits, and knows neither model nor loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...costs.table import CostTable
from ...util import by_name
from ..types import DraftLimit, Step

DEFAULT = "auto"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to draft, and what the best way to draft promises. Times in microseconds.

    drafts: whether that is better than plain decoding.
    n_max: most tokens of a draft, each taking token_us, and the verification pass verify_us.
    tokens: expected of a step.
    us_per_token: expected of what has been decided. speedup: of drafting, over plain decoding;
        below 1 when drafting would lose.
    """

    drafts: bool
    n_max: int
    tokens: float
    plain_us: float
    token_us: float
    verify_us: float
    draft_us_per_token: float
    us_per_token: float

    @property
    def speedup(self) -> float:
        return self.plain_us / self.draft_us_per_token


class Controller(Protocol):
    """Asked before every step, told about every step. One serves one text."""

    def limit(self, n_past: int) -> DraftLimit:
        """What the next step may draft, n_past tokens being in the K/V cache."""

    def observe(self, step: Step) -> None:
        """What came of it."""

    def explain(self) -> Decision | None:
        """What has been decided last; None for controllers that weigh nothing up."""


class ControllerFactory(Protocol):
    def __call__(self, costs: CostTable) -> Controller: ...


def names() -> tuple[str, ...]:
    """Names of all controllers, as the command line spells them."""
    return by_name.names(__path__)


def load(name: str) -> ControllerFactory:
    """What makes controllers of this name. Raises ArgumentError for a name that is no file here."""
    factory: ControllerFactory = by_name.load(__name__, "controller", name).make
    return factory
