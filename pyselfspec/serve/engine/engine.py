"""The engine: one thread that owns a context and generates several completions at once in shared
passes. Does not know HTTP.

Each completion is the one that the model generates alone: slots.py reserves its cells, and shared
passes are no wider than the exact width. Prompts are read in pieces of at most that width, so that
other completions continue meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.sequence_table import n_common
from ...speculate.batching import Batch
from ...speculate.completion import Completion
from ...speculate.generation import Generation
from ...speculate.stats import GenerationStats
from ...speculate.types import Step
from ...util.closable import Closing
from ..settings import GRACE_S
from ..store.prefixes import Prefixes
from .jobs import BusyError, Delta, Event, Failed, Job, ShutdownError, Started, Ticket, TooLateError
from .running_completion import RunningCompletion
from .slots import Slot, Slots

N_MASKS = 32  # different masks of requests at most: each keeps graphs and timings

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineCounts:
    """Counts since the start of the engine. Its thread writes them; others may read."""

    n_texts: int = 0  # that have ended, for any reason
    n_passes: int = 0
    n_moves: int = 0  # of KV cells, to keep the cells of each completion in order
    n_disordered: int = 0  # completions whose cells could not be kept in order
    stats: GenerationStats = field(default_factory=GenerationStats)  # sums over all completions


class Engine(Closing):
    """Generates the completions of jobs. Owns the context until it is closed; thread-safe.

    n_slots: completions at once. n_queue: jobs that may wait. n_cells: cells for the tokens of all
    completions; the other cells of the context are for drafts. prefixes: snapshots of sequences,
    closed with the engine.
    """

    def __init__(
        self,
        context: Context,
        *,
        n_slots: int,
        n_queue: int,
        n_cells: int,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.context = context
        self.n_slots = n_slots
        self.n_cells = n_cells
        self.counts = EngineCounts()
        self._n_queue = n_queue
        self.prefixes = prefixes
        self._slots = Slots(context, n_slots, n_cells, prefixes)
        self._batch = Batch(context)
        self._running: dict[Generation, RunningCompletion] = {}
        self._masks: set[LayerMask] = set()
        self._last: Completion | None = None  # the last one with drafts, for its statistics
        self._changed = threading.Condition()  # guards the fields below
        self._waiting: deque[Ticket] = deque()
        self._calls: deque[tuple[Future[Any], Callable[[Slots], Any]]] = deque()
        self._closing = False
        self._ended = False
        self._cut_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="pyselfspec engine", daemon=True)
        self._thread.start()

    # from any thread

    def submit(self, tickets: list[Ticket]) -> None:
        """Queue all of these jobs, or none.

        Raises BusyError if the queue is full, ShutdownError after `end`.
        """
        with self._changed:
            if self._closing:
                raise ShutdownError
            if len(self._waiting) + len(tickets) > self._n_queue + self.n_slots - self.n_running:
                raise BusyError(
                    f"the queue is full: {len(self._waiting)} completions wait, at most "
                    f"{self._n_queue} may; try again later"
                )
            self._waiting.extend(tickets)
            self._changed.notify()

    def call(self, function: Callable[[Slots], T]) -> Future[T]:
        """Call a function with the slots between two passes. Raises ShutdownError if the engine has
        ended."""
        result: Future[T] = Future()
        with self._changed:
            if self._ended or not self.is_alive:
                raise ShutdownError
            self._calls.append((result, function))
            self._changed.notify()
        return result

    def cancel(self, ticket: Ticket) -> None:
        """End this completion before the next pass, without an event."""
        ticket.cancelled = True
        with self._changed:
            self._changed.notify()

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self, grace_s: float = GRACE_S) -> None:
        """Accept no more jobs; finish those submitted, or cut them off after grace_s seconds."""
        with self._changed:
            self._closing = True
            self._cut_at = time.monotonic() + grace_s
            self._changed.notify()

    def close(self) -> None:
        """End at once, even within a pass, and save the statistics of drafts for later runs."""
        self.end(0)
        with self.context.stopped():
            self._thread.join()

    # in the engine's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._running or self._waiting or self._calls or self._closing):
                    self._changed.wait()
                self._ended = not (self._running or self._waiting or self._calls)
                if self._ended:
                    break
            try:
                self._step()
            except Exception as error:
                log.exception("a pass failed")
                for running in list(self._running.values()):
                    self._end(running, Failed(error))
        if self._last is not None:
            self._last.remember()
        try:
            self._slots.save_all()
        except Exception:  # nothing else is lost by it
            log.exception("snapshots could not be saved")
        if self.prefixes is not None:
            self.prefixes.close()

    def _step(self) -> None:
        """Answer calls, admit jobs, and run one pass for the running completions."""
        while self._calls:
            result, function = self._calls.popleft()
            if not result.set_running_or_notify_cancel():
                continue  # the client has gone
            try:
                result.set_result(function(self._slots))
            except Exception as error:
                result.set_exception(error)
        now = time.monotonic()
        cut = self._is_cut(now)
        for running in list(self._running.values()):
            if failed := _reason_to_end(running.ticket, now, cut):
                self._end(running, failed)
        for ticket, slot in self._admitted(now, cut):
            self._begin(ticket, slot)
        if not self._running:
            return
        width = self.context.abilities.pass_width
        for generation in self._running:  # leaves rows for other completions beside a prompt's
            generation.n_piece = width if len(self._running) == 1 else max(1, width // 2)
        events = self._batch.run_pass()
        self.counts.n_passes += 1
        for generation, found in events:
            self._deliver(self._running[generation], found)
        for running in [each for each in self._running.values() if not each.has_read]:
            _emit(running.ticket, running.progress())
        for running in [each for each in self._running.values() if each.generation.ended]:
            self._end(running, *running.finish())

    def _is_cut(self, now: float) -> bool:
        """Whether the grace period has ended."""
        return self._cut_at is not None and now > self._cut_at

    def _admitted(self, now: float, cut: bool) -> list[tuple[Ticket, Slot]]:
        """Return the jobs that can begin, in the order of arrival, with their slots.

        A job whose prompt is being read for another completion waits for that and lets others go
        first. Removes jobs that are cancelled or too late from the queue.
        """
        found: list[tuple[Ticket, Slot]] = []
        with self._changed:
            has_room = True
            for ticket in list(self._waiting):
                if failed := _reason_to_end(ticket, now, cut):
                    self._waiting.remove(ticket)
                    _emit(ticket, failed)
                    continue
                has_room &= len(self._running) + len(found) < self.n_slots
                if not has_room or self._is_being_read(ticket.job):
                    continue
                job = ticket.job
                slot = self._slots.take(job.prompt, self._n_tokens(job), job.adapters)
                has_room = slot is not None
                if slot is not None:
                    slot.owner = ticket.owner
                    self._waiting.remove(ticket)
                    found.append((ticket, slot))
        return found

    def _n_tokens(self, job: Job) -> int:
        return min(len(job.prompt) + max(1, job.n_predict), self.n_cells)

    def _is_being_read(self, job: Job) -> bool:
        unread = [each.ticket.job for each in self._running.values() if not each.has_read]
        reading = [each.prompt for each in unread if each.adapters == job.adapters]
        prompt = job.prompt
        if not reading or not self.context.abilities.can_fork:
            return False
        n = max(n_common(prompt[:-1], other[:-1]) for other in reading)
        return n >= self._slots.n_held(prompt, job.adapters) + self.context.abilities.pass_width

    def _begin(self, ticket: Ticket, slot: Slot) -> None:
        job = ticket.job
        try:
            mask = job.drafting.mask
            if mask not in (None, *self._masks) and len(self._masks) >= N_MASKS:
                raise ArgumentError(
                    f"requests have used {N_MASKS} different masks, the most that this server "
                    "keeps; use one of these, or leave out the mask"
                )
            running = RunningCompletion(ticket, slot, self.context, self._n_tokens(job))
            if mask is not None:
                self._masks.add(mask)
        except Exception as error:
            self._slots.free(slot)
            _emit(ticket, Failed(error))
            return
        _emit(ticket, Started())
        self._running[running.generation] = running
        for _, found in self._batch.join(running.generation):
            self._deliver(running, found)

    def _deliver(self, running: RunningCompletion, found: Step | Exception | None) -> None:
        if isinstance(found, Exception):
            now = time.monotonic()
            reason = _reason_to_end(running.ticket, now, self._is_cut(now))  # it stopped the pass
            self._end(running, reason or Failed(found))
        elif found is None:
            running.finish_prompt()
            _emit(running.ticket, running.progress())
        else:
            _emit(running.ticket, running.delta(found))

    def _end(self, running: RunningCompletion, *events: Event) -> None:
        del self._running[running.generation]
        try:
            self._batch.leave(running.generation)
            running.close()
        except Exception:  # the slot must become free, and the client must get its events
            log.exception("closing a completion failed")
        self._slots.free(running.slot)
        self.counts.n_texts += 1
        self.counts.n_moves = self.context.n_moves
        self.counts.n_disordered = self._slots.n_disordered
        self.counts.stats.add(running.completion.stats)
        if running.completion.draft is not None:
            self._last = running.completion
        for event in events:
            _emit(running.ticket, event)


def _reason_to_end(ticket: Ticket, now: float, cut: bool) -> Failed | None:
    """Return the reason to end an unfinished job, None to continue it."""
    if ticket.cancelled:
        return Failed(BusyError("cancelled"))  # not delivered
    if now > ticket.deadline:
        return Failed(
            TooLateError("the answer took longer than this server allows; request fewer tokens")
        )
    return Failed(ShutdownError()) if cut else None


def _emit(ticket: Ticket, event: Event | None) -> None:
    is_empty = isinstance(event, Delta) and not (event.text or event.logprobs)
    if event is None or ticket.cancelled or is_empty:
        return
    try:
        ticket.emit(event)
    except Exception:  # the client's event loop has ended
        ticket.cancelled = True
        log.debug("an event could not be delivered", exc_info=True)
