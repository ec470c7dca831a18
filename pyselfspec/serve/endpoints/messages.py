"""POST /v1/messages: Anthropic's Messages API, which Claude Code and Anthropic's SDKs use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ...answers.parts import Called, Part, Reasoning, Said
from ...answers.reader import AnswerReader
from ..chat_requests.chats import open_chat
from ..engine.jobs import Delta, Finished
from ..protocol.errors import TYPES, ApiError, json_response
from ..protocol.response_fields import new_id, statistics, utc_text
from ..protocol.writers import Answer, ApiForm, Json, ResponseWriter, respond
from .input_tokens import n_prompt
from .messages_request import CountRequest, MessagesRequest, to_chat
from .routers import STREAMS, Writing, errors, router

ROUTER = router()

PATH = "/v1/messages"
_TYPES = TYPES | {409: "invalid_request_error", 413: "request_too_large"}


class MessageErrorDetails(BaseModel):
    type: str
    message: str


class MessageError(BaseModel):
    """The body of every response with a status of 400 or above."""

    type: Literal["error"] = "error"
    error: MessageErrorDetails


def error_body(error: ApiError) -> Json:
    """Return an error in the format of this API."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    details = MessageErrorDetails(type=_TYPES.get(error.status, kind), message=str(error))
    return MessageError(error=details).model_dump()


FORM = ApiForm(error_body, ping=b'event: ping\ndata: {"type":"ping"}\n\n')


def is_for(request: Request) -> bool:
    """Return whether a request is by a client of this API, to a path that others have too."""
    return "anthropic-version" in request.headers


def has_path(request: Request) -> bool:
    """Return whether the path of a request belongs to this API alone."""
    return str(request.scope["path"]).startswith(PATH)


def model_card(card: Json) -> Json:
    """Return the entry of a model in this API. card: that of OpenAI's API."""
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": utc_text(datetime.fromtimestamp(card["created"], UTC)),
        "lifecycle": "active",
    }


def model_list(cards: Sequence[Json]) -> Json:
    """Return the list of models in this API. cards: those of OpenAI's API."""
    first, last = cards[0]["id"], cards[-1]["id"]
    data = [model_card(card) for card in cards]
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


@ROUTER.post(PATH, responses=STREAMS | errors(MessageError))
async def post_messages(service: Writing, body: MessagesRequest, request: Request) -> Response:
    """Answer a chat."""
    chat = await open_chat(service, to_chat(body))
    head = {"id": new_id("msg", "_"), "model": service.settings.name}
    stops = body.stop_sequences or ()
    writer = MessageWriter(head, chat.reader(), chat.n_prompt, stops, stream=body.stream)
    return await respond(service, request, chat.jobs, writer)


@ROUTER.post(f"{PATH}/count_tokens", responses=errors(MessageError))
async def post_count_tokens(service: Writing, body: CountRequest) -> Response:
    """Return the number of tokens of a prompt."""
    return json_response({"input_tokens": await n_prompt(service, to_chat(body))})


class MessageWriter(ResponseWriter):
    """Writes a message. head: its fields that are known before. n_prompt: tokens of the prompt.
    stops: stop sequences of the request."""

    FORM = FORM

    def __init__(
        self,
        head: Json,
        reader: AnswerReader,
        n_prompt: int,
        stops: Sequence[str] = (),
        *,
        stream: bool,
    ) -> None:
        super().__init__(stream=stream)
        self._head = head | {"type": "message", "role": "assistant"}
        self._reader = reader
        self._n_prompt = n_prompt
        self._stops = tuple(stops)
        self._n_blocks = 0
        self._open: type[Part] | None = None  # the kind of the block that deltas go on with
        self._has_called = False

    def whole(self, answers: Sequence[Answer]) -> Json:
        [answer] = answers
        joined: list[Part] = []
        for part in (*self._reader.push(answer.text), *self._reader.finish()):
            last = joined[-1] if joined else None
            if isinstance(last, Said | Reasoning) and type(part) is type(last):
                joined[-1] = replace(last, text=last.text + part.text)
            else:
                joined.append(part)
        self._has_called = any(isinstance(part, Called) for part in joined)
        body = self._head | {"content": [_block(part) for part in joined]}
        body |= self._stop(answer.finished)
        return body | {"usage": _usage(self._n_prompt, answer.finished)}

    def first(self, n: int) -> list[Json]:
        usage = {"input_tokens": self._n_prompt, "output_tokens": 0}
        message = self._head | {"content": [], "stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": message | {"usage": usage}}]

    def delta(self, i: int, delta: Delta) -> list[Json]:
        return [event for part in self._reader.push(delta.text) for event in self._events(part)]

    def end(self, i: int, finished: Finished) -> list[Json]:
        rest = [event for part in self._reader.finish() for event in self._events(part)]
        return [
            *rest,
            *self._close(),
            {
                "type": "message_delta",
                "delta": self._stop(finished),
                "usage": _usage(self._n_prompt, finished),
            },
        ]

    def last(self, found: Sequence[Finished]) -> list[Json]:
        return [{"type": "message_stop"}]

    def _events(self, part: Part) -> list[Json]:
        """Return the events of a part, which goes on with the open block or begins one."""
        events: list[Json] = []
        if self._open is not type(part) or isinstance(part, Called):
            events = [
                *self._close(),
                self._event("content_block_start", content_block=_block(part, is_empty=True)),
            ]
            self._open = type(part)
            self._has_called |= isinstance(part, Called)
        match part:
            case Said():
                delta = {"type": "text_delta", "text": part.text}
            case Reasoning():
                delta = {"type": "thinking_delta", "thinking": part.text}
            case Called():
                delta = {"type": "input_json_delta", "partial_json": part.call.arguments}
        return [*events, self._event("content_block_delta", delta=delta)]

    def _close(self) -> list[Json]:
        if self._open is None:
            return []
        event = self._event("content_block_stop")
        self._open = None
        self._n_blocks += 1
        return [event]

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "index": self._n_blocks, **fields}

    def _stop(self, finished: Finished) -> Json:
        reason = "end_turn" if finished.reason in ("eog", "stop") else "max_tokens"
        stopped_by = finished.stopped_by if finished.stopped_by in self._stops else None
        if self._has_called:
            reason = "tool_use"
        elif stopped_by is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stopped_by}


def _block(part: Part, *, is_empty: bool = False) -> Json:
    """Return the block of a part. is_empty: as at its start, before any delta."""
    match part:
        case Said():
            return {"type": "text", "text": "" if is_empty else part.text}
        case Reasoning():
            return {"type": "thinking", "thinking": "" if is_empty else part.text, "signature": ""}
    given = {} if is_empty else json.loads(part.call.arguments)
    return {"type": "tool_use", "id": part.call.id, "name": part.call.name, "input": given}


def _usage(n_prompt: int, finished: Finished) -> Json:
    """Return the field "usage". input_tokens counts what was evaluated."""
    n_reused = min(n_prompt, finished.stats.n_prompt_reused)
    return {
        "input_tokens": n_prompt - n_reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_reused,
        "output_tokens": finished.stats.n_generated,
        "pyselfspec": statistics([finished]),
    }
