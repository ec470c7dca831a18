"""How drafters and texts ask for passes: they yield requests and are sent answers, and whoever
drives them decides what goes through the model together.

So one text alone, and several whose rows share a pass, run the same code.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..errors import ArgumentError, SelfSpecError
from ..runtime.passes import FULL, Hidden, Pass, Rows
from .types import ALONE, Company, Law

if TYPE_CHECKING:
    from ..runtime.context import Context

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """Rows that are to go through a pass."""

    rows: Rows
    what: Pass = FULL


class Draws(Protocol):
    """A sampler, see runtime.sampling.Sampler."""

    def begin(self, prompt: Sequence[int]) -> None: ...

    def sample(self, context: Context, row: int) -> int: ...

    def law(self, context: Context, row: int) -> Law: ...

    def accept(self, token: int) -> None: ...


class Answer:
    """What a pass left of a request's rows; logits can be read until the context's next pass.

    hidden: the states that were asked for, one per row of the request.
    us: microseconds that the pass took.
    company: what else was in it.
    """

    __slots__ = ("_context", "_first", "_serial", "company", "hidden", "us")

    def __init__(
        self, context: Context, first: int, hidden: Hidden | None, us: int, company: Company
    ) -> None:
        self._context = context
        self._serial = context.n_decodes
        self._first = first  # of the request's rows in the pass
        self.hidden = hidden
        self.us = us
        self.company = company

    def argmax(self, row: int) -> tuple[int, float]:
        """The most likely token after a row, and its probability, 0..1."""
        return self._context.argmax(self._row(row))

    def runners_up(
        self, row: int, best: tuple[int, float], n: int, p_min: float
    ) -> list[tuple[int, float]]:
        """The next likeliest tokens after a row, see Context.runners_up."""
        return self._context.runners_up(self._row(row), best, n, p_min)

    def best(self, row: int) -> int:
        """The most likely token after a row."""
        return self._context.best(self._row(row))

    def draw(self, sampler: Draws, row: int) -> int:
        """The token that a sampler draws after a row."""
        return sampler.sample(self._context, self._row(row))

    def law(self, sampler: Draws, row: int) -> Law:
        """The law by which a sampler would draw after a row."""
        return sampler.law(self._context, self._row(row))

    def _row(self, row: int) -> int:
        if self._serial != self._context.n_decodes:
            raise ArgumentError("the context has decoded again; read an answer before the next one")
        return self._first + row


Work = Generator[Request, Answer, T]


def answers(context: Context, requests: Sequence[Request]) -> list[Answer]:
    """Run the rows of all requests in one pass. Their passes must be of one kind, see Pass.joins.

    Raises what Context.run does.
    """
    if len(requests) == 1:
        return [answer(context, requests[0])]
    what = requests[0].what
    entering = [request.what.enter for request in requests if request.what.enter is not None]
    if entering:
        what = replace(what, enter=Hidden.joined(entering))
    start = time.perf_counter_ns()
    hidden = context.run(Rows.joined(request.rows for request in requests), what).hidden
    us = (time.perf_counter_ns() - start) // 1000
    found, first = [], 0
    n_all = sum(len(request.rows) for request in requests)
    for request in requests:
        n = len(request.rows)
        states = None if hidden is None else hidden[first : first + n]
        company = Company(len(requests) - 1, n_all - n)
        found.append(Answer(context, first, states, us, company))
        first += n
    return found


def answer(context: Context, request: Request) -> Answer:
    """Run the rows of one request. Raises what Context.run does."""
    start = time.perf_counter_ns()
    hidden = context.run(request.rows, request.what).hidden
    return Answer(context, 0, hidden, (time.perf_counter_ns() - start) // 1000, ALONE)


def run(context: Context, work: Work[T]) -> T:
    """Do one piece of work by itself, a pass per request. Errors of passes reach the work first."""
    with closing(work):
        try:
            request = next(work)
            while True:
                try:
                    found = answer(context, request)
                except SelfSpecError as error:
                    request = work.throw(error)
                else:
                    request = work.send(found)
        except StopIteration as end:
            value: T = end.value
            return value


def timed(work: Work[T]) -> Work[tuple[T, int]]:
    """The same work; also returns its microseconds, without those spent waiting for others."""
    ns, start = 0, time.perf_counter_ns()
    with closing(work):
        try:
            request = next(work)
            while True:
                ns += time.perf_counter_ns() - start
                try:
                    found = yield request
                except SelfSpecError as error:
                    start = time.perf_counter_ns()
                    request = work.throw(error)
                else:
                    ns, start = ns + 1000 * found.us, time.perf_counter_ns()
                    request = work.send(found)
        except StopIteration as end:
            return end.value, (ns + time.perf_counter_ns() - start) // 1000
