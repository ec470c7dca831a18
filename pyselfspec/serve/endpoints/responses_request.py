"""Requests of OpenAI's Responses API, and what they mean as a ChatRequest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from ..chat_requests.pictures import IMAGE, has_pictures
from ..protocol.errors import ApiError, require_string, unsupported
from ..protocol.request_fields import RESPONSES
from ..protocol.schemas import (
    N_FUNCTION,
    N_TOOLS,
    ChatRequest,
    DraftSettings,
    Finite,
    Function,
    JsonSchema,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    RuledRequest,
    Tool,
)

N_ID = 64  # characters of an id
N_METADATA = 16
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")

Item = dict[str, Any]


class FunctionTool(BaseModel):
    """A tool. Types other than function are run by OpenAI's servers; they are left out."""

    type: str
    name: str | None = Field(None, min_length=1, max_length=N_FUNCTION)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenTool(BaseModel):
    type: str
    name: str | None = None


class Reasoning(BaseModel):
    effort: str | None = Field(None, max_length=32)


class TextFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextConfig(BaseModel):
    format: TextFormat | None = None


class ResponsesRequest(RuledRequest):
    """POST /v1/responses. store: keep the response in memory, so that a later one may go on from
    it. pyselfspec: as in chat completions."""

    KIND: ClassVar[str] = RESPONSES

    model: str | None = None
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=N_ID)
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: Finite | None = Field(None, ge=0)
    top_p: Finite | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    tools: list[FunctionTool] | None = Field(None, max_length=N_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    metadata: dict[str, str] | None = Field(None, max_length=N_METADATA)
    pyselfspec: DraftSettings | None = None

    @property
    def functions(self) -> list[FunctionTool]:
        """The tools that the prompt describes."""
        return [tool for tool in self.tools or () if tool.type == "function"]


def to_chat(body: ResponsesRequest, history: Sequence[Item] = ()) -> ChatRequest:
    """Return the chat request that a request means. Raises ApiError for what is not supported.

    history: messages of the response that it goes on from.
    """
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    messages = [*system, *history, *input_messages(body.input)]
    if not messages:
        raise ApiError(400, "input is empty; give at least one message", param="input")
    chat = ChatRequest.model_validate({"messages": messages})
    tools = []
    for i, tool in enumerate(body.functions):
        if tool.name is None:
            raise ApiError(400, f"tools[{i}] has no name; give one", param="tools")
        function = Function(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
        tools.append(Tool(function=function))
    chat.tools = tools or None
    choice = body.tool_choice
    if isinstance(choice, ChosenTool):
        if choice.type != "function" or choice.name is None:
            raise unsupported(
                "tool_choice", "tool_choice names a function, or is none, auto, required"
            )
        chat.tool_choice = NamedTool(function=NamedFunction(name=choice.name))
    else:
        chat.tool_choice = choice
    chat.parallel_tool_calls = body.parallel_tool_calls
    chat.max_tokens, chat.stream = body.max_output_tokens, bool(body.stream)
    chat.temperature, chat.top_p, chat.seed = body.temperature, body.top_p, body.seed
    chat.reasoning_effort = body.reasoning.effort if body.reasoning else None
    if body.text and (style := body.text.format):
        chat.response_format = ResponseFormat(type=style.type)
        if style.type == "json_schema":
            if style.schema_ is None:
                raise ApiError(400, "text.format.schema is missing", param="text.format.schema")
            chat.response_format.json_schema = JsonSchema(schema=style.schema_)
    chat.pyselfspec = body.pyselfspec
    return chat


def input_messages(items: str | Sequence[Item]) -> list[Item]:
    """Return the input as messages. Reasoning, text and calls that follow each other are one."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    found: list[Item] = []
    for i, item in enumerate(items):
        where = f"input[{i}]"
        match item.get("type", "message"):
            case "message":
                _add_message(found, item, where)
            case "function_call":
                function = {key: require_string(item, key, where) for key in ("name", "arguments")}
                calls = _answer(found).setdefault("tool_calls", [])
                calls.append({"id": require_string(item, "call_id", where), "function": function})
            case "function_call_output":
                name, output = require_string(item, "call_id", where), item.get("output")
                text = _text(output, f"{where}.output")
                found.append({"role": "tool", "tool_call_id": name, "content": text})
            case "reasoning":
                text = _text(item.get("content") or item.get("summary") or "", f"{where}.content")
                if text:
                    found.append({"role": "assistant", "reasoning_content": text})
            case kind:
                raise unsupported(
                    where,
                    f"{where} has the type {str(kind)[:40]!r}; supported are message, "
                    "function_call, function_call_output and reasoning",
                )
    return found


def _add_message(found: list[Item], item: Item, where: str) -> None:
    role = item.get("role")
    if role != "assistant" and isinstance(item.get("content"), list):
        parts = [
            {"type": IMAGE, IMAGE: {"url": each.get(IMAGE)}}
            if isinstance(each, dict) and each.get("type") == "input_image"
            else {"type": "text", "text": _part(each, f"{where}.content")}
            for each in item["content"]
        ]
        if has_pictures(parts):
            found.append({"role": role, "content": parts})
            return
    text = _text(item.get("content"), f"{where}.content")
    if role == "assistant":
        _answer(found, "content", "tool_calls")["content"] = text
    else:
        found.append({"role": role, "content": text})


def _answer(found: list[Item], *taken: str) -> Item:
    """Return the answer at the end of the messages if it has none of these fields, else a new
    one."""
    last = found[-1] if found else {}
    if last.get("role") == "assistant" and not set(taken) & last.keys():
        return last
    found.append({"role": "assistant"})
    return found[-1]


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where} must be a string or a list of parts", param=where)
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _TEXTS:
        raise unsupported(where, f"{where} has the type {str(kind)[:40]!r}; only text is supported")
    return require_string(part, "refusal" if kind == "refusal" else "text", where)
