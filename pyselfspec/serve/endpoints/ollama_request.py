"""Requests of Ollama's API, and what they mean as requests of OpenAI's; and its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, Field
from starlette.requests import Request

from ...util.paths import on_one_line
from ..chat_requests.pictures import IMAGE
from ..protocol.errors import ApiError, invalid
from ..protocol.request_fields import API_CHAT, API_GENERATE, API_OPTIONS
from ..protocol.schemas import (
    N_TOOLS,
    ChatRequest,
    CompletionRequest,
    Nullable,
    ResponseFormat,
    RuledRequest,
    SampledRequest,
    TextRequest,
    Tool,
)
from ..protocol.writers import NDJSON, ApiForm
from .embeddings import Inputs

PATH = "/api/"
TAG = ":latest"  # which Ollama's clients may add to a name
N_NAME = 128  # characters of a name that an error repeats
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = r"(\d+(?:\.\d+)?)(h|ms|m|s|us|µs|ns)"  # of a duration


class Options(SampledRequest):
    """The field "options". num_predict: most tokens; less than 0 is the rest of a slot's share of
    the context."""

    KIND: ClassVar[str] = API_OPTIONS

    num_predict: int | None = Field(None, lt=2**31)

    def set_in(self, request: TextRequest) -> None:
        """Set the fields that OpenAI's and llama-server's requests have for these options."""
        for name in SampledRequest.model_fields:
            setattr(request, name, getattr(self, name))
        request.max_tokens = -1 if self.num_predict is None else max(-1, self.num_predict)


class ModelRequest(Nullable):
    """POST /api/show, and the model of other requests. Without a name it is the first one."""

    model: str | None = Field(None, validation_alias=AliasChoices("model", "name"))


class TextFields(RuledRequest):
    """Fields that chats and prompts share. format: "json", or a JSON schema. think: whether to
    reason, or how much."""

    model: str | None = None
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] = ""
    options: Options = Options.model_validate({})
    think: bool | Literal["low", "medium", "high", "max"] | None = None

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The JSON schema of the answer, None for any text."""
        return {"type": "object"} if self.format == "json" else self.format or None


class Said(Nullable):
    """One message. images: files in base64. tool_name: of a result, the function that gave it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] = Field(default_factory=list)
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    tool_name: str | None = None
    tool_call_id: str | None = None


class ApiChatRequest(TextFields):
    """POST /api/chat. Without messages the model is only loaded."""

    KIND: ClassVar[str] = API_CHAT

    messages: list[Said] = Field(default_factory=list)
    tools: list[Tool] | None = Field(None, max_length=N_TOOLS)


class GenerateRequest(TextFields):
    """POST /api/generate. raw: the prompt is the whole text, without the chat template. suffix:
    what follows the answer. Without a prompt the model is only loaded."""

    KIND: ClassVar[str] = API_GENERATE

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    images: list[str] = Field(default_factory=list)
    raw: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.prompt or self.suffix or self.images)


class EmbedRequest(ModelRequest):
    """POST /api/embed. dimensions: only the model's own number."""

    input: str | Inputs
    dimensions: int | None = Field(None, ge=1)


class EmbeddingsRequest(ModelRequest):
    """POST /api/embeddings, the older form of /api/embed for one text."""

    prompt: str


class OllamaError(BaseModel):
    """The body of every response with a status of 400 or above."""

    error: str


def error_body(error: ApiError) -> dict[str, Any]:
    """Return an error in the format of this API."""
    return OllamaError(error=str(error)).model_dump()


# Clients read each line as JSON, which may begin with a space but not be empty.
FORM = ApiForm(error_body, NDJSON, ping=b" ")


def has_path(request: Request) -> bool:
    """Return whether the path of a request belongs to this API."""
    return str(request.scope["path"]).startswith(PATH)


def served_name(given: object, names: Iterable[str]) -> str:
    """Return which of the served models a request names, the first if it names none. Raises
    ApiError for another name."""
    served = list(names)
    if given is None or given == "":
        return served[0]
    text = str(given)
    for name in (text, text.removesuffix(TAG)):
        if name in served:
            return name
    raise ApiError(404, f"model '{on_one_line(text[:N_NAME])}' not found", param="model")


def to_chat(body: ApiChatRequest) -> ChatRequest:
    """Return the chat request that a chat means."""
    chat = _chat(body, [_message(each) for each in body.messages])
    chat.tools = body.tools or None
    return chat


def prompt_to_chat(body: GenerateRequest) -> ChatRequest:
    """Return the chat request that a prompt for the chat template means."""
    messages = [Said(role="user", content=body.prompt, images=body.images)]
    if body.system:
        messages.insert(0, Said(role="system", content=body.system))
    return _chat(body, [_message(each) for each in messages])


def to_completion(body: GenerateRequest) -> CompletionRequest:
    """Return the completion request that a prompt without the chat template means. Raises ApiError
    for fields that only the template could show."""
    for name in ("system", "images"):
        if getattr(body, name):
            raise invalid(name, f"a prompt without the chat template has no {name}; leave it out")
    asked = CompletionRequest.model_validate({"prompt": body.prompt, "stream": body.stream})
    asked.suffix = body.suffix or None
    body.options.set_in(asked)
    if body.schema_of_answer is not None:
        asked.json_schema = body.schema_of_answer
    return asked


def keep_seconds(given: object) -> float | None:
    """Return the seconds of a field keep_alive, infinity for less than 0; None for what is none.

    >>> keep_seconds(300), keep_seconds("1h30m"), keep_seconds("-1"), keep_seconds("soon")
    (300.0, 5400.0, inf, None)
    """
    if isinstance(given, bool):
        return None
    if isinstance(given, str):
        text = given.strip()
        if re.fullmatch(rf"[+-]?(?:{_PART})+", text):
            found = sum(float(n) * _SECONDS[unit] for n, unit in re.findall(_PART, text))
            given = -found if text[0] == "-" else found
        elif re.fullmatch(r"[+-]?\d+(?:\.\d+)?", text):
            given = float(text)
    if not isinstance(given, int | float) or given != given:
        return None
    return float("inf") if given < 0 else float(min(given, 1e300))


def _chat(body: TextFields, messages: list[dict[str, Any]]) -> ChatRequest:
    chat = ChatRequest.model_validate({"messages": messages, "stream": body.stream})
    body.options.set_in(chat)
    if body.schema_of_answer is not None:
        chat.response_format = ResponseFormat.of(body.schema_of_answer)
    if body.think is not None:
        chat.chat_template_kwargs = {"enable_thinking": bool(body.think)}
        if isinstance(body.think, str):
            chat.reasoning_effort = body.think
    return chat


def _message(said: Said) -> dict[str, Any]:
    """Return a message in OpenAI's format."""
    message: dict[str, Any] = {"role": said.role, "content": said.content}
    if said.images:
        parts = [{"type": IMAGE, IMAGE: {"url": f"data:image;base64,{x}"}} for x in said.images]
        text = [{"type": "text", "text": said.content}] if said.content else []
        message["content"] = [*parts, *text]
    if said.tool_calls:
        message["tool_calls"] = [_call(each) for each in said.tool_calls]
    others = {
        "reasoning_content": said.thinking,
        "name": said.tool_name,
        "tool_call_id": said.tool_call_id,
    }
    return message | {name: value for name, value in others.items() if value is not None}


def _call(given: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as JSON text, as clients of OpenAI send it."""
    function = given.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return given
    return given | {"function": function | {"arguments": json.dumps(function["arguments"])}}
