"""The engine of a model that makes embeddings: one thread that evaluates one text after the other.
Does not know HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ...runtime.embedding import EmbeddingContext
from ...util.closable import Closing
from ..engine.engine import EngineCounts
from ..engine.jobs import BusyError, ShutdownError, TooLateError
from ..settings import GRACE_S


class EmbeddingEngine(Closing):
    """Evaluates texts of requests in turns, a text of each. Owns the context until it is closed.

    n_queue: requests that may wait.
    """

    n_slots = 1
    prefixes = None  # no text continues another

    def __init__(self, context: EmbeddingContext, n_queue: int) -> None:
        self.context = context
        self.counts = EngineCounts()
        self.n_running = self.n_waiting = 0
        self._n_queue = n_queue
        self._cut_at: float | None = None
        self._pool = ThreadPoolExecutor(1, "pyselfspec embeddings")

    @property
    def is_alive(self) -> bool:
        return True

    async def embed(
        self, texts: Sequence[Sequence[int]], timeout_s: float
    ) -> list[NDArray[np.float32]]:
        """Return the result of each text, see EmbeddingContext.embed.

        Raises BusyError if too many requests wait, ShutdownError after `end`, TooLateError.
        """
        if self._cut_at is not None:
            raise ShutdownError
        if self.n_waiting > self._n_queue:
            raise BusyError(
                f"the queue is full: {self.n_waiting} requests wait, at most {self._n_queue} may; "
                "try again later"
            )
        deadline = time.monotonic() + timeout_s
        self.n_waiting += 1
        try:
            found, loop = [], asyncio.get_running_loop()
            for tokens in texts:
                now = time.monotonic()
                if now > deadline:
                    raise TooLateError("the texts took longer than this server allows; send fewer")
                if self._cut_at is not None and now > self._cut_at:
                    raise ShutdownError
                found.append(await loop.run_in_executor(self._pool, self._run, tokens))
                self.counts.n_texts += 1
                self.counts.stats.n_prompt += len(tokens)
            return found
        finally:
            self.n_waiting -= 1

    def _run(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.n_running = 1
        try:
            self.counts.n_passes += 1
            return self.context.embed(tokens)
        finally:
            self.n_running = 0

    def end(self, grace_s: float = GRACE_S) -> None:
        """Accept no more requests; refuse the remaining ones after grace_s seconds."""
        self._cut_at = time.monotonic() + grace_s

    def close(self) -> None:
        self.end(0)
        self._pool.shutdown(cancel_futures=True)
        self.context.close()
