"""Requests of OpenAI's Responses API, and what they mean as a ChatRequest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from ..chat_requests.pictures import IMAGE
from ..protocol.errors import invalid, leave_out, require_string, unsupported
from ..protocol.request_fields import RESPONSES
from ..protocol.response_fields import new_id
from ..protocol.schemas import (
    N_FUNCTION,
    N_TOOLS,
    ChatRequest,
    DraftSettings,
    Finite,
    Function,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    RuledRequest,
    Tool,
)

N_ID = 64  # characters of an id
N_METADATA = 16
FUNCTION, CUSTOM, REFERENCE = "function", "custom", "item_reference"
INPUT = "input"  # the argument of a function that stands for a custom tool
_ONE_TEXT = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")

Item = dict[str, Any]


class ToolFormat(BaseModel):
    """The form of a custom tool's text. definition: its grammar, which only the prompt shows."""

    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class FunctionTool(BaseModel):
    """A function, or a custom tool, which takes a text. Types other than these are run by OpenAI's
    servers; they are left out."""

    type: str
    name: str | None = Field(None, min_length=1, max_length=N_FUNCTION)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None

    def function(self, where: str) -> Function:
        """Return the function, or one that stands for the custom tool. Raises ApiError without a
        name."""
        if self.name is None:
            raise invalid("tools", f"{where} has no name; give one")
        if self.type == FUNCTION:
            return Function(**self.model_dump(include=set(Function.model_fields)))
        described = self.description or ""
        style = self.format
        if style is not None and style.definition:
            rule = f"{INPUT} keeps to this grammar ({style.syntax}):\n{style.definition}"
            described = f"{described}\n\n{rule}".strip()
        return Function(name=self.name, description=described, parameters=_ONE_TEXT)


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
    def items(self) -> list[Item]:
        """The input as items."""
        given = self.input
        return [{"role": "user", "content": given}] if isinstance(given, str) else given

    @property
    def functions(self) -> list[FunctionTool]:
        """The tools that the prompt describes."""
        return [tool for tool in self.tools or () if tool.type in (FUNCTION, CUSTOM)]


def to_chat(body: ResponsesRequest, items: Sequence[Item]) -> ChatRequest:
    """Return the chat request that a request means. Raises ApiError for what is not supported.

    items: of the whole conversation.
    """
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    messages = [*system, *input_messages(items, len(items) - len(body.items))]
    if not messages:
        raise invalid("input", "input is empty; give at least one message")
    chat = ChatRequest.model_validate({"messages": messages})
    functions = [tool.function(f"tools[{i}]") for i, tool in enumerate(body.functions)]
    chat.tools = [Tool(function=function) for function in functions] or None
    choice = body.tool_choice
    if isinstance(choice, ChosenTool):
        if choice.type not in (FUNCTION, CUSTOM) or choice.name is None:
            raise unsupported(
                "tool_choice",
                "tool_choice names a function or custom tool, or is none, auto, required",
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
                raise invalid("text.format.schema", "text.format.schema is missing")
            chat.response_format = ResponseFormat.of(style.schema_)
    chat.pyselfspec = body.pyselfspec
    return chat


def resolved(items: Sequence[Item], known: Mapping[str, Item]) -> list[Item]:
    """Return the items, with the known ones in place of references. Raises ApiError for a reference
    to any other."""
    found = []
    for i, item in enumerate(items):
        if item.get("type") == REFERENCE:
            name = require_string(item, "id", f"input[{i}]")
            if name not in known:
                raise invalid(
                    "input",
                    f"input[{i}] refers to {name[:N_ID]!r}, which no stored response of this API "
                    "key has; send the item itself",
                )
            item = known[name]
        found.append(item)
    return found


def listed(item: Item) -> Item:
    """Return an item of a conversation as lists of items show it, with an id."""
    given = {key: value for key, value in item.items() if value is not None}
    shown = {"id": new_id("item", "_"), "type": "message", "status": "completed"} | given
    if shown["type"] == "message" and isinstance(text := shown.get("content"), str):
        is_answer = shown.get("role") == "assistant"
        shown["content"] = [text_part(text) if is_answer else {"type": "input_text", "text": text}]
    return shown


def text_part(text: str) -> Item:
    """Return a text as a part of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def custom_input(arguments: str) -> str:
    """Return the text that a call gives to a custom tool, or all arguments if it gives no text."""
    given = json.loads(arguments).get(INPUT)
    return given if isinstance(given, str) else arguments


def input_messages(items: Sequence[Item], n_before: int = 0) -> list[Item]:
    """Return items as messages. Reasoning, text and calls that follow each other are one. n_before:
    items before the input of the request."""
    found: list[Item] = []
    for i, item in enumerate(items, -n_before):
        where = f"input[{i}]"
        match item.get("type") or "message":
            case "message":
                _add_message(found, item, where)
            case "function_call" | "custom_tool_call" as kind:
                if kind == "function_call":
                    arguments = require_string(item, "arguments", where)
                else:
                    given = {INPUT: require_string(item, INPUT, where)}
                    arguments = json.dumps(given, ensure_ascii=False)
                function = {"name": require_string(item, "name", where), "arguments": arguments}
                calls = _answer(found).setdefault("tool_calls", [])
                calls.append({"id": require_string(item, "call_id", where), "function": function})
            case "function_call_output" | "custom_tool_call_output":
                name, output = require_string(item, "call_id", where), item.get("output")
                content = _content(output, f"{where}.output", is_output=True)
                found.append({"role": "tool", "tool_call_id": name, "content": content})
            case "reasoning":
                text = _text(item.get("content") or item.get("summary") or "", f"{where}.content")
                if text:
                    found.append({"role": "assistant", "reasoning_content": text})
            case kind:
                raise unsupported(
                    where,
                    f"{where} has the type {str(kind)[:40]!r}; supported are message, reasoning, "
                    "item_reference, and calls of functions and custom tools with their outputs",
                )
    return found


def _add_message(found: list[Item], item: Item, where: str) -> None:
    role, content, where = item.get("role"), item.get("content"), f"{where}.content"
    if role == "assistant":
        _answer(found, "content", "tool_calls")["content"] = _text(content, where)
    else:
        found.append({"role": role, "content": _content(content, where)})


def _answer(found: list[Item], *taken: str) -> Item:
    """Return the answer at the end of the messages if it has none of these fields, else a new
    one."""
    last = found[-1] if found else {}
    if last.get("role") == "assistant" and not set(taken) & last.keys():
        return last
    found.append({"role": "assistant"})
    return found[-1]


def _content(content: Any, where: str, *, is_output: bool = False) -> str | list[Item]:
    """Return texts and images as the content of a message. is_output: of a tool, in which other
    parts are left out."""
    if not isinstance(content, list):
        return _text(content, where)
    parts = []
    for i, part in enumerate(content):
        at, kind = f"{where}[{i}]", _kind(part)
        if kind == "input_image":
            parts.append({"type": IMAGE, IMAGE: {"url": part.get(IMAGE)}})
        elif is_output and kind not in _TEXTS:
            leave_out(at, kind)
        else:
            parts.append({"type": "text", "text": _part(part, at)})
    return parts


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, f"{where} must be a string or a list of parts")
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _part(part: Any, where: str) -> str:
    kind = _kind(part)
    if kind not in _TEXTS:
        raise unsupported(where, f"{where} has the type {str(kind)[:40]!r}; only text is supported")
    return require_string(part, "refusal" if kind == "refusal" else "text", where)
