"""POST /v1/chat/completions: messages, and the model's answer or the functions that it calls; and
/apply-template, the prompt of a chat as text, in the format of llama-server."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from ...answers.parts import Called, Part, Reasoning, Said
from ...runtime.logprobs import LogProbs
from ..chat_requests.chats import Chat, chat_text, open_chat, require_template
from ..chat_requests.tools import ToolUse
from ..engine.jobs import Delta, Finished, Progress
from ..protocol.errors import json_response
from ..protocol.response_fields import finish_reason, progress_fields
from ..protocol.schemas import ChatRequest
from ..protocol.writers import Answer, ChoiceWriter, Json, respond
from ..service import Service
from .routers import STREAMS, Writing, aside, router

ROUTER = router()


@ROUTER.post("/chat/completions", include_in_schema=False)
@ROUTER.post("/v1/chat/completions", responses=STREAMS)
async def post_chat(service: Writing, body: ChatRequest, request: Request) -> Response:
    """Answer a chat."""
    chat = await open_chat(service, body)
    return await respond(service, request, chat.jobs, ChatWriter(service, body, chat))


@ROUTER.post("/apply-template")
async def post_apply_template(service: Writing, body: ChatRequest) -> Response:
    """Return the prompt of a chat."""
    body.require_supported()
    template, use = require_template(service), ToolUse.of(body)
    return json_response({"prompt": await aside(chat_text, template, body, use)})


class ChatWriter(ChoiceWriter):
    OBJECT = "chat.completion"
    CHUNK_OBJECT = "chat.completion.chunk"
    ID_PREFIX = "chatcmpl"

    def __init__(self, service: Service, request: ChatRequest, chat: Chat) -> None:
        super().__init__(service, request, chat.n_prompt)
        self._has_logprobs = bool(request.logprobs)
        self._readers = [chat.reader() for _ in chat.jobs]
        self._n_calls = [0 for _ in chat.jobs]

    def first(self, n: int) -> list[Json]:
        return [self._delta_chunk(i, {"role": "assistant", "content": ""}) for i in range(n)]

    def progress(self, i: int, progress: Progress) -> list[Json]:
        return [self._delta_chunk(i, {}) | progress_fields(progress)]

    def delta(self, i: int, delta: Delta) -> list[Json]:
        """Return chunks; also one without text, where it has tokens or probabilities to show."""
        fields = [self._fields(i, part) for part in self._readers[i].push(delta.text)]
        if not fields and (self.request.shows_tokens or delta.logprobs):
            fields = [{}]
        return [
            self._delta_chunk(i, each, delta=None if k else delta) for k, each in enumerate(fields)
        ]

    def end(self, i: int, finished: Finished) -> list[Json]:
        rest = [self._delta_chunk(i, self._fields(i, part)) for part in self._readers[i].finish()]
        return [*rest, self._delta_chunk(i, {}, reason=_reason(finished, self._n_calls[i]))]

    def _fields(self, i: int, part: Part) -> Json:
        """Return the delta of a part."""
        match part:
            case Said():
                return {"content": part.text}
            case Reasoning():
                return {"reasoning_content": part.text}
        self._n_calls[i] += 1
        return {"tool_calls": [{"index": self._n_calls[i] - 1, **part.call.to_dict()}]}

    def _choice(self, i: int, answer: Answer) -> Json:
        parts = [*self._readers[i].push(answer.text), *self._readers[i].finish()]
        text = "".join(part.text for part in parts if isinstance(part, Said))
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        calls = [part.call for part in parts if isinstance(part, Called)]
        message: Json = {"role": "assistant", "content": None if calls and not text else text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [call.to_dict() for call in calls]
        return {
            "index": i,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": _reason(answer.finished, len(calls)),
        }

    def _delta_chunk(
        self, i: int, fields: Json, *, reason: str | None = None, delta: Delta | None = None
    ) -> Json:
        logprobs = None if delta is None else self._logprobs(delta.logprobs)
        choice = {"index": i, "delta": fields, "logprobs": logprobs, "finish_reason": reason}
        return self._chunk(choice, delta)

    def _logprobs(self, found: Sequence[tuple[str, LogProbs]]) -> Json | None:
        if not self._has_logprobs:
            return None

        def entry(token: int, logprob: float) -> Json:
            piece = self._model.piece(token)
            text = piece.decode(errors="replace")
            return {"token": text, "logprob": logprob, "bytes": list(piece)}

        content = [
            entry(each.token, each.logprob)
            | {"token": text, "top_logprobs": [entry(*pair) for pair in each.top]}
            for text, each in found
        ]
        return {"content": content, "refusal": None}


def _reason(finished: Finished, n_calls: int) -> str:
    return "tool_calls" if n_calls else finish_reason(finished)
