"""Chats: the jobs of a chat request, and a reader of each answer. Endpoints of all chat protocols
turn their requests into a ChatRequest, and write the parts of the answers in their own way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ...answers.form import AnswerForm
from ...answers.markers import opened_reasoning
from ...answers.reader import AnswerReader
from ...errors import ArgumentError
from ...runtime import json_schema
from ...runtime.pictures import Picture
from ...speculate.reasoning_budget import ReasoningBudget
from ...templates.messages import ASSISTANT, FIELDS, TOOL
from ...templates.template import ChatTemplate
from ..engine.jobs import Job
from ..protocol.errors import ApiError, invalid
from ..protocol.schemas import ChatRequest
from ..service import Service
from .pictures import UNREAD, TakenPictures, described
from .tool_grammar import answers_to_gbnf
from .tools import ToolUse, describe_tools


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat that can be answered. n_prompt: tokens of the prompt. form: of the answers.
    reasoning_end: the marker that closes reasoning which the prompt has opened, None if it has not.
    """

    jobs: tuple[Job, ...]
    n_prompt: int
    use: ToolUse
    form: AnswerForm
    reasoning_end: str | None

    def reader(self) -> AnswerReader:
        """Return a reader for one answer."""
        return AnswerReader(
            self.form,
            self.use.functions,
            reasoning_end=self.reasoning_end,
            is_call=self.use.is_required,
            n_calls=self.use.n_calls,
        )


async def open_chat(service: Service, body: ChatRequest) -> Chat:
    """Return a chat. Raises ApiError, and errors of the template and of the model."""
    body.require_supported()
    template, use = require_template(service), ToolUse.of(body)
    prompt, pictures = await asyncio.to_thread(chat_tokens, service, body, use)
    grammar = await asyncio.to_thread(_grammar, service, body, use)
    form = await asyncio.to_thread(AnswerForm.of, template.all_sources)
    form = replace(form, calls=form.calls if use.tools else ())
    if grammar is not None or body.reasoning_format == "none":  # the answer is read as it is
        form = replace(form, think=(), silent=())
    shown = service.shown_markers(form)
    if grammar is None and use.strict and not body.continues:
        # None for models that write calls in another form than JSON
        is_strict = dict.fromkeys(use.strict, True)
        sources, functions = template.all_sources, use.functions
        with _schema_errors("tools"):
            grammar = await asyncio.to_thread(
                answers_to_gbnf, form, sources, functions, is_strict, use.n_calls
            )
    reasoning_end = opened_reasoning(service.model, prompt, form, dict(shown))
    budget = _reasoning_budget(template, body, form, reasoning_end)
    if budget is not None and reasoning_end is not None and body.reasoning_budget == 0:
        prompt, budget, reasoning_end = (*prompt, *budget.closing), None, None
    requests = service.requests
    jobs = requests.jobs(
        body,
        prompt,
        grammar,
        requests.n_predict(prompt, body.most_tokens, None),
        body.n,
        stop=(*body.stops, *template.stop),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        shown=shown,
        reasoning_budget=budget,
        pictures=pictures,
    )
    return Chat(tuple(jobs), len(prompt), use, form, reasoning_end)


def require_template(service: Service) -> ChatTemplate:
    """Return the chat template. Raises ApiError for a model without one."""
    if service.template is None:
        raise ApiError(
            400,
            f"{service.settings.name} has no chat template, so it was not trained to chat; use "
            "/v1/completions, or start the server with --chat-template",
            param="messages",
            code="no_chat_template",
        )
    return service.template


def chat_tokens(
    service: Service, body: ChatRequest, use: ToolUse
) -> tuple[tuple[int, ...], tuple[Picture, ...]]:
    """Return the prompt of a request and the images in it."""
    template = require_template(service)
    if service.projector is None:  # an agent goes on after an image that a tool has returned
        results = [
            described([each], UNREAD)[0] if each.get("role") == TOOL else each
            for each in body.messages
        ]
        body = body.model_copy(update={"messages": results})
    messages, tools = _messages(template, body, use)
    variables = _variables(body)
    avoid = (template.all_sources, tools, variables)
    messages, taken = TakenPictures.of(service.projector, service.requests, messages, avoid)
    begun = _begun(messages) if body.continues else ""
    tokens = template.tokens(
        messages[:-1] if begun else messages,
        tools=tools,
        variables=variables,
        inserted={key: picture.tokens for key, picture in taken.pictures.items()},
    )
    return (*tokens, *template.answer_tokens(begun)), tuple(taken.pictures.values())


def chat_text(template: ChatTemplate, body: ChatRequest, use: ToolUse) -> str:
    """Return the prompt of a request as text."""
    messages, tools = _messages(template, body, use)
    begun = _begun(messages) if body.continues else ""
    shown = described(messages[:-1] if begun else messages)
    return template.text(shown, tools=tools, variables=_variables(body)) + begun


def _messages(
    template: ChatTemplate, body: ChatRequest, use: ToolUse
) -> tuple[list[dict[str, Any]], Sequence[Mapping[str, Any]] | None]:
    """Return the messages and tools for the template. Ignores fields of messages that a template
    does not show."""
    messages = [
        {key: value for key, value in message.items() if key in FIELDS and value is not None}
        for message in body.messages
    ]
    renders_tools = "tools" in template.source
    if not renders_tools:
        messages = describe_tools(messages, use)
    return messages, use.tools if renders_tools and use.tools else None


def _variables(body: ChatRequest) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        given.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            given.setdefault("enable_thinking", False)
    return given


def _begun(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the answer to continue. Raises ApiError if the last message is not an answer."""
    role, text = messages[-1].get("role"), messages[-1].get("content")
    if role != ASSISTANT or not isinstance(text, str) or not text or len(messages) < 2:
        raise invalid(
            "messages",
            "to continue an answer, end the messages with it: role assistant, content a string",
        )
    return text


def _grammar(service: Service, body: ChatRequest, use: ToolUse) -> str | None:
    """Return the GBNF grammar of the answer, if any. Raises ApiError for an unsupported schema."""
    style = body.response_format
    with _schema_errors("tools" if use.is_required else "response_format"):
        if use.is_required:
            return json_schema.calls_to_gbnf(use.functions)
        if style is None or style.type == "text":
            return service.requests.grammar(body)
        if style.wanted is None:
            raise invalid("response_format.json_schema", "json_schema is missing")
        return json_schema.to_gbnf(style.wanted)


@contextmanager
def _schema_errors(param: str) -> Iterator[None]:
    """Raise ApiError for a JSON schema that is not supported. param: the field that has it."""
    try:
        yield
    except ArgumentError as error:
        raise invalid(param, str(error)) from None


def _reasoning_budget(
    template: ChatTemplate, body: ChatRequest, form: AnswerForm, reasoning_end: str | None
) -> ReasoningBudget | None:
    """Return the budget of the reasoning, None for no limit."""
    n_tokens = body.reasoning_budget
    pairs = [pair for pair in form.think if reasoning_end in (None, pair[1])]
    if n_tokens is None or n_tokens < 0 or not pairs:
        return None
    opening, close = pairs[0]
    end = f"\n{close}\n\n" if close[1] == "/" else close
    tokens = tuple(template.marker_tokens(end))
    return ReasoningBudget(max(1, n_tokens), opening, close, reasoning_end is not None, tokens)
