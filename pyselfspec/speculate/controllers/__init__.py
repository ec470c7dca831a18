"""Controllers: how many tokens to draft. One file each; the file name is the name users give.

A controller is a module with a function ``make`` that takes a table of costs and a memory. Pure: a
controller observes steps and returns limits, and knows neither model nor loop.
"""

from __future__ import annotations

from typing import Protocol

from ...costs.table import CostTable
from ...util import plugins
from ..limits import DraftLimit
from ..types import Step
from ._acceptance import Acceptance, Learned
from ._decision import Decision, Rule

__all__ = ["Acceptance", "Decision", "Learned", "Rule"]

DEFAULT = "auto"
ENTRY_POINTS = "pyselfspec.controllers"


class Controller(Protocol):
    """Decides how much each step of one text may draft.

    It may have a method ``explain() -> Decision``, see ``explain``.
    """

    def limit(self, n_past: int) -> DraftLimit:
        """Return what the next step may draft, with n_past tokens in the K/V cache."""

    def observe(self, step: Step) -> None:
        """Learn from the step that was made with the last limit."""


class ControllerFactory(Protocol):
    def __call__(self, costs: CostTable, memory: Learned | None = None) -> Controller:
        """Return a controller for one text.

        memory: what was learned from earlier texts; this text adds to it. If given, its timings
        replace ``costs``.
        """


def names() -> tuple[str, ...]:
    """Return the names of this package's controllers, which help texts list."""
    return plugins.names(__path__)


def all_names() -> tuple[str, ...]:
    """Return the names of all controllers, including names that packages register."""
    return plugins.all_names(__path__, ENTRY_POINTS)


def load(name: str) -> ControllerFactory:
    """Return what makes controllers of this name. Raises ArgumentError for an unknown name."""
    factory: ControllerFactory = plugins.load(__name__, "controller", name, ENTRY_POINTS).make
    return factory


def explain(controller: object) -> Decision | None:
    """Return what a controller expects of drafting now; None if it does not say."""
    method = getattr(controller, "explain", None)
    decision: Decision | None = None if method is None else method()
    return decision
