"""The engine: one thread that owns a context and writes several texts at once, their rows in shared
passes. Knows nothing of requests.

Every text is the one that it would be alone: see together.py for the bits, slots.py for the room.
Prompts are read in pieces no wider than the exact width, so that others go on meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.ledger import n_common
from ..runtime.logprobs import LogProbs
from ..speculate.completion import Completion
from ..speculate.origins import Origins
from ..speculate.text import Text
from ..speculate.together import Together
from ..speculate.types import GenerationStats, Step
from ..util.closing import Closing
from .jobs import (
    MODEL,
    BusyError,
    Event,
    Failed,
    Finished,
    Grown,
    Job,
    Origin,
    ShutdownError,
    Started,
    Ticket,
    TooLateError,
)
from .settings import GRACE_S
from .slots import Slot, Slots

N_MASKS = 32  # different ones that requests may bring: each keeps graphs and timings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """Since the engine was started. Written by its thread; others may read."""

    n_texts: int = 0  # that have ended, whichever way
    n_passes: int = 0
    n_moves: int = 0  # of K/V cells, to keep those of every text in order
    n_disordered: int = 0  # texts for which that could not be done
    stats: GenerationStats = field(default_factory=GenerationStats)  # of all of them


_Of = tuple[str, LogProbs | None]  # whose a token is, and its probabilities


class Engine(Closing):
    """Writes the texts of jobs. Its methods may be called from any thread; the context is its own
    until it is closed.

    n_slots: texts at once. n_queue: jobs that may wait. n_cells: tokens of room for all texts
    together; what the context has beyond these is for drafts.
    """

    def __init__(self, context: Context, *, n_slots: int, n_queue: int, n_cells: int) -> None:
        self.context = context
        self.n_slots = n_slots
        self.n_cells = n_cells
        self.counts = Counts()
        self._n_queue = n_queue
        self._slots = Slots(context, n_slots, n_cells)
        self._together = Together(context)
        self._writing: dict[Text, _Writing] = {}
        self._masks: set[LayerMask] = set()
        self._last: Completion | None = None  # with drafts, which has learned something
        self._changed = threading.Condition()  # guards what follows
        self._waiting: deque[Ticket] = deque()
        self._closing = False
        self._cut_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="pyselfspec engine", daemon=True)
        self._thread.start()

    # from any thread

    def submit(self, tickets: list[Ticket]) -> None:
        """Queue jobs, all of them or none.

        Raises BusyError where the queue has no room, ShutdownError where no more jobs are taken.
        """
        with self._changed:
            if self._closing:
                raise ShutdownError
            if len(self._waiting) + len(tickets) > self._n_queue + self.n_slots - self.n_running:
                raise BusyError(
                    f"{len(self._waiting)} requests are waiting, {self._n_queue} may; try later"
                )
            self._waiting.extend(tickets)
            self._changed.notify()

    def cancel(self, ticket: Ticket) -> None:
        """Nobody wants this text any more: it ends before the next pass, without an event."""
        ticket.cancelled = True
        with self._changed:
            self._changed.notify()

    @property
    def n_running(self) -> int:
        return len(self._writing)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self, grace_s: float = GRACE_S) -> None:
        """Take no more jobs; finish those that there are, or cut them after so many seconds."""
        with self._changed:
            self._closing = True
            self._cut_at = time.monotonic() + grace_s
            self._changed.notify()

    def close(self) -> None:
        """End at once, also within a pass, and keep what was learned of drafts for the next run."""
        self.end(0)
        with self.context.stopped():
            self._thread.join()

    # in the engine's thread

    def _run(self) -> None:
        while self._wait():
            try:
                self._go_on()
            except Exception as error:
                log.exception("a pass failed")
                for writing in list(self._writing.values()):
                    self._end(writing, Failed(error))
        if self._last is not None:
            self._last.remember()

    def _wait(self) -> bool:
        """Until there is something to do; False at the end."""
        with self._changed:
            while not (self._writing or self._waiting or self._closing):
                self._changed.wait()
            return bool(self._writing or self._waiting)

    def _go_on(self) -> None:
        now = time.monotonic()
        cut = self._is_cut(now)
        for writing in list(self._writing.values()):
            if failed := _over(writing.ticket, now, cut):
                self._end(writing, failed)
        for ticket, slot in self._admitted(now, cut):
            self._begin(ticket, slot)
        if not self._writing:
            return
        width = self.context.pass_width
        for text in self._writing:  # so that rows of others find room beside a prompt's
            text.n_piece = width if len(self._writing) == 1 else max(1, width // 2)
        events = self._together.run_pass()
        self.counts.n_passes += 1
        for text, found in events:
            self._settle(self._writing[text], found)
        for writing in [each for each in self._writing.values() if each.text.ended]:
            self._end(writing, *writing.last())

    def _is_cut(self, now: float) -> bool:
        """Whether the grace period has ended."""
        return self._cut_at is not None and now > self._cut_at

    def _admitted(self, now: float, cut: bool) -> list[tuple[Ticket, Slot]]:
        """Jobs that can begin, in the order in which they came. One whose prompt is being read for
        another text waits for that, and lets others go first. Those that are over leave the queue,
        wherever they stand in it."""
        found: list[tuple[Ticket, Slot]] = []
        with self._changed:
            has_room = True
            for ticket in list(self._waiting):
                if failed := _over(ticket, now, cut):
                    self._waiting.remove(ticket)
                    _tell(ticket, failed)
                    continue
                has_room &= len(self._writing) + len(found) < self.n_slots
                if not has_room or self._is_being_read(ticket.job.prompt):
                    continue
                slot = self._slots.take(ticket.job.prompt, self._n_tokens(ticket.job))
                has_room = slot is not None
                if slot is not None:
                    self._waiting.remove(ticket)
                    found.append((ticket, slot))
        return found

    def _n_tokens(self, job: Job) -> int:
        return min(len(job.prompt) + job.n_predict, self.n_cells)

    def _is_being_read(self, prompt: tuple[int, ...]) -> bool:
        reading = [each.ticket.job.prompt for each in self._writing.values() if not each.has_read]
        if not reading or not self.context.can_rollback:
            return False
        n = max(n_common(prompt[:-1], other[:-1]) for other in reading)
        return n >= self._slots.n_held(prompt) + self.context.pass_width

    def _begin(self, ticket: Ticket, slot: Slot) -> None:
        job = ticket.job
        try:
            self._require_few_masks(job.drafting.mask)
            writing = _Writing(ticket, slot, self.context, self._n_tokens(job))
            if job.drafting.mask is not None:
                self._masks.add(job.drafting.mask)
        except Exception as error:
            self._slots.free(slot)
            _tell(ticket, Failed(error))
            return
        _tell(ticket, Started())
        self._writing[writing.text] = writing
        for _, found in self._together.join(writing.text):
            self._settle(writing, found)

    def _require_few_masks(self, mask: LayerMask | None) -> None:
        if mask not in (None, *self._masks) and len(self._masks) >= N_MASKS:
            raise ArgumentError(
                f"requests have brought {N_MASKS} different masks, which is all that this server "
                "keeps; use one of these, or the server's own"
            )

    def _settle(self, writing: _Writing, found: Step | Exception | None) -> None:
        if isinstance(found, Exception):
            now = time.monotonic()
            over = _over(writing.ticket, now, self._is_cut(now))  # then the pass was stopped
            self._end(writing, over or Failed(found))
        elif found is None:
            writing.read()
        else:
            _tell(writing.ticket, writing.grown(found))

    def _end(self, writing: _Writing, *events: Event) -> None:
        del self._writing[writing.text]
        try:
            self._together.leave(writing.text)
            writing.close()
        except Exception:  # neither its slot nor who waits for it is to suffer from that
            log.exception("a text was not closed well")
        self._slots.free(writing.slot)
        self.counts.n_texts += 1
        self.counts.n_moves = self.context.n_moves
        self.counts.n_disordered = self._slots.n_disordered
        self.counts.stats.add(writing.completion.stats)
        if writing.completion.draft is not None:
            self._last = writing.completion
        for event in events:
            _tell(writing.ticket, event)


class _Writing:
    """A text that is being written. Raises what Completion does."""

    def __init__(self, ticket: Ticket, slot: Slot, context: Context, n_tokens: int) -> None:
        self.ticket = ticket
        self.slot = slot
        self.has_read = False  # its prompt
        job, drafting = ticket.job, ticket.job.drafting
        self.completion = Completion(
            context,
            job.prompt,
            seq=slot.seq,
            n_predict=n_tokens - len(job.prompt),
            draft=drafting.draft,
            options=drafting.options,
            mask=drafting.mask,
            profile=drafting.profile,
            controller=drafting.controller,
            sampling=job.sampling,
            stop=job.stop,
            logprobs=job.logprobs,
        )
        self._origins = Origins[_Of]() if job.shows_tokens or job.logprobs is not None else None
        self._stack = ExitStack()
        self.text = self._stack.enter_context(self.completion.start())
        self._start = time.perf_counter_ns()

    def read(self) -> None:
        self.has_read = True
        self.completion.read_prompt(self.text, self._us())

    def grown(self, step: Step) -> Grown:
        text = self.completion.advanced(step)
        if self._origins is not None:
            self._push(step, self._origins)
        return self._grown(text, step.us)

    def last(self) -> tuple[Grown, Finished]:
        """The text has ended: what was held back of it, and how it went."""
        completion = self.completion
        text = completion.finish()
        completion.stats.total_us = self._us()
        assert completion.finish_reason is not None
        finished = Finished(
            completion.finish_reason,
            completion.stats,
            completion.draft,
            completion.estimated_speedup,
            completion.mask,
        )
        return self._grown(text, 0), finished

    def _push(self, step: Step, origins: Origins[_Of]) -> None:
        model, made = self.completion.context.model, self.completion
        first = len(made.tokens) - len(step.tokens)
        for i, (token, source) in enumerate(zip(step.tokens, step.origins, strict=True)):
            if model.has_vocab and not model.is_eog(token):
                logprobs = made.logprobs[first + i] if made.logprobs else None
                origins.push(model.piece(token), (source or MODEL, logprobs))

    def _grown(self, text: str, us: int) -> Grown:
        if self._origins is None:
            return Grown(text, (), (), us)
        parts = self._origins.take(text)
        origins = tuple(Origin(part.text, part.of[0]) for part in parts if part.text)
        begun = [(part.token, part.of[1]) for part in parts]
        logprobs = tuple(
            (text, found) for text, found in begun if text is not None and found is not None
        )
        return Grown(text, origins, logprobs, us)

    def _us(self) -> int:
        return (time.perf_counter_ns() - self._start) // 1000

    def close(self) -> None:
        self._stack.close()


def _over(ticket: Ticket, now: float, cut: bool) -> Failed | None:
    """Why a job ends that is not finished."""
    if ticket.cancelled:
        return Failed(BusyError("cancelled"))  # which nobody hears
    if now > ticket.deadline:
        return Failed(TooLateError("the answer took longer than this server allows; ask for less"))
    return Failed(ShutdownError()) if cut else None


def _tell(ticket: Ticket, event: Event) -> None:
    if ticket.cancelled or (isinstance(event, Grown) and not (event.text or event.logprobs)):
        return
    try:
        ticket.emit(event)
    except Exception:  # whoever listened is gone
        ticket.cancelled = True
        log.debug("nobody hears of a text", exc_info=True)
