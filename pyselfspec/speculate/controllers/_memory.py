"""Timings and acceptance rates that controllers pass from one text to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...costs.timed import TimedCosts
from ._acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class Memory:
    """Kept by the caller and updated by controllers, one text at a time.

    timings: of one drafter in one context.
    acceptance: of one conversation; for another one use ``Memory(memory.timings)``.
    """

    timings: TimedCosts
    acceptance: Acceptance = field(default_factory=Acceptance)
