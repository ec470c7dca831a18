"""Tools: how the model is told of them, made to call one, and understood when it does.

The form of a call is Hermes': <tool_call>{"name": ..., "arguments": {...}}</tool_call>. See
https://github.com/NousResearch/Hermes-Function-Calling, which many models were trained with.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..chat.messages import ToolCall
from ..runtime import json_schema
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
    """What a request says of tools. must: the answer is a call; names: of functions that it may
    call."""

    tools: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    must: bool = False

    @classmethod
    def of(cls, request: ChatRequest) -> ToolUse:
        """Raises ApiError for a choice that is no tool of the request."""
        choice, tools = request.tool_choice, request.tools or []
        if choice == "none":
            return cls()
        if not tools:
            if choice in (None, "auto"):
                return cls()
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        given = tuple(tool.model_dump(exclude_none=True) for tool in tools)
        names = tuple(tool.function.name for tool in tools)
        if isinstance(choice, NamedTool):
            if choice.function.name not in names:
                raise ApiError(
                    400,
                    f"tool_choice names {choice.function.name!r}, which is none of the tools",
                    param="tool_choice",
                )
            return cls(given, (choice.function.name,), must=True)
        return cls(given, names, must=choice == "required")

    def grammar(self) -> str:
        """GBNF for a call. Raises ArgumentError for parameters that are no JSON schema."""
        functions = {tool["function"]["name"]: tool["function"] for tool in self.tools}
        return json_schema.calls_to_gbnf(
            {name: functions[name].get("parameters") or {"type": "object"} for name in self.names}
        )


def told(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[dict[str, Any]]:
    """Messages for a template that knows nothing of tools: these are described to the system, calls
    and their results are text."""
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
    """Takes an answer as it comes, and tells its text from its calls.

    What could be a call is held back until it is one or is not: what begins as <tool_call> does,
    and an answer that begins as a JSON object does.
    """

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._held = ""
        self._holds = use.must
        self._begun = False  # something but spaces has come

    def push(self, text: str) -> str:
        """The text that is no part of a call, as far as it is known."""
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
        """The rest of the text, and the calls: one or the other."""
        calls = calls_in(self._held, self._use.names) if self._use.tools else []
        return ("" if calls else self._held), calls


def _n_beginning(text: str, marker: str) -> int:
    """Length of the longest end of the text that begins the marker."""
    return next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)


def calls_in(text: str, names: Sequence[str]) -> list[ToolCall]:
    """The calls that a text consists of; none where any part of it is none."""
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
