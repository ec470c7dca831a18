"""POST /v1/chat/completions: messages, and the model's answer or the functions that it calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import ArgumentError
from ..runtime import json_schema
from ..runtime.logprobs import LogProbs
from ..templates.messages import ASSISTANT, FIELDS, ToolCall
from ..templates.template import ChatTemplate
from .errors import ApiError
from .fields import finish_reason
from .jobs import Delta, Finished, Job
from .responses import Answer, Json, ResponseWriter, respond
from .schemas import ChatRequest
from .service import Service
from .tools import CallReader, ToolUse, describe_tools


async def answer(service: Service, body: ChatRequest, request: Request) -> Response:
    """Handle a request. Raises ApiError, ClientGone, and errors of the job."""
    body.require_supported()
    template = service.template
    if template is None:
        raise ApiError(
            400,
            f"{service.settings.name} has no chat template, so it was not trained to chat; use "
            "/v1/completions, or start the server with --chat-template",
            param="messages",
            code="no_chat_template",
        )
    use = ToolUse.of(body)
    prompt = await asyncio.to_thread(_tokens, template, body, use)
    grammar = await asyncio.to_thread(_grammar, body, use)
    reader = service.requests
    n_predict = reader.n_predict(prompt, body.max_completion_tokens or body.max_tokens, None)
    jobs = [
        Job(
            prompt=prompt,
            n_predict=n_predict,
            sampling=sampling,
            drafting=reader.drafting(body),
            stop=(*body.stops, *template.stop),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            shows_tokens=body.shows,
        )
        for sampling in reader.samplings(body, grammar)
    ]
    return await respond(service, request, jobs, ChatWriter(service, body, len(prompt), use))


def _tokens(template: ChatTemplate, body: ChatRequest, use: ToolUse) -> tuple[int, ...]:
    """Return the prompt. Ignores fields of messages that a template does not show."""
    messages = [
        {key: value for key, value in message.items() if key in FIELDS and value is not None}
        for message in body.messages
    ]
    renders_tools = "tools" in template.source
    if not renders_tools:
        messages = describe_tools(messages, use)
    tools = use.tools if renders_tools and use.tools else None
    begun = _begun(messages) if body.continues else ""
    tokens = template.tokens(messages[:-1] if begun else messages, tools=tools)
    return (*tokens, *template.answer_tokens(begun))


def _begun(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the answer to continue. Raises ApiError if the last message is not an answer."""
    role, text = messages[-1].get("role"), messages[-1].get("content")
    if role != ASSISTANT or not isinstance(text, str) or not text or len(messages) < 2:
        raise ApiError(
            400,
            "to continue an answer, end the messages with it: role assistant, content a string",
            param="messages",
        )
    return text


def _grammar(body: ChatRequest, use: ToolUse) -> str | None:
    """Return the GBNF grammar of the answer, if any. Raises ApiError for an unsupported schema."""
    try:
        return use.grammar() if use.is_required else _format_grammar(body)
    except ArgumentError as error:
        param = "tools" if use.is_required else "response_format"
        raise ApiError(400, str(error), param=param) from None


def _format_grammar(body: ChatRequest) -> str | None:
    style = body.response_format
    if style is None or style.type == "text":
        return body.grammar
    if style.type == "json_object":
        return json_schema.to_gbnf({"type": "object"})
    if style.json_schema is None:
        raise ApiError(400, "json_schema is missing", param="response_format.json_schema")
    return json_schema.to_gbnf(style.json_schema.schema_)


class ChatWriter(ResponseWriter):
    OBJECT = "chat.completion"
    CHUNK_OBJECT = "chat.completion.chunk"
    ID_PREFIX = "chatcmpl"

    def __init__(self, service: Service, request: ChatRequest, n_prompt: int, use: ToolUse) -> None:
        super().__init__(service, request, n_prompt)
        self._has_logprobs = bool(request.logprobs)
        self._readers = [CallReader(use) for _ in range(request.n)]

    def first(self, n: int) -> list[Json]:
        return [self._delta_chunk(i, {"role": "assistant", "content": ""}) for i in range(n)]

    def delta(self, i: int, delta: Delta) -> list[Json]:
        """Return a chunk; also one without text, where it has tokens or probabilities to show."""
        text = self._readers[i].push(delta.text)
        if not text and not self.request.shows and not delta.logprobs:
            return []
        return [self._delta_chunk(i, {"content": text} if text else {}, delta=delta)]

    def end(self, i: int, finished: Finished) -> list[Json]:
        text, calls = self._readers[i].finish()
        chunks = [self._delta_chunk(i, {"content": text})] if text else []
        if calls:
            numbered = [{"index": k, **call.to_dict()} for k, call in enumerate(calls)]
            chunks.append(self._delta_chunk(i, {"tool_calls": numbered}))
        return [*chunks, self._delta_chunk(i, {}, reason=_reason(finished, calls))]

    def _choice(self, i: int, answer: Answer) -> Json:
        reader = self._readers[i]
        text = reader.push(answer.text)
        rest, calls = reader.finish()
        text += rest
        message: Json = {"role": "assistant", "content": None if calls and not text else text}
        if calls:
            message["tool_calls"] = [call.to_dict() for call in calls]
        return {
            "index": i,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": _reason(answer.finished, calls),
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
        return {"content": [self._token(text, each) for text, each in found], "refusal": None}

    def _token(self, text: str, found: LogProbs) -> Json:
        top = [self._entry(token, logprob) for token, logprob in found.top]
        return self._entry(found.token, found.logprob) | {"token": text, "top_logprobs": top}

    def _entry(self, token: int, logprob: float) -> Json:
        piece = self._model.piece(token)
        text = piece.decode(errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(piece)}


def _reason(finished: Finished, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls else finish_reason(finished)
