"""Controllers: how long to draft. One file each; the file name is the name users give.

A controller is a module here with a function ``make`` that takes a table of costs and a memory.
Pure: a controller sees steps and answers with limits, and knows neither model nor loop.
"""

from __future__ import annotations

from typing import Protocol

from ...costs.table import CostTable
from ...util import by_name
from ..types import DraftLimit, Step
from ._acceptance import Acceptance
from ._decision import Decision, Rule
from ._memory import Memory

__all__ = ["Acceptance", "Decision", "Memory", "Rule"]

DEFAULT = "auto"


class Controller(Protocol):
    """Asked before every step, told about every step. One serves one text.

    May have a method ``explain() -> Decision``, see ``explain``.
    """

    def limit(self, n_past: int) -> DraftLimit:
        """What the next step may draft, n_past tokens being in the K/V cache."""

    def observe(self, step: Step) -> None:
        """Learn from the step that was made with the last limit."""


class ControllerFactory(Protocol):
    def __call__(self, costs: CostTable, memory: Memory | None = None) -> Controller:
        """A controller for one text.

        memory: what earlier texts taught; it learns from this one. Where it is given, its timings
        are believed and costs are not.
        """


def names() -> tuple[str, ...]:
    """Names of all controllers, as the command line spells them."""
    return by_name.names(__path__)


def load(name: str) -> ControllerFactory:
    """What makes controllers of this name. Raises ArgumentError for a name that is no file here."""
    factory: ControllerFactory = by_name.load(__name__, "controller", name).make
    return factory


def explain(controller: object) -> Decision | None:
    """What a controller expects of drafting now; None where it expects nothing."""
    method = getattr(controller, "explain", None)
    decision: Decision | None = None if method is None else method()
    return decision
