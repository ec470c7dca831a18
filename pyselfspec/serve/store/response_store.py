"""Responses that later requests may go on from, in memory. Each belongs to an API key."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

N_STORED = 1024  # responses
N_CHARS = 64 << 20  # characters of all their conversations


@dataclass(frozen=True, slots=True)
class Stored:
    """A response. body: as JSON. items: of the conversation that it answers, without instructions.
    n_chars: its size."""

    body: dict[str, Any]
    items: tuple[dict[str, Any], ...]
    n_chars: int


class ResponseStore:
    """Keeps the latest responses; the oldest are dropped first. For one thread.

    n_chars: characters of all conversations. Conversations that share items count them each.
    """

    def __init__(self, n_stored: int = N_STORED, n_chars: int = N_CHARS) -> None:
        self._most, self._n_left = n_stored, n_chars
        self._found: OrderedDict[tuple[str, str], Stored] = OrderedDict()

    def put(self, owner: str, stored: Stored) -> None:
        self._found[owner, stored.body["id"]] = stored
        self._n_left -= stored.n_chars
        while self._found and (self._n_left < 0 or len(self._found) > self._most):
            self._n_left += self._found.popitem(last=False)[1].n_chars

    def get(self, owner: str, name: str) -> Stored | None:
        """Return the response of this id if this owner made it."""
        return self._found.get((owner, name))

    def outputs(self, owner: str) -> dict[str, dict[str, Any]]:
        """Return the items in the outputs of the responses of this owner, by id."""
        mine = (stored for (who, _), stored in self._found.items() if who == owner)
        return {item["id"]: item for stored in mine for item in stored.body["output"]}

    def pop(self, owner: str, name: str) -> Stored | None:
        """Remove and return a response."""
        found = self._found.pop((owner, name), None)
        self._n_left += found.n_chars if found else 0
        return found
