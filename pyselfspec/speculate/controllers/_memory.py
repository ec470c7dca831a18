"""What one text teaches the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...costs.timed import TimedCosts
from ._acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class Memory:
    """Kept by the caller, changed by the controllers that it is given to, one text at a time.

    timings: of one drafter in one context; they hold as long as both live.
    acceptance: of one conversation. ``Memory(memory.timings)`` is for another one.
    """

    timings: TimedCosts
    acceptance: Acceptance = field(default_factory=Acceptance)
