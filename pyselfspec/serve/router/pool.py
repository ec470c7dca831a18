"""Which models are loaded: on demand, within a limit of memory, the least recently used unloaded
first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ...util.sizes import size_text
from ..engine.jobs import ShutdownError
from ..protocol.errors import ApiError
from .models import Listed


class Running(Protocol):
    """A loaded model, see ModelProcess."""

    port: int

    @property
    def is_alive(self) -> bool: ...

    async def wait_until_ready(self) -> None: ...

    async def end(self) -> None: ...


@dataclass(eq=False, slots=True)
class Entry:
    """A model and its process, if it is loaded. n_users: requests that are being answered."""

    model: Listed
    running: Running | None = None
    n_users: int = 0
    used_at: float = 0.0
    keep_s: float | None = None  # from the last request; None: the pool's
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def takes_memory(self) -> bool:
        return self.running is not None and self.running.is_alive

    @property
    def is_loaded(self) -> bool:
        """Whether it answers at once, and is not about to end."""
        return self.takes_memory and not self.loading.locked()


class Pool:
    """Loads and unloads models, for one event loop.

    max_bytes: of all loaded models, by estimate; None for no limit. keep_s: seconds that a model
    stays loaded after its last answer; None for ever. start: starts a process.
    """

    def __init__(
        self,
        models: Sequence[Listed],
        start: Callable[[Listed], Awaitable[Running]],
        *,
        max_bytes: int | None,
        keep_s: float | None,
    ) -> None:
        self.entries = {model.name: Entry(model) for model in models}
        self._start = start
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._changed = asyncio.Condition()
        self._ending = asyncio.Event()
        self._loads: set[asyncio.Task[Running]] = set()
        self._ends: list[asyncio.Future[None]] = []
        # one model at a time, so that two do not wait for each other
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def using(self, name: str, timeout_s: float) -> AsyncIterator[Running]:
        """Yield a loaded model, which stays loaded meanwhile. Raises ApiError for one that cannot
        be loaded, or for which there is no room within timeout_s seconds."""
        entry = self.entries[name]
        entry.n_users += 1
        try:
            yield await self._loaded_or_ending(entry, timeout_s)
        finally:
            entry.n_users -= 1
            entry.used_at = time.monotonic()
            await self._notify()

    def end(self) -> None:
        """Refuse requests whose model is not loaded, and let all processes finish their answers."""
        if not self._ending.is_set():
            self._ending.set()
            running = [each.running for each in self.entries.values() if each.running is not None]
            self._ends = [asyncio.ensure_future(each.end()) for each in running]

    async def _loaded_or_ending(self, entry: Entry, timeout_s: float) -> Running:
        # goes on without a client that leaves: it will come back
        loading = asyncio.create_task(self._loaded(entry, timeout_s))
        self._loads.add(loading)
        loading.add_done_callback(self._loads.discard)
        loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait([loading, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if not loading.done():
            self._refuse_at_end()
        return loading.result()

    def _refuse_at_end(self) -> None:
        if self._ending.is_set():
            raise ApiError(503, str(ShutdownError()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _loaded(self, entry: Entry, timeout_s: float) -> Running:
        async with entry.loading:
            if entry.running is None or not entry.running.is_alive:
                async with self._loading:
                    entry.running = None
                    await self._make_room(entry, timeout_s)
                    self._refuse_at_end()
                    entry.running = await self._start(entry.model)
                    if self._ending.is_set():  # `end` did not know it
                        await entry.running.end()
                    await entry.running.wait_until_ready()
            return entry.running

    async def _make_room(self, entry: Entry, timeout_s: float) -> None:
        """Unload idle models until this one fits; wait for models in use."""
        most, needed = self._max_bytes, entry.model.n_bytes
        if most is None:
            return
        if needed > most:
            raise ApiError(
                503,
                f"{entry.model.name} takes about {size_text(needed)}, more than --max-memory, "
                f"{size_text(most)}",
            )
        end = time.monotonic() + timeout_s
        others = [each for each in self.entries.values() if each is not entry]
        while sum(each.model.n_bytes for each in others if each.takes_memory) + needed > most:
            self._refuse_at_end()
            idle = [each for each in others if each.is_loaded and not each.n_users]
            if idle:
                await self.unload(min(idle, key=lambda each: each.used_at))
                continue
            try:
                async with asyncio.timeout(end - time.monotonic()), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                raise ApiError(
                    503,
                    f"not enough memory to load {entry.model.name} while other models are busy; "
                    "try again later",
                ) from None

    async def unload(self, entry: Entry) -> None:
        """End the process of a model; its memory counts, and requests for it wait, until then."""
        async with entry.loading:
            if entry.running is not None:
                await entry.running.end()
                entry.running = None
                await self._notify()

    async def unload_old(self) -> None:
        """Unload the models that have not been used for longer than they are kept."""
        for entry in self.entries.values():
            left_s = self.left_s(entry)
            if entry.is_loaded and left_s is not None and left_s <= 0:
                await self.unload(entry)

    def left_s(self, entry: Entry) -> float | None:
        """Return the seconds after which a model is unloaded if no request comes, None for never
        and for one that is answering."""
        keep_s = self._keep_s if entry.keep_s is None else entry.keep_s
        if keep_s is None or entry.n_users:
            return None
        return entry.used_at + keep_s - time.monotonic()

    async def close(self) -> None:
        """Wait until all processes have ended, also processes that were being started."""
        self.end()
        await self._notify()
        await asyncio.gather(*self._ends, *self._loads, return_exceptions=True)
