"""Models of a router that take no memory and no time."""

from __future__ import annotations

from pathlib import Path

from pyselfspec.serve.model_card import FileCard
from pyselfspec.serve.router.models import Listed
from pyselfspec.serve.router.pool import Pool


def listed_as(name: str, n_bytes: int) -> Listed:
    return Listed(name, Path(name), n_bytes, FileCard("llama", "Q8_0", 10, n_bytes, 0.0, ()))


def loaded(pool: Pool) -> set[str]:
    return {name for name, each in pool.entries.items() if each.is_loaded}


class FakeProcess:
    """A process that lives until it is ended."""

    port = 1

    def __init__(self) -> None:
        self.is_alive = True

    async def wait_until_ready(self) -> None:
        assert self.is_alive

    async def end(self) -> None:
        self.is_alive = False
