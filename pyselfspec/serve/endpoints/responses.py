"""POST /v1/responses: OpenAI's Responses API, which Codex and OpenAI's packages for agents use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...answers.parts import Called, Part, Reasoning, Said
from ...answers.reader import AnswerReader
from ..chat_requests.chats import open_chat
from ..engine.jobs import Delta, Finished
from ..protocol.auth import owner_of
from ..protocol.errors import ApiError, to_json
from ..protocol.response_fields import finish_reason, new_id, statistics
from ..protocol.writers import Answer, Json, ResponseWriter, respond
from ..store.response_store import Stored
from .responses_request import (
    CUSTOM,
    FUNCTION,
    INPUT,
    ResponsesRequest,
    custom_input,
    listed,
    text_part,
    to_chat,
)
from .routers import STREAMS, Writing, router
from .stored_responses import PATH, conversation

ROUTER = router()

# Fields of a request that its response repeats as they are.
_REPEATED = {"instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p"}


@ROUTER.post(PATH, responses=STREAMS)
async def post_responses(service: Writing, body: ResponsesRequest, request: Request) -> Response:
    """Answer a chat, and keep the response."""
    items = conversation(service, body, request)
    chat = await open_chat(service, to_chat(body, items))

    head = response_head(body, service.settings.name)
    kept = tuple(map(listed, items))
    try:  # whether the answer can be written and kept is known before it is generated
        n_chars = len(to_json([kept, head]))
    except ValueError:
        raise ApiError(400, "JSON has no NaN and no Infinity; leave them out") from None

    def keep(response: Json) -> None:
        size = n_chars + len(to_json(response["output"]))
        service.stored.put(owner_of(request), Stored(response, kept, size))

    def n_tokens(text: str) -> int:
        return len(service.model.tokenize(text, add_special=False)) if text else 0

    writer = ResponseApiWriter(
        head,
        chat.reader(),
        chat.n_prompt,
        n_tokens=n_tokens,
        keep=None if body.store is False else keep,
        stream=bool(body.stream),
    )
    return await respond(service, request, chat.jobs, writer)


def error_event(error: ApiError) -> Json:
    """Return the event of an error in a stream whose response is not known."""
    code = error.code or "server_error"
    details = {"code": code, "message": str(error), "param": error.param}
    return {"type": "error", "sequence_number": 0, **details}


def response_head(body: ResponsesRequest, name: str) -> Json:
    """Return the fields of a response that are known before its answer. name: of the model."""
    choice: Any = body.tool_choice or "auto"
    return {
        "id": new_id("resp", "_"),
        "object": "response",
        "created_at": int(time.time()),
        "model": name,
        "error": None,
        "incomplete_details": None,
        **body.model_dump(include=_REPEATED),
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None},
        "store": body.store is not False,
        "text": {"format": {"type": "text"}},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [
            ({"parameters": {}, "strict": False} if tool.type == FUNCTION else {})
            | tool.model_dump(exclude_none=True)
            for tool in body.functions
        ],
        "truncation": "disabled",
        "usage": None,
    }


@dataclass(slots=True)
class _Output:
    """An item of the output. pieces: of its text."""

    kind: type[Part]
    item: Json
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def key(self) -> str:
        """The field of a call that has its text."""
        return "arguments" if self.item["type"] == "function_call" else INPUT

    def part(self, text: str) -> Json:
        """Return a text as a part of the content, which calls have none of."""
        return text_part(text) if self.kind is Said else {"type": "reasoning_text", "text": text}

    def closed(self, status: str) -> Json:
        """Return the item at its end."""
        is_call, text = self.kind is Called, self.text
        last = {self.key: text} if is_call else {"content": [self.part(text)]}
        return self.item | {"status": status} | last


class ResponseApiWriter(ResponseWriter):
    """Writes a response. head: its fields that are known before. n_prompt: tokens of the prompt.
    n_tokens: counts those of a text. keep: receives the response."""

    def __init__(
        self,
        head: Json,
        reader: AnswerReader,
        n_prompt: int,
        *,
        n_tokens: Callable[[str], int] = len,
        keep: Callable[[Json], None] | None = None,
        stream: bool,
    ) -> None:
        super().__init__(stream=stream)
        self._head = head
        self._custom = {tool["name"] for tool in head["tools"] if tool["type"] == CUSTOM}
        self._reader = reader
        self._n_prompt = n_prompt
        self._n_tokens = n_tokens
        self._keep = keep
        self._n_events = 0
        self._outputs: list[_Output] = []
        self._done: list[Json] = []  # items that have ended

    def whole(self, answers: Sequence[Answer]) -> Json:
        [answer] = answers
        for part in (*self._reader.push(answer.text), *self._reader.finish()):
            self._part(part)
        return self._finished(answer.finished)

    def first(self, n: int) -> list[Json]:
        response = self._head | {"status": "in_progress", "output": []}
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def delta(self, i: int, delta: Delta) -> list[Json]:
        return [event for part in self._reader.push(delta.text) for event in self._part(part)]

    def end(self, i: int, finished: Finished) -> list[Json]:
        events = [event for part in self._reader.finish() for event in self._part(part)]
        events += self._close(_status(finished))
        response = self._finished(finished)
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def error(self, error: ApiError) -> list[Json]:
        details = {"code": "server_error", "message": str(error)}
        response = self._head | {"status": "failed", "output": self._done, "error": details}
        return [self._event("response.failed", response=response)]

    def _event(self, kind: str, **fields: Any) -> Json:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **fields}

    def _part(self, part: Part) -> list[Json]:
        """Return the events of a part, which goes on with the last item or begins one."""
        events = []
        is_open = len(self._outputs) > len(self._done)
        if not is_open or self._outputs[-1].kind is not type(part) or isinstance(part, Called):
            events = self._close()
            match part:
                case Said():
                    item: Json = {"id": new_id("msg", "_"), "type": "message"}
                    item |= {"role": "assistant", "content": []}
                case Reasoning():
                    item = {"id": new_id("rs", "_"), "type": "reasoning"}
                    item |= {"summary": [], "content": []}
                case Called(call):
                    item = {"id": new_id("fc", "_"), "type": "function_call", "arguments": ""}
                    if call.name in self._custom:
                        item = {"id": new_id("ctc", "_"), "type": "custom_tool_call", INPUT: ""}
                    item |= {"call_id": call.id, "name": call.name}
            output = _Output(type(part), item | {"status": "in_progress"})
            self._outputs.append(output)
            events.append(self._item_event("response.output_item.added", item=output.item))
            if not isinstance(part, Called):
                empty = output.part("")
                events.append(self._content_event("response.content_part.added", part=empty))
        if isinstance(part, Called):
            text = part.call.arguments
            text = custom_input(text) if part.call.name in self._custom else text
        else:
            text = part.text
        self._outputs[-1].pieces.append(text)
        return [*events, self._text_event("delta", delta=text)]

    def _close(self, status: str = "completed") -> list[Json]:
        """Return the events at the end of the last item."""
        if len(self._outputs) == len(self._done):
            return []
        output = self._outputs[-1]
        item, text = output.closed(status), output.text
        if output.kind is Called:
            events = [self._text_event("done", name=item["name"], **{output.key: text})]
        else:
            events = [
                self._text_event("done", text=text),
                self._content_event("response.content_part.done", part=output.part(text)),
            ]
        events.append(self._item_event("response.output_item.done", item=item))
        self._done.append(item)
        return events

    def _text_event(self, end: str, **fields: Any) -> Json:
        """Return an event about the text of the last item. end: of its name."""
        output = self._outputs[-1]
        if output.kind is Called:
            kind = f"response.{output.item['type']}_{output.key}.{end}"
            return self._item_event(kind, item_id=output.item["id"], **fields)
        if output.kind is Reasoning:
            return self._content_event(f"response.reasoning_text.{end}", **fields)
        return self._content_event(f"response.output_text.{end}", logprobs=[], **fields)

    def _item_event(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, output_index=len(self._outputs) - 1, **fields)

    def _content_event(self, kind: str, **fields: Any) -> Json:
        name = self._outputs[-1].item["id"]
        return self._item_event(kind, item_id=name, content_index=0, **fields)

    def _finished(self, finished: Finished) -> Json:
        status = _status(finished)
        self._close(status)
        response = self._head | {"status": status, "output": self._done}
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        stats = finished.stats
        reasoning = "".join(each.text for each in self._outputs if each.kind is Reasoning)
        n_reused = min(self._n_prompt, stats.n_prompt_reused)
        response["usage"] = {
            "input_tokens": self._n_prompt,
            "input_tokens_details": {"cached_tokens": n_reused, "cache_write_tokens": 0},
            "output_tokens": stats.n_generated,
            "output_tokens_details": {
                "reasoning_tokens": min(self._n_tokens(reasoning), stats.n_generated)
            },
            "total_tokens": self._n_prompt + stats.n_generated,
            "pyselfspec": statistics([finished]),
        }
        if self._keep is not None:
            self._keep(response)
        return response


def _status(finished: Finished) -> str:
    return "completed" if finish_reason(finished) == "stop" else "incomplete"
