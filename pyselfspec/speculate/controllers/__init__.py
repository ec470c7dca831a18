"""Controllers: how long to draft. One file each; the file name is the name users give.

A controller is a module here with a function ``make`` that takes a table of costs. Pure: a
controller sees steps and answers with limits, and knows neither model nor loop.
"""

from __future__ import annotations

from typing import Protocol

from ...costs.table import CostTable
from ...util import by_name
from ..types import DraftLimit, Step

DEFAULT = "auto"


class Controller(Protocol):
    """Asked before every step, told about every step. One serves one text."""

    def limit(self, n_past: int) -> DraftLimit:
        """What the next step may draft, n_past tokens being in the K/V cache."""

    def observe(self, step: Step) -> None: ...


class ControllerFactory(Protocol):
    def __call__(self, costs: CostTable) -> Controller: ...


def names() -> tuple[str, ...]:
    """Names of all controllers, as the command line spells them."""
    return by_name.names(__path__)


def load(name: str) -> ControllerFactory:
    """What makes controllers of this name. Raises ArgumentError for a name that is no file here."""
    factory: ControllerFactory = by_name.load(__name__, "controller", name).make
    return factory
