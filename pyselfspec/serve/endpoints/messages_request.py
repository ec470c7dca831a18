"""Requests of Anthropic's Messages API, and what they mean as a ChatRequest."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..chat_requests.pictures import IMAGE
from ..protocol.errors import invalid, leave_out, require_string, unsupported
from ..protocol.request_fields import MESSAGES
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
    Stops,
    Tool,
)

# Claude Code begins the system prompt with this line, which changes with every request: with it, no
# prefix could be reused.
BILLING = "x-anthropic-billing-header:"

SEARCH_RESULT = "search_result"  # a block of texts with their title and source

Blocks = list[dict[str, Any]]


class Said(BaseModel):
    """One message. content: a text, or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class CustomTool(BaseModel):
    type: str | None = None
    name: str = Field(min_length=1, max_length=N_FUNCTION)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(BaseModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)


class OutputFormat(BaseModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    format: OutputFormat | None = None
    effort: str | None = Field(None, max_length=32)


class CountRequest(RuledRequest):
    """POST /v1/messages/count_tokens. pyselfspec: as in chat completions."""

    KIND: ClassVar[str] = MESSAGES

    model_config = ConfigDict(populate_by_name=True)

    model: str | None = None
    messages: list[Said] = Field(min_length=1)
    system: str | Blocks | None = None
    tools: list[CustomTool] | None = Field(None, max_length=N_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    pyselfspec: DraftSettings | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    stream: bool = False
    stop_sequences: Stops | None = None
    temperature: Finite | None = Field(None, ge=0)
    top_p: Finite | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)


def to_chat(body: CountRequest) -> ChatRequest:
    """Return the chat request that a request means. Raises ApiError for what is not supported."""
    kept = [text for text in _texts(body.system or "", "system") if not text.startswith(BILLING)]
    system = "\n\n".join(filter(None, kept))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for i, said in enumerate(body.messages):
        where = f"messages[{i}].content"
        if said.role == "assistant":
            messages.append(_answer(said.content, where))
        elif said.role == "system":
            text = "\n\n".join(_texts(said.content, where))
            messages.append({"role": "system", "content": text})
        else:
            messages += _from_user(said.content, where)
    chat = ChatRequest.model_validate({"messages": messages})
    tools = []
    for i, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            raise unsupported(
                f"tools[{i}]",
                f"tools[{i}] has the type {tool.type[:40]!r}; this server runs no tools of its own",
            )
        function = Function(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )
        tools.append(Tool(function=function))
    chat.tools = tools or None
    match body.tool_choice:
        case ToolChoice(type="any"):
            chat.tool_choice = "required"
        case ToolChoice(type="tool", name=str(name)):
            chat.tool_choice = NamedTool(function=NamedFunction(name=name))
        case ToolChoice(type="tool"):
            raise invalid("tool_choice", "tool_choice of the type tool needs a name")
        case ToolChoice(type="auto" | "none" as kind):
            chat.tool_choice = kind
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if body.thinking is not None:
        chat.reasoning_budget_tokens = body.thinking.budget_tokens
        chat.chat_template_kwargs = {"enable_thinking": body.thinking.type != "disabled"}
    if body.output_config is not None:
        chat.reasoning_effort = body.output_config.effort
        if style := body.output_config.format:
            chat.response_format = ResponseFormat.of(style.schema_)
    if isinstance(body, MessagesRequest):
        chat.max_tokens, chat.stream, chat.stop = body.max_tokens, body.stream, body.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
        chat.seed = body.seed
    chat.pyselfspec = body.pyselfspec
    return chat


def _texts(content: str | Blocks, where: str) -> list[str]:
    """Return the texts of blocks that may be texts only."""
    if isinstance(content, str):
        return [content]
    return [_text(block, f"{where}[{i}]") for i, block in enumerate(content)]


def _text(block: dict[str, Any], where: str) -> str:
    """Return the text of a block, which may be a document of plain text or found by a search."""
    if _is_plain_document(block):
        return require_string(block["source"], "data", f"{where}.source")
    if block.get("type") == SEARCH_RESULT:
        head = [require_string(block, key, where) for key in ("title", "source")]
        at = f"{where}.content"
        return "\n".join([*head, *_texts(_content(block, at), at)])
    if (kind := block.get("type")) != "text":
        raise unsupported(
            where, f"{where} has the type {str(kind)[:40]!r}; only text is supported here"
        )
    return require_string(block, "text", where)


def _from_user(content: str | Blocks, where: str) -> list[dict[str, Any]]:
    """Return the results of tools, each a message, and the texts between them."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    found: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        at = f"{where}[{i}]"
        if block.get("type") == "tool_result":
            result = _result(_content(block, f"{at}.content"), f"{at}.content")
            name = require_string(block, "tool_use_id", at)
            found.append({"role": "tool", "tool_call_id": name, "content": result})
        elif found and found[-1]["role"] == "user":
            found[-1]["content"].append(_part(block, at))
        else:
            found.append({"role": "user", "content": [_part(block, at)]})
    if not found:
        raise invalid(where, f"{where} is empty; give at least one block")
    return found


def _content(block: dict[str, Any], where: str) -> str | Blocks:
    """Return the content of a block, which may be missing. Raises ApiError."""
    content: str | Blocks = "" if block.get("content") is None else block["content"]
    is_list = isinstance(content, list) and all(isinstance(each, dict) for each in content)
    if not is_list and not isinstance(content, str):
        raise invalid(where, f"{where} must be a string or a list of blocks")
    return content


def _result(content: str | Blocks, where: str) -> str | Blocks:
    """Return the result of a tool, without blocks that are neither text nor images."""
    if isinstance(content, str):
        return content
    parts = []
    for i, block in enumerate(content):
        at = f"{where}[{i}]"
        if block.get("type") in ("text", "image", SEARCH_RESULT) or _is_plain_document(block):
            parts.append(_part(block, at))
        else:
            leave_out(at, block.get("type"))
    return parts


def _is_plain_document(block: dict[str, Any]) -> bool:
    source = block.get("source")
    is_plain = isinstance(source, dict) and source.get("type") == "text"
    return is_plain and block.get("type") == "document"


def _part(block: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a text or an image as a part of a message."""
    if block.get("type") != "image":
        return {"type": "text", "text": _text(block, where)}
    source = block.get("source")
    if not isinstance(source, dict):
        raise invalid(where, f"{where}.source must be an object")
    if source.get("type") == "url":
        return {"type": IMAGE, IMAGE: {"url": require_string(source, "url", f"{where}.source")}}
    if source.get("type") != "base64":
        raise unsupported(where, f"{where}.source has the type base64 here")
    data = require_string(source, "data", f"{where}.source")
    return {"type": IMAGE, IMAGE: {"url": f"data:image;base64,{data}"}}


def _answer(content: str | Blocks, where: str) -> dict[str, Any]:
    """Return an answer with its reasoning and calls."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, reasoning, calls = [], [], []
    for i, block in enumerate(content):
        at = f"{where}[{i}]"
        match block.get("type"):
            case "thinking":
                reasoning.append(require_string(block, "thinking", at))
            case "redacted_thinking":
                pass  # another server's, which cannot be read
            case "tool_use":
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                given = {"name": require_string(block, "name", at), "arguments": arguments}
                calls.append({"id": require_string(block, "id", at), "function": given})
            case "text":
                texts.append(_text(block, at))
            case kind:  # a tool call that another server has run
                leave_out(at, kind)
    answer: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if reasoning:
        answer["reasoning_content"] = "\n".join(reasoning)
    if calls:
        answer["tool_calls"] = calls
    return answer
