"""Beginnings of texts that are searched for in a stream: markers and stop strings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Beginnings:
    """The proper prefixes of some texts. A search costs little more with many texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts)
        self._longest = max((len(text) - 1 for text in self._texts), default=0)

    def __contains__(self, text: str) -> bool:
        at = bisect_right(self._texts, text)
        return at < len(self._texts) and self._texts[at].startswith(text)

    def n_at_end(self, text: str) -> int:
        """Return the length of the longest suffix of a text that is one of them."""
        if not self._longest:
            return 0
        sizes = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in sizes if text[-n:] in self), 0)
