"""Tools of a request: their description in the prompt, and the grammar of calls.

Templates without tools get a description of calls in the format of Hermes:
<tool_call>{"name": ..., "arguments": {...}}</tool_call>. See
https://github.com/NousResearch/Hermes-Function-Calling, which many models were trained with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...answers.call_forms import HERMES_CLOSE as CLOSE
from ...answers.call_forms import HERMES_OPEN as OPEN
from ..protocol.errors import invalid
from ..protocol.schemas import ChatRequest, NamedTool

INSTRUCTION = (
    "You may call these functions, given as JSON:\n{tools}\n"
    f'To call one, answer with {OPEN}{{{{"name": NAME, "arguments": OBJECT}}}}{CLOSE} alone. '
    "Its result comes in the next message."
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request. names: functions that may be called. is_required: whether the answer
    must be a call. n_calls: most calls of an answer, None for no limit. strict: functions whose
    arguments must keep to their schemas."""

    tools: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    is_required: bool = False
    n_calls: int | None = None
    strict: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: ChatRequest) -> ToolUse:
        """Read a request. Raises ApiError for a tool_choice that is none of its tools."""
        choice, tools = request.tool_choice, request.tools or []
        n_calls = 1 if request.parallel_tool_calls is False else None
        if choice == "none":
            return cls()
        if not tools:
            if choice in (None, "auto"):
                return cls()
            raise invalid(
                "tool_choice", f"tool_choice is {choice!r} but the request has no tools; give tools"
            )
        given = tuple(tool.model_dump(exclude_none=True) for tool in tools)
        names = tuple(tool.function.name for tool in tools)
        if isinstance(choice, NamedTool):
            if choice.function.name not in names:
                raise invalid(
                    "tool_choice",
                    f"tool_choice names {choice.function.name!r}; the tools are {', '.join(names)}",
                )
            return cls(given, (choice.function.name,), is_required=True, n_calls=n_calls)
        strict = frozenset(tool.function.name for tool in tools if tool.function.strict)
        return cls(given, names, is_required=choice == "required", n_calls=n_calls, strict=strict)

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """The JSON schemas of the arguments of the functions that may be called, by name."""
        found = {tool["function"]["name"]: tool["function"] for tool in self.tools}
        return {name: found[name].get("parameters") or {"type": "object"} for name in self.names}


def describe_tools(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[dict[str, Any]]:
    """Return messages for a template without tools: the system message describes the tools, and
    calls and their results become text. The tools come first, since agents end this message with
    what differs between sessions."""
    said = [_as_text(message) for message in messages]
    if not use.tools:
        return said
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in use.tools)
    instruction = INSTRUCTION.format(tools=described)
    if said and said[0].get("role") in ("system", "developer"):
        first = said[0]
        if isinstance(first.get("content"), str):
            return [{**first, "content": f"{instruction}\n\n{first['content']}"}, *said[1:]]
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
