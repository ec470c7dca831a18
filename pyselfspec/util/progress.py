"""Progress of long operations: how it is reported to callers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a long operation.

    stage: what is being done. n_done, n_total: done of this stage and expected in all, in a unit of
    the stage's own. message: worth a line of its own, or None.
    """

    stage: str
    n_done: float
    n_total: float
    message: str | None = None


# A callback, called after every unit of work. An exception that it raises ends the operation.
OnProgress = Callable[[Progress], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a long operation. path: has the work so far; an equal call goes on from it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"stopped; {path} has the work so far")
        self.path = path


def ignore_progress(_progress: Progress) -> None:
    """Do nothing."""
