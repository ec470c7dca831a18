"""Tools: their description in the prompt, the grammar of calls, and the calls in an answer.

Calls have the format of Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>. See
https://github.com/NousResearch/Hermes-Function-Calling, which many models were trained with.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..runtime import json_schema
from ..templates.messages import ToolCall
from .errors import ApiError
from .schemas import ChatRequest, NamedTool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
INSTRUCTION = (
    "You may call these functions, given as JSON:\n{tools}\n"
    f'To call one, answer with {OPEN}{{{{"name": NAME, "arguments": OBJECT}}}}{CLOSE} alone. '
    "Its result comes in the next message."
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request. names: functions that may be called. is_required: whether the answer
    must be a call."""

    tools: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    is_required: bool = False

    @classmethod
    def of(cls, request: ChatRequest) -> ToolUse:
        """Read a request. Raises ApiError for a tool_choice that is none of its tools."""
        choice, tools = request.tool_choice, request.tools or []
        if choice == "none":
            return cls()
        if not tools:
            if choice in (None, "auto"):
                return cls()
            raise ApiError(
                400,
                f"tool_choice is {choice!r} but the request has no tools; give tools",
                param="tool_choice",
            )
        given = tuple(tool.model_dump(exclude_none=True) for tool in tools)
        names = tuple(tool.function.name for tool in tools)
        if isinstance(choice, NamedTool):
            if choice.function.name not in names:
                raise ApiError(
                    400,
                    f"tool_choice names {choice.function.name!r}; the tools are {', '.join(names)}",
                    param="tool_choice",
                )
            return cls(given, (choice.function.name,), is_required=True)
        return cls(given, names, is_required=choice == "required")

    def grammar(self) -> str:
        """Return the GBNF of a call. Raises ArgumentError for an invalid JSON schema."""
        functions = {tool["function"]["name"]: tool["function"] for tool in self.tools}
        return json_schema.calls_to_gbnf(
            {name: functions[name].get("parameters") or {"type": "object"} for name in self.names}
        )


def describe_tools(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[dict[str, Any]]:
    """Return messages for a template without tools: the system message describes the tools, and
    calls and their results become text."""
    said = [_as_text(message) for message in messages]
    if not use.tools:
        return said
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in use.tools)
    instruction = INSTRUCTION.format(tools=described)
    if said and said[0].get("role") in ("system", "developer"):
        first = said[0]
        if isinstance(first.get("content"), str):
            return [{**first, "content": f"{first['content']}\n\n{instruction}"}, *said[1:]]
    return [{"role": "system", "content": instruction}, *said]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    said = dict(message)
    if said.get("role") == "tool":
        return {"role": "user", "content": said.get("content")}
    calls = said.pop("tool_calls", None)
    if isinstance(calls, list):
        texts = []
        for call in calls:
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                arguments = function.get("arguments", "{}")
                with suppress(ValueError, TypeError):
                    arguments = json.loads(arguments)
                inner = {"name": function.get("name"), "arguments": arguments}
                texts.append(f"{OPEN}{json.dumps(inner, ensure_ascii=False)}{CLOSE}")
        content = said.get("content") if isinstance(said.get("content"), str) else ""
        said["content"] = "\n".join(filter(None, [content, *texts]))
    return said


class CallReader:
    """Separates the text of a streamed answer from its calls.

    Holds back text that may be a call until that is decided: text after <tool_call> or a prefix of
    it, and a whole answer that begins like a JSON object.
    """

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._held = ""
        self._holds = use.is_required
        self._begun = False  # anything but white space has come

    def push(self, text: str) -> str:
        """Take a piece; return the text that is certainly not part of a call."""
        if not self._use.tools:
            return text
        self._held += text
        if not self._begun and (start := self._held.lstrip()):
            self._begun = True
            self._holds |= start.startswith("{")
        if self._holds or not self._begun:
            return ""
        at = self._held.find(OPEN)
        if at >= 0:
            self._holds = True
        else:
            at = len(self._held) - _n_beginning(self._held, OPEN)
        given, self._held = self._held[:at], self._held[at:]
        return given

    def finish(self) -> tuple[str, list[ToolCall]]:
        """Return the rest of the text and the calls; one of them is empty."""
        calls = calls_in(self._held, self._use.names) if self._use.tools else []
        return ("" if calls else self._held), calls


def _n_beginning(text: str, marker: str) -> int:
    """Return the length of the longest suffix of the text that is a prefix of the marker."""
    return next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)


def calls_in(text: str, names: Sequence[str]) -> list[ToolCall]:
    """Return the calls that a text consists of; an empty list if any part is not a call."""
    decoder = json.JSONDecoder()
    calls = []
    rest = text.strip()
    while rest:
        rest = rest.removeprefix(OPEN).lstrip()
        try:
            found, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        call = _call(found, names)
        if call is None:
            return []
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(CLOSE).lstrip(" \n\r\t,;")
    return calls


def _call(found: Any, names: Sequence[str]) -> ToolCall | None:
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(f"call_{secrets.token_hex(12)}", found["name"], written)
