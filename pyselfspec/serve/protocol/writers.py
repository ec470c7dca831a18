"""Responses made from events of jobs: one JSON object, or a stream of events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...runtime.logprobs import LogProbs
from ..engine.jobs import Delta, Finished, Job, Progress, TokenText
from ..service import Service
from .auth import owner_of
from .errors import ApiError, as_api_error, json_response, to_json
from .events import JobEvents, Quiet, until_disconnect
from .response_fields import new_id, token_fields, usage
from .schemas import TextRequest

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not buffer it

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiForm:
    """How an API writes errors and streams. error_body: writes an error. ping: what a stream has
    while nothing happens, so that clients keep waiting."""

    error_body: Callable[[ApiError], Json] = ApiError.body
    media_type: str = SSE
    ping: bytes = b": ping\n\n"

    def encode(self, event: Json) -> bytes:
        """Return an event as bytes of a stream: a line, or a server-sent event, which has a name
        where the API repeats it in the field "type"."""
        if self.media_type == NDJSON:
            return to_json(event) + b"\n"
        name = f"event: {event['type']}\n".encode() if "type" in event else b""
        return name + b"data: " + to_json(event) + b"\n\n"


OPENAI = ApiForm()


@dataclass(slots=True)
class Answer:
    """The deltas of one job, added up."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[tuple[str, LogProbs]] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    us: int = 0
    end: Finished | None = None

    def observe(self, event: Delta | Finished) -> None:
        if isinstance(event, Finished):
            self.end = event
            return
        self.pieces.append(event.text)
        self.logprobs += event.logprobs
        self.tokens += event.tokens
        self.us += event.us

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finished(self) -> Finished:
        assert self.end is not None
        return self.end


class ResponseWriter(ABC):
    """Writes one response in the format of a protocol, whole or as events of a stream.

    Knows neither HTTP nor the engine. i is the index of an answer in the request.
    """

    FORM: ClassVar[ApiForm] = OPENAI
    END: ClassVar[bytes] = b""  # after the last event

    def __init__(self, *, stream: bool) -> None:
        self.stream = stream

    @abstractmethod
    def whole(self, answers: Sequence[Answer]) -> Json:
        """Return the response without a stream."""

    def first(self, n: int) -> list[Json]:
        """Return the events before any text of n answers."""
        return []

    def chunks(self, i: int, event: Progress | Delta | Finished) -> list[Json]:
        """Return the events for an event of an answer."""
        match event:
            case Progress():
                return self.progress(i, event)
            case Delta():
                return self.delta(i, event)
            case Finished():
                return self.end(i, event)

    def progress(self, i: int, progress: Progress) -> list[Json]:
        """Return the events for the reading of a prompt; by default the protocol has none."""
        return []

    @abstractmethod
    def delta(self, i: int, delta: Delta) -> list[Json]:
        """Return the events for a delta."""

    @abstractmethod
    def end(self, i: int, finished: Finished) -> list[Json]:
        """Return the events for the end of an answer."""

    def last(self, found: Sequence[Finished]) -> list[Json]:
        """Return the events after all answers have ended."""
        return []

    def error(self, error: ApiError) -> list[Json]:
        """Return the events for an error after the stream has begun."""
        return [self.FORM.error_body(error)]


class ChoiceWriter(ResponseWriter):
    """Writes completions and chat completions of OpenAI's API, whose answers are choices.

    n_prompt: tokens of all prompts.
    """

    END = b"data: [DONE]\n\n"
    OBJECT: ClassVar[str]  # the field "object" of a whole response
    CHUNK_OBJECT: ClassVar[str]
    ID_PREFIX: ClassVar[str]

    def __init__(self, service: Service, request: TextRequest, n_prompt: int) -> None:
        super().__init__(stream=request.stream)
        self.request = request
        self._model = service.model
        self._n_prompt = n_prompt
        self._head = {
            "id": new_id(self.ID_PREFIX),
            "created": int(time.time()),
            "model": service.settings.name,
        }

    def whole(self, answers: Sequence[Answer]) -> Json:
        choices = [self._choice(i, answer) for i, answer in enumerate(self.chosen(answers))]
        body = self._head | {"object": self.OBJECT, "choices": choices}
        body["usage"] = usage(self._n_prompt, [each.finished for each in answers])
        if self.request.shows_tokens:
            tokens = [token for each in answers for token in each.tokens]
            body["pyselfspec"] = token_fields(tokens, sum(each.us for each in answers))
        return body

    def last(self, found: Sequence[Finished]) -> list[Json]:
        if not self.request.includes_usage:
            return []
        body = self._head | {"object": self.CHUNK_OBJECT, "choices": []}
        return [body | {"usage": usage(self._n_prompt, found)}]

    def chosen(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Return the answers that become choices."""
        return answers

    @abstractmethod
    def _choice(self, i: int, answer: Answer) -> Json: ...

    def _chunk(self, choice: Json, delta: Delta | None = None) -> Json:
        body = self._head | {"object": self.CHUNK_OBJECT, "choices": [choice]}
        if self.request.shows_tokens and delta is not None:
            body["pyselfspec"] = token_fields(delta.tokens, delta.us)
        return body


async def respond(
    service: Service, request: Request, jobs: Sequence[Job], writer: ResponseWriter
) -> Response:
    """Run the jobs and return the response, a stream if the client asks for one.

    Raises ClientGone and ApiError. A stream that has begun reports errors as events.
    """
    start = time.monotonic()
    await service.open_corpora(jobs)
    events = service.submit(jobs, owner_of(request))
    if writer.stream:
        try:  # a bad request gets a status of its own
            await events.wait_for_start(request)
        except BaseException:
            events.close()
            raise
        body = _stream_body(service, events, len(jobs), writer, start)
        return StreamingResponse(body, media_type=writer.FORM.media_type, headers=HEADERS)
    answers = [Answer() for _ in jobs]

    async def collect() -> None:
        async for i, event in events:
            if isinstance(event, Delta | Finished):
                _observe(service, answers, i, event, start)

    with events:
        await until_disconnect(request, collect())
    service.metrics.answer.observe(time.monotonic() - start)
    return json_response(writer.whole(answers))


def _observe(
    service: Service, answers: Sequence[Answer], i: int, event: Delta | Finished, start: float
) -> None:
    if isinstance(event, Delta) and not any(each.pieces for each in answers):
        service.metrics.first_token.observe(time.monotonic() - start)
    answers[i].observe(event)


async def _stream_body(
    service: Service, events: JobEvents, n: int, writer: ResponseWriter, start: float
) -> AsyncIterator[bytes]:
    answers, encode = [Answer() for _ in range(n)], writer.FORM.encode
    with events:
        try:
            for chunk in writer.first(n):
                yield encode(chunk)
            async for i, event in events:
                if isinstance(event, Quiet):
                    yield writer.FORM.ping
                    continue
                if not isinstance(event, Progress):
                    _observe(service, answers, i, event, start)
                for chunk in writer.chunks(i, event):
                    yield encode(chunk)
            for chunk in writer.last([each.finished for each in answers]):
                yield encode(chunk)
        except Exception as error:
            for chunk in writer.error(as_api_error(error)):
                yield encode(chunk)
            return
    service.metrics.answer.observe(time.monotonic() - start)
    if writer.END:
        yield writer.END
