"""Passes requested by coroutines.

Drafters and generations yield requests and are sent results. What drives them decides which
requests go through the model together, so one sequence and several that share passes run one code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ..errors import SelfSpecError
from ..runtime.lora import Adapters
from ..runtime.pass_result import BatchLoad, PassResult
from ..runtime.passes import FULL, Pass, Rows

if TYPE_CHECKING:
    from ..runtime.context import Context

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class PassRequest:
    """Rows to run through the model, and the kind of pass that they need.

    chances: of as many last rows, which a pass that several texts share may leave out from the end
        on, the probabilities that their tokens are accepted.
    """

    rows: Rows
    what: Pass = FULL
    chances: tuple[float, ...] = ()

    @property
    def n_needed(self) -> int:
        """The number of rows that are not left out."""
        return len(self.rows) - len(self.chances)

    def with_optional(self, n: int) -> PassRequest:
        """Return the request with only n of the rows that may be left out."""
        if n == len(self.chances):
            return self
        return replace(self, rows=self.rows.first(self.n_needed + n), chances=self.chances[:n])

    def with_adapters(self, adapters: Adapters | None) -> PassRequest:
        """Return the request with these LoRA adapters; None: with its own."""
        if adapters is None:
            return self
        return replace(self, what=replace(self.what, adapters=adapters))


# Yields requests for passes, is sent their results, and returns a T.
Work = Generator[PassRequest, PassResult, T]


def run_requests(
    context: Context,
    requests: Sequence[PassRequest],
    shared_us: tuple[float, ...] = (),
    n_rests: int = 0,
) -> list[PassResult]:
    """Run the rows of all requests in one pass. The requests must need passes of one kind, see
    ``Pass.joins``.

    shared_us, n_rests: what the results tell, see ``BatchLoad``.

    Raises what Context.run does.
    """
    if len(requests) == 1:
        return [run_request(context, requests[0])]
    what = Pass.joined([request.what for request in requests])
    start = time.perf_counter_ns()
    result = context.run(Rows.joined(request.rows for request in requests), what)
    context.wait()  # or the text that reads its results first would seem to take all of the time
    us = (time.perf_counter_ns() - start) // 1000
    results, first = [], 0
    n_all = sum(len(request.rows) for request in requests)
    for request in requests:
        n = len(request.rows)
        load = BatchLoad(len(requests) - 1, n_all - n, shared_us, n_rests)
        results.append(result.part(first, n, us, load))
        first += n
    return results


def run_request(context: Context, request: PassRequest) -> PassResult:
    """Run the rows of one request. Raises what Context.run does."""
    start = time.perf_counter_ns()
    result = context.run(request.rows, request.what)
    result.us = (time.perf_counter_ns() - start) // 1000
    return result


def resumed(coroutine: Generator[Q, A, T], outcome: A | Exception | None) -> Q:
    """Return what a coroutine yields next, sent an answer or with an error raised inside it; None
    begins it."""
    if isinstance(outcome, Exception):
        return coroutine.throw(outcome)
    return coroutine.send(outcome)  # type: ignore[arg-type]  # None begins it


def drive(coroutine: Generator[Q, A, T], respond: Callable[[Q], A]) -> T:
    """Run a coroutine, sending it the response to everything that it yields, and return its result.

    Errors of ``respond`` that are a SelfSpecError are raised inside the coroutine.
    """
    outcome: A | Exception | None = None
    try:
        while True:
            request = resumed(coroutine, outcome)
            try:
                outcome = respond(request)
            except SelfSpecError as error:
                outcome = error
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        coroutine.close()


def run(context: Context, work: Work[T]) -> T:
    """Do one piece of work alone, with a pass for each request."""
    return drive(work, partial(run_request, context))


def timed(work: Work[T]) -> Work[tuple[T, int]]:
    """Do some work; also return its microseconds, without those spent waiting for passes of other
    sequences. It passes requests on, which ``drive`` answers."""
    ns, start = 0, time.perf_counter_ns()
    outcome: PassResult | Exception | None = None
    with closing(work):
        try:
            while True:
                request = resumed(work, outcome)
                ns += time.perf_counter_ns() - start
                try:
                    outcome = yield request
                    ns += 1000 * outcome.us
                except SelfSpecError as error:
                    outcome = error
                start = time.perf_counter_ns()
        except StopIteration as end:
            return end.value, (ns + time.perf_counter_ns() - start) // 1000
