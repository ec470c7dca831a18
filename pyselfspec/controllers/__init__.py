"""Controllers: how long to draft. One file each; the file name is the name users give.

A controller is a module here with a function ``make`` that takes a table of costs. Pure: a
controller sees steps and answers with limits, and knows neither model nor loop.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol

from ..costs import CostTable
from ..errors import ArgumentError
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
    modules = (m.name for m in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in modules if not name.startswith("_")))


def load(name: str) -> ControllerFactory:
    """What makes controllers of this name. Raises ArgumentError for a name that is no file here."""
    if name not in names():
        raise ArgumentError(f"there is no controller {name!r}; there are: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    factory: ControllerFactory = module.make
    return factory
