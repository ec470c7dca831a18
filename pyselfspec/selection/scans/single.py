"""Every unit once, alone."""

from __future__ import annotations

from ...masks.space import Space
from ..measuring import Pass
from . import Passes, Plan


def scan(space: Space, plan: Plan) -> Passes:
    yield Pass(space.full, space.units, best_only=False)
