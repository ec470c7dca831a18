"""POST /v1/chat/completions: messages, and the model's answer or the functions that it calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..chat.messages import ASSISTANT, FIELDS, ToolCall
from ..chat.template import ChatTemplate
from ..errors import ArgumentError
from ..runtime import json_schema
from ..runtime.logprobs import LogProbs
from .answers import Made, finish, stream
from .errors import ApiError, json_response
from .jobs import Finished, Grown, Job
from .schemas import ChatRequest
from .service import Service, new_id, reason_of, shown, usage
from .tools import CallReader, ToolUse, told

OBJECT = "chat.completion"


async def answer(service: Service, asked: ChatRequest, request: Request) -> Response:
    asked.require_supported()
    template = service.template
    if template is None:
        raise ApiError(
            400,
            f"{service.settings.name} has no chat template, so it was not made to chat; see "
            "/v1/completions, or start the server with a template",
            param="messages",
            code="no_chat_template",
        )
    use = ToolUse.of(asked)
    prompt = await asyncio.to_thread(_tokens, template, asked, use)
    rules = await asyncio.to_thread(_grammar, asked, use)
    n_asked = asked.max_completion_tokens or asked.max_tokens
    n_predict = service.n_predict(prompt, n_asked, None)
    jobs = [
        Job(
            prompt=prompt,
            n_predict=n_predict,
            sampling=sampling,
            drafting=service.drafting(asked),
            stop=(*asked.stops, *template.stop),
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            shows_tokens=asked.shows,
        )
        for sampling in service.samplings(asked, rules)
    ]
    head = {"id": new_id("chatcmpl"), "created": service.now(), "model": service.settings.name}
    form = _Form(service, head, len(prompt), asked, use)
    if asked.stream:
        return await stream(service, request, jobs, form)
    return json_response(form.whole(await finish(service, request, jobs)))


def _tokens(template: ChatTemplate, asked: ChatRequest, use: ToolUse) -> tuple[int, ...]:
    """Fields of messages that say nothing to a model are let pass."""
    messages = [
        {key: value for key, value in message.items() if key in FIELDS and value is not None}
        for message in asked.messages
    ]
    knows_tools = "tools" in template.source
    if not knows_tools:
        messages = told(messages, use)
    tools = use.tools if knows_tools and use.tools else None
    begun = _begun(messages) if asked.continues else ""
    tokens = template.tokens(messages[:-1] if begun else messages, tools=tools)
    return (*tokens, *template.answer_tokens(begun))


def _begun(messages: Sequence[Mapping[str, Any]]) -> str:
    """The answer to continue. Raises ApiError where the last message is none."""
    role, text = messages[-1].get("role"), messages[-1].get("content")
    if role != ASSISTANT or not isinstance(text, str) or not text or len(messages) < 2:
        raise ApiError(
            400,
            "to continue an answer, end the messages with it: role assistant, content a text",
            param="messages",
        )
    return text


def _grammar(asked: ChatRequest, use: ToolUse) -> str | None:
    """What the answer must look like, if anything says so. Raises ApiError for a schema that is
    not supported."""
    try:
        return use.grammar() if use.must else _of_format(asked)
    except ArgumentError as error:
        param = "tools" if use.must else "response_format"
        raise ApiError(400, str(error), param=param) from None


def _of_format(asked: ChatRequest) -> str | None:
    wanted = asked.response_format
    if wanted is None or wanted.type == "text":
        return asked.grammar
    if wanted.type == "json_object":
        return json_schema.to_gbnf({"type": "object"})
    if wanted.json_schema is None:
        raise ApiError(400, "json_schema is missing", param="response_format.json_schema")
    return json_schema.to_gbnf(wanted.json_schema.schema_)


class _Form:
    """How answers are written down."""

    def __init__(
        self,
        service: Service,
        head: dict[str, Any],
        n_prompt: int,
        asked: ChatRequest,
        use: ToolUse,
    ) -> None:
        self._service = service
        self._head = head
        self._n_prompt = n_prompt
        self._asked = asked
        self._use = use
        self._readers = [CallReader(use) for _ in range(asked.n)]

    def whole(self, made: Sequence[Made]) -> dict[str, Any]:
        body = {
            **self._head,
            "object": OBJECT,
            "choices": list(map(self._choice, range(len(made)), made)),
        }
        body["usage"] = usage(self._n_prompt, [each.finished for each in made])
        if self._asked.shows:
            origins = [origin for each in made for origin in each.origins]
            body["pyselfspec"] = shown(origins, sum(each.us for each in made))
        return body

    def _choice(self, i: int, made: Made) -> dict[str, Any]:
        reader = self._readers[i]
        text = reader.push(made.text)
        rest, calls = reader.finish()
        text += rest
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not text else text,
        }
        if calls:
            message["tool_calls"] = [call.to_dict() for call in calls]
        return {
            "index": i,
            "message": message,
            "logprobs": self._logprobs(made.logprobs),
            "finish_reason": _reason(made.finished, calls),
        }

    def first(self, n: int) -> list[dict[str, Any]]:
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(n)]

    def grown(self, i: int, grown: Grown) -> list[dict[str, Any]]:
        """With nothing to say, a chunk still tells of its tokens where these are to be shown."""
        text = self._readers[i].push(grown.text)
        if not text and not self._asked.shows and not grown.logprobs:
            return []
        return [self._chunk(i, {"content": text} if text else {}, grown=grown)]

    def ended(self, i: int, finished: Finished) -> list[dict[str, Any]]:
        text, calls = self._readers[i].finish()
        chunks = [self._chunk(i, {"content": text})] if text else []
        if calls:
            numbered = [{"index": k, **call.to_dict()} for k, call in enumerate(calls)]
            chunks.append(self._chunk(i, {"tool_calls": numbered}))
        return [*chunks, self._chunk(i, {}, reason=_reason(finished, calls))]

    def last(self, found: Sequence[Finished]) -> list[dict[str, Any]]:
        if not self._asked.includes_usage:
            return []
        body = {**self._head, "object": f"{OBJECT}.chunk", "choices": []}
        return [body | {"usage": usage(self._n_prompt, found)}]

    def _chunk(
        self,
        i: int,
        delta: Mapping[str, Any],
        *,
        reason: str | None = None,
        grown: Grown | None = None,
    ) -> dict[str, Any]:
        logprobs = None if grown is None else self._logprobs(grown.logprobs)
        choice = {"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        body = {**self._head, "object": f"{OBJECT}.chunk", "choices": [choice]}
        if self._asked.shows and grown is not None:
            body["pyselfspec"] = shown(grown.origins, grown.us)
        return body

    def _logprobs(self, found: Sequence[tuple[str, LogProbs]]) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        return {"content": [self._token(text, each) for text, each in found], "refusal": None}

    def _token(self, text: str, found: LogProbs) -> dict[str, Any]:
        top = [self._entry(token, logprob) for token, logprob in found.top]
        return self._entry(found.token, found.logprob) | {"token": text, "top_logprobs": top}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._service.model.piece(token)
        text = piece.decode(errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(piece)}


def _reason(finished: Finished, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls else reason_of(finished)
