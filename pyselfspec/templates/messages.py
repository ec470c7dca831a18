"""Messages of a chat, in the format of OpenAI's API. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError

SYSTEM, USER, ASSISTANT, TOOL, DEVELOPER = "system", "user", "assistant", "tool", "developer"
ROLES = (SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL)
FIELDS = {
    "role", "content", "reasoning_content", "name", "tool_calls", "tool_call_id", "refusal",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call by the model. arguments: JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One message. content: text, parts of text, or None for an answer of tool calls only.

    reasoning: what comes before the content, for templates that show them.
    tokens: the generated token ids of an answer, without its end token. A later turn reads these,
    which are in the KV cache, instead of tokenizing the text again.
    pictures: the bytes of files, before the content; a Conversation reads them.
    """

    role: str
    content: str | tuple[str, ...] | None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tokens: tuple[int, ...] | None = None
    reasoning: str | None = None
    pictures: tuple[bytes, ...] = ()

    @property
    def text(self) -> str:
        """The content; parts are joined by newlines, as in llama.cpp."""
        return self.content if isinstance(self.content, str) else "\n".join(self.content or ())

    def to_dict(self) -> dict[str, Any]:
        """Return the message in OpenAI's format, without tokens and pictures."""
        content: Any = self.content
        if isinstance(content, tuple):
            content = [{"type": "text", "text": part} for part in content]
        data: dict[str, Any] = {"role": self.role, "content": content}
        if self.reasoning is not None:
            data["reasoning_content"] = self.reasoning
        if self.name is not None:
            data["name"] = self.name
        if self.tool_calls:
            data["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        return data


Messages = Iterable[Message | Mapping[str, Any]]


def parse(messages: Messages) -> tuple[Message, ...]:
    """Return validated messages. Takes OpenAI's format and Message objects.

    Raises ArgumentError for an invalid message, with its index.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise ArgumentError(f"messages must be a list of objects, got {_kind(messages)}")
    found = tuple(_message(each, f"messages[{i}]") for i, each in enumerate(messages))
    if not found:
        raise ArgumentError("messages is empty; give at least one message")
    return found


def _message(data: Message | Mapping[str, Any], where: str) -> Message:
    if isinstance(data, Message):
        return data
    if not isinstance(data, Mapping):
        raise ArgumentError(f"{where} must be an object with role and content, got {_kind(data)}")
    for unknown in data.keys() - FIELDS:
        raise ArgumentError(
            f"{where} has an unknown field {str(unknown)!r}; allowed: {', '.join(sorted(FIELDS))}"
        )
    role = data.get("role")
    if role not in ROLES:
        raise ArgumentError(f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}")
    given = () if data.get("tool_calls") is None else data["tool_calls"]
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ArgumentError(f"{where}.tool_calls must be a list, got {_kind(given)}")
    calls = tuple(_tool_call(each, f"{where}.tool_calls[{i}]") for i, each in enumerate(given))
    if calls and role != ASSISTANT:
        raise ArgumentError(
            f"{where}.tool_calls: only the role assistant has tool calls, not {role}"
        )
    content: Any = data.get("content")
    if content is not None and not isinstance(content, str):
        if not isinstance(content, Sequence):
            raise ArgumentError(
                f"{where}.content must be a string or a list of parts, got {_kind(content)}"
            )
        content = tuple(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if content is None and not calls:
        if role != ASSISTANT:
            raise ArgumentError(f"{where} has no content; give a string or a list of parts")
        content = ""
    name, call_id = (_text_or_none(data, key, where) for key in ("name", "tool_call_id"))
    reasoning = _text_or_none(data, "reasoning_content", where) if role == ASSISTANT else None
    return Message(role, content, name, calls, call_id, reasoning=reasoning)


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise ArgumentError(f'{where} must be an object like {{"type": "text", "text": "..."}}')
    if kind not in ("text", "refusal"):
        raise ArgumentError(f"{where} has the type {kind!r}; only text is supported")
    text = part.get(kind)
    if not isinstance(text, str):
        raise ArgumentError(f"{where}.{kind} must be a string, got {_kind(text)}")
    return text


def _tool_call(call: Any, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise ArgumentError(f"{where} has no function with a name")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, Mapping):  # some clients send an object instead of JSON text
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise ArgumentError(f"{where}.function.arguments must be JSON text, got {_kind(arguments)}")
    return ToolCall(_text_or_none(call, "id", where) or "", name, arguments)


def _text_or_none(data: Mapping[str, Any], key: str, where: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise ArgumentError(f"{where}.{key} must be a string, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """Return JSON's name for the type of a value.

    >>> _kind(None), _kind({}), _kind("a")
    ('null', 'an object', 'a string')
    """
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    kinds |= {int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)
