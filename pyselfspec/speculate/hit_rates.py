"""Hit rates of copies in a context: they start from earlier runs and are stored for later ones,
together with the costs of passes.

They are estimates to begin with; without a stored file the first steps are a little worse.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ..costs import store
from ..costs.chances import Chances
from ..costs.store import Observations
from ..costs.timed import TimedCosts
from ..errors import ArgumentError
from ..runtime.context import Context
from .context_state import kept

EARLIER_FACTOR = 0.5  # prior hit rate of copies from earlier texts, over those from the same text
OTHER_FACTOR = 0.5  # likewise of another continuation of a match, if the copy is wrong


@dataclass(slots=True)
class HitRates:
    """Hit rates that the texts of one context add to.

    copies: of copies from the same text. earlier: of copies from earlier texts. others: of other
    continuations of a match; not stored.
    """

    copies: Chances
    earlier: Chances
    others: Chances


def hit_rates_of(context: Context) -> HitRates:
    """Return the hit rates of a context; the stored ones are read once."""

    def read() -> HitRates:
        stored = store.load(store.key_of(context))
        return HitRates(
            copies=Chances(counts=stored.copies if stored else None),
            earlier=Chances(EARLIER_FACTOR, stored.earlier if stored else None),
            others=Chances(OTHER_FACTOR),
        )

    return kept(context, HitRates, None, read)


def save(context: Context, timings: TimedCosts) -> None:
    """Store hit rates and relative times of passes, if passes over copies were timed. Does nothing
    if the file cannot be written."""
    if not timings.knows_widths:
        return
    full_us = timings.at(0).rising().full_us
    widths = tuple(us / full_us[0] for us in full_us)
    rates, key = hit_rates_of(context), store.key_of(context)
    with suppress(OSError, ArgumentError):
        store.save(Observations(key, widths, rates.copies.counts, rates.earlier.counts))
