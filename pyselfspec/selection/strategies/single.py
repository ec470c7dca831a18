"""Every unit once, skipped alone."""

from __future__ import annotations

from ..rounds import Round
from . import Rounds, Setting, from_rounds


@from_rounds
def make(setting: Setting) -> Rounds:
    yield Round(setting.space.full, setting.space.units, best_only=False)
