"""Agents at work: a file is read, edited and run in a sandbox, by the calls of a scripted model.

The model is the demo. A grammar leaves it one text for each turn; everything else is as with a
model that would write this by itself. The requests are like those of Claude Code, Codex and
opencode.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import Served, running

from pyselfspec import Model
from pyselfspec.serve.settings import Capacity

BUGGY, RIGHT = "print(1 - 2)\n", "print(1 + 2)\n"
TASK, DONE = "Let sum.py print 3.", "It prints 3 now."
RUN = f"{shlex.quote(sys.executable)} sum.py"
PATCH = f"*** Begin Patch\n*** Update File: sum.py\n@@\n-{BUGGY}+{RIGHT}*** End Patch\n"
N_CTX = 2048  # of a script's text; the demo alone would write nonsense after 512


@pytest.fixture
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=N_CTX, n_slots=1)) as found:
        found.service.requests = replace(found.service.requests, n_ctx=N_CTX, n_share=N_CTX)
        yield found


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    (tmp_path / "sum.py").write_text(BUGGY)
    return tmp_path


def script(served: Served, text: str) -> None:
    """Let the next answers be this text."""
    grammar = f"root ::= {json.dumps(text)}"
    requests = served.service.requests
    sampling = replace(requests.sampling, grammar=grammar)
    served.service.requests = replace(requests, sampling=sampling)


def call_of(name: str, **arguments: str) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def read(sandbox: Path, name: str) -> str:
    return (sandbox / name).read_text()


def edit(sandbox: Path, name: str, old: str, new: str) -> str:
    text = read(sandbox, name)
    assert text.count(old) == 1
    (sandbox / name).write_text(text.replace(old, new))
    return "edited"


def shell(sandbox: Path, command: str) -> str:
    done = subprocess.run(command, shell=True, cwd=sandbox, capture_output=True, text=True)
    return done.stdout + done.stderr


def patched(sandbox: Path, patch: str) -> str:
    """Apply a patch of one file, in the form of Codex."""
    lines = patch.splitlines()
    name = lines[1].removeprefix("*** Update File: ")
    old, new = ("".join(f"{x[1:]}\n" for x in lines if x.startswith(sign)) for sign in "-+")
    return edit(sandbox, name, old, new)


PERFORM: dict[str, Callable[..., str]] = {
    "Read": read,
    "Edit": edit,
    "Bash": shell,
    "exec_command": shell,
    "apply_patch": patched,
    "read": read,
    "edit": edit,
    "bash": shell,
}


def schema(*names: str) -> dict[str, Any]:
    fields = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": fields, "required": list(names)}


def test_claude_code(served: Served, sandbox: Path) -> None:
    client = served.anthropic()
    tools: list[Any] = [
        {"name": "Read", "input_schema": schema("file_path")},
        {"name": "Edit", "input_schema": schema("file_path", "old_string", "new_string")},
        {"name": "Bash", "input_schema": schema("command")},
    ]
    system: list[Any] = [
        {"type": "text", "text": "You edit.", "cache_control": {"type": "ephemeral"}}
    ]
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]
    results: list[str] = []
    n_before = 0
    for text in (
        "I look." + call_of("Read", file_path="sum.py"),
        call_of("Edit", file_path="sum.py", old_string="1 - 2", new_string="1 + 2"),
        call_of("Bash", command=RUN),
        DONE,
    ):
        script(served, text)
        with client.messages.stream(
            model="claude",
            max_tokens=300,
            system=system,
            tools=tools,
            messages=messages,
            extra_body={"thinking": {"type": "adaptive"}, "context_management": {"edits": []}},
            extra_query={"beta": "true"},
        ) as stream:
            said = stream.get_final_message()
        usage = said.usage
        assert (usage.cache_read_input_tokens or 0) >= n_before, "earlier turns are not read again"
        n_before = usage.input_tokens + (usage.cache_read_input_tokens or 0) - 1
        messages.append({"role": "assistant", "content": [each.to_dict() for each in said.content]})
        if said.stop_reason != "tool_use":
            break
        [use] = [each for each in said.content if each.type == "tool_use"]
        given: Any = use.input
        results.append(PERFORM[use.name](sandbox, *given.values()))
        content = [{"type": "text", "text": results[-1]}]
        block = {"type": "tool_result", "tool_use_id": use.id, "content": content}
        messages.append({"role": "user", "content": [block]})
    assert results == [BUGGY, "edited", "3\n"] and read(sandbox, "sum.py") == RIGHT
    assert said.stop_reason == "end_turn" and messages[-1]["content"][0]["text"] == DONE


def test_codex(served: Served, sandbox: Path) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    tools: list[Any] = [
        {"type": "function", "name": "exec_command", "parameters": schema("cmd"), "strict": False},
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edit files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {"type": "web_search", "external_web_access": False},
    ]
    items: list[Any] = [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Go."}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK}]},
    ]
    results: list[str] = []
    for text in (
        "I look." + call_of("exec_command", cmd="cat sum.py"),
        call_of("apply_patch", input=PATCH),
        call_of("exec_command", cmd=RUN),
        DONE,
    ):
        script(served, text)
        with client.responses.create(
            model="gpt",
            instructions="You edit.",
            input=items,
            tools=tools,
            tool_choice="auto",
            parallel_tool_calls=False,
            store=False,
            stream=True,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="session",
        ) as stream:
            done = [event.item for event in stream if event.type == "response.output_item.done"]
        items += [each.to_dict() for each in done]
        last: Any = done[-1]
        if last.type == "message":
            break
        is_custom = last.type == "custom_tool_call"
        given = {"input": last.input} if is_custom else json.loads(last.arguments)
        results.append(PERFORM[last.name](sandbox, *given.values()))
        output = {"type": f"{last.type}_output", "call_id": last.call_id, "output": results[-1]}
        items.append(output)
    assert results == [BUGGY, "edited", "3\n"] and read(sandbox, "sum.py") == RIGHT
    assert items[-1]["content"][0]["text"] == DONE


def test_opencode(served: Served, sandbox: Path) -> None:
    client = served.openai()
    parameters = {
        "read": schema("filePath"),
        "edit": schema("filePath", "oldString", "newString"),
        "bash": schema("command"),
    }
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "parameters": each}}
        for name, each in parameters.items()
    ]
    messages: list[Any] = [
        {"role": "system", "content": "You edit."},
        {"role": "user", "content": TASK},
    ]
    results: list[str] = []
    for text in (
        "I look." + call_of("read", filePath="sum.py"),
        call_of("edit", filePath="sum.py", oldString="1 - 2", newString="1 + 2"),
        call_of("bash", command=RUN),
        DONE,
    ):
        script(served, text)
        said, calls, reason = "", [], None
        for chunk in client.chat.completions.create(
            model="local",
            messages=messages,
            tools=tools,
            tool_choice="auto",
            max_tokens=300,
            stream=True,
            stream_options={"include_usage": True},
        ):
            for choice in chunk.choices:
                said += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
                reason = choice.finish_reason or reason
        if reason != "tool_calls":
            break
        [call] = calls
        given = json.loads(call.function.arguments)
        results.append(PERFORM[call.function.name](sandbox, *given.values()))
        used = {"id": call.id, "type": "function", "function": call.function.to_dict()}
        messages.append({"role": "assistant", "content": said, "tool_calls": [used]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": results[-1]})
    assert results == [BUGGY, "edited", "3\n"] and read(sandbox, "sum.py") == RIGHT
    assert (reason, said) == ("stop", DONE)
