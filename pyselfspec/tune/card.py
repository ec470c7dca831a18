"""What a head's file says about where it comes from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..util import records

KEY = "pyselfspec.head_card"  # in the metadata, as JSON


@dataclass(frozen=True, slots=True)
class Card:
    """model, fingerprint: of the model that it drafts for. data: in words.

    n_written: tokens of data. n_seen: tokens that it was trained on, each time counted.
    minutes: of training. acceptance: on held-out text by position, given those before.
    """

    FORMAT: ClassVar[int] = 1

    model: str
    fingerprint: str
    blocks: tuple[int, ...]
    data: str
    n_written: int
    n_seen: int
    minutes: float
    acceptance: tuple[float, ...]
    version: str
    date: str

    def metadata(self) -> dict[str, str]:
        """For the file, by key."""
        by_position = ", ".join(f"{each:.2f}" for each in self.acceptance)
        about = (
            f"Draft head for {self.model}, trained for {self.minutes:.0f} minutes on "
            f"{self.n_seen} tokens of {self.n_written} ({self.data}); drafts right on held-out "
            f"text, by position: {by_position}"
        )
        return {"general.description": about, KEY: records.encode(self).decode()}
