"""From events of jobs to responses: all at once, or as server-sent events. What they look like is a
matter of the endpoint, see `Form`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import StreamingResponse

from ..runtime.logprobs import LogProbs
from .errors import as_api_error, to_json
from .jobs import Finished, Grown, Job, Origin
from .service import Service, Writing, unless_gone

SSE = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy may collect it
DONE = b"data: [DONE]\n\n"

Chunk = dict[str, Any]


@dataclass(slots=True)
class Made:
    """All that has come of a job."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[tuple[str, LogProbs]] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    us: int = 0
    end: Finished | None = None

    def observe(self, event: Grown | Finished) -> None:
        if isinstance(event, Finished):
            self.end = event
            return
        self.pieces.append(event.text)
        self.logprobs += event.logprobs
        self.origins += event.origins
        self.us += event.us

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finished(self) -> Finished:
        assert self.end is not None
        return self.end


class Form(Protocol):
    """How chunks of a stream are written down; i: the number of a choice, of n."""

    def first(self, n: int) -> list[Chunk]: ...

    def grown(self, i: int, grown: Grown) -> list[Chunk]: ...

    def ended(self, i: int, finished: Finished) -> list[Chunk]: ...

    def last(self, found: Sequence[Finished]) -> list[Chunk]: ...


async def finish(service: Service, request: Request, jobs: Sequence[Job]) -> list[Made]:
    """All answers. A client that goes away ends them."""
    start = time.monotonic()
    made = [Made() for _ in jobs]

    async def all_of(writing: Writing) -> None:
        async for i, event in writing:
            if isinstance(event, Grown):
                _observe_first(service, made, start)
            made[i].observe(event)

    with service.write(jobs) as writing:
        await unless_gone(request, all_of(writing))
    service.metrics.answer.observe(time.monotonic() - start)
    return made


def _observe_first(service: Service, made: Sequence[Made], start: float) -> None:
    if not any(each.pieces for each in made):
        service.metrics.first_token.observe(time.monotonic() - start)


async def stream(
    service: Service, request: Request, jobs: Sequence[Job], form: Form
) -> StreamingResponse:
    """Answers as they come. What is wrong with a request is said before the first of them, with a
    status of its own; what goes wrong later is an event."""
    start = time.monotonic()
    writing = service.write(jobs)
    try:
        await writing.started(request)
    except BaseException:
        writing.cancel()
        raise
    body = _events(service, writing, len(jobs), form, start)
    return StreamingResponse(body, media_type=SSE, headers=HEADERS)


async def _events(
    service: Service, writing: Writing, n: int, form: Form, start: float
) -> AsyncIterator[bytes]:
    made = [Made() for _ in range(n)]
    with writing:
        try:
            for chunk in form.first(n):
                yield _event(chunk)
            async for i, event in writing:
                if isinstance(event, Grown):
                    _observe_first(service, made, start)
                made[i].observe(event)
                chunks = form.grown(i, event) if isinstance(event, Grown) else form.ended(i, event)
                for chunk in chunks:
                    yield _event(chunk)
            for chunk in form.last([each.finished for each in made]):
                yield _event(chunk)
        except Exception as error:
            yield _event(as_api_error(error).body())
            return
    service.metrics.answer.observe(time.monotonic() - start)
    yield DONE


def _event(chunk: Chunk) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"
