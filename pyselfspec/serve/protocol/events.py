"""Events of the jobs of one request, from the engine's thread to asyncio's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ...util.closable import Closing
from ..engine.engine import Engine
from ..engine.jobs import Delta, Event, Failed, Finished, Job, Progress, Started, Ticket
from .errors import as_api_error

T = TypeVar("T")
START_S = 1.0  # in which a request that is refused gets a status of its own
PING_S = 15.0  # without an event, after which a stream tells that it goes on
CLIENT_CLOSED = 499  # nginx's status for a client that disconnected


class ClientGone(Exception):
    """The client has closed the connection."""


async def no_response(_request: Request, _error: Exception) -> Response:
    """Return the empty response to a client that has closed the connection."""
    return Response(status_code=CLIENT_CLOSED)


@dataclass(frozen=True, slots=True)
class Quiet:
    """A time of PING_S seconds without an event."""


class JobEvents(Closing):
    """An async iterator over (index of the job, event), for the jobs of one request.

    Submits the jobs at once; closing it cancels the jobs that have not ended.

    Raises BusyError if the queue is full, ShutdownError if the engine accepts no jobs; while
    iterating, ApiError for a job that fails.
    """

    def __init__(self, engine: Engine, jobs: Sequence[Job], timeout_s: float, owner: str) -> None:
        self._engine = engine
        self._events: asyncio.Queue[tuple[int, Event | Quiet]] = asyncio.Queue()
        self._has_begun = asyncio.Event()
        self._heard_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._n_left = len(jobs)
        self._loop = asyncio.get_running_loop()
        self._deadline = time.monotonic() + timeout_s
        self._tickets = [self._ticket(i, job, owner) for i, job in enumerate(jobs)]
        engine.submit(self._tickets)

    def _ticket(self, i: int, job: Job, owner: str) -> Ticket:
        def emit(event: Event) -> None:
            self._loop.call_soon_threadsafe(self._add, i, event)

        return Ticket(job, emit, self._deadline, owner)

    def _add(self, i: int, event: Event | Quiet) -> None:
        self._events.put_nowait((i, event))
        self._has_begun.set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for ticket in self._tickets:
            self._engine.cancel(ticket)

    async def wait_for_start(self, request: Request) -> None:
        """Wait for the first event, at most START_S seconds; from then on tell of quiet times.
        Raises ClientGone, or ApiError for a job that fails."""
        self._tell_quiet()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await until_disconnect(request, self._has_begun.wait())
        if self._events.empty():  # it waits for a slot
            return
        i, event = self._events.get_nowait()
        if isinstance(event, Failed):
            raise as_api_error(event.error) from event.error
        if not isinstance(event, Started):
            self._events.put_nowait((i, event))

    def _tell_quiet(self) -> None:
        """Add an event after PING_S seconds without one, again and again."""
        now = time.monotonic()
        if now > self._deadline + PING_S:  # no client reads the events
            return
        if now - self._heard_at >= PING_S:
            self._heard_at = now
            self._add(0, Quiet())
        rest_s = self._heard_at + PING_S - now
        self._timer = self._loop.call_later(rest_s, self._tell_quiet)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Progress | Delta | Finished | Quiet]]:
        while self._n_left:
            i, event = await self._events.get()
            self._heard_at = time.monotonic()
            if isinstance(event, Failed):
                raise as_api_error(event.error) from event.error
            self._n_left -= isinstance(event, Finished)
            if not isinstance(event, Started):
                yield i, event


async def until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`. Raises ClientGone as soon as the client disconnects."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
