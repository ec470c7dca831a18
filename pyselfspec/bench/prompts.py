"""Prompts of a benchmark: those of the package, or the user's own. Pure.

A file of prompts has a JSON value on each line: a string, or an object with ``prompt``, a string,
or ``messages``, in OpenAI's format, and optionally ``id`` and ``task``. Figures are given by task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..templates.messages import USER, Message, parse
from ..util import paths, records

OWN = "own"  # the task of prompts without one


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt. messages: the last one is the user's."""

    name: str
    task: str
    messages: tuple[Message, ...]

    @classmethod
    def of(cls, text: str, name: str = "prompt", task: str = OWN) -> Prompt:
        if not text:
            raise ArgumentError("the prompt is empty")
        return cls(name, task, (Message(USER, text),))

    @property
    def text(self) -> str:
        """The text of the last message, for models without a chat template."""
        return self.messages[-1].text


def bundled() -> list[Prompt]:
    """Return the four prompts of the package."""
    return read(paths.PROMPTS.read_text(encoding="utf-8"), paths.PROMPTS.name)


def read(text: str, where: str) -> list[Prompt]:
    """Return the prompts of a file. where: its name in messages.

    Raises ArgumentError, with the line, for an invalid prompt and for a repeated id; also if there
    is no prompt.
    """
    found: dict[str, Prompt] = {}
    for number, data in lines(text, where):
        try:
            prompt = _prompt(data, f"{number}")
        except ArgumentError as error:
            raise ArgumentError(f"{where}, line {number} is no prompt: {error}") from None
        if prompt.name in found:
            raise ArgumentError(
                f"{where}, line {number}: there are two prompts with the id {prompt.name!r}"
            )
        found[prompt.name] = prompt
    if not found:
        raise ArgumentError(f"{where} has no prompts; write one JSON value on each line")
    return list(found.values())


def lines(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the lines of a JSON-lines file, without empty lines.
    Raises ArgumentError for a line that is not JSON."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, records.parse(line)
            except records.RecordError as error:
                raise ArgumentError(f"{where}, line {number}: {error}") from None


def digest(prompts: Sequence[Prompt]) -> str:
    """Return the SHA-256 of the prompts."""
    return hashlib.sha256(records.encode([records.to_dict(each) for each in prompts])).hexdigest()


def _prompt(data: Any, number: str) -> Prompt:
    if isinstance(data, str):
        return Prompt.of(data, number)
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise ArgumentError('give a string, or an object with "prompt" or "messages"')
    name, task = str(data.get("id", number)), str(data.get("task", OWN))
    if "prompt" in data:
        if not isinstance(data["prompt"], str):
            raise ArgumentError('"prompt" must be a string')
        return Prompt.of(data["prompt"], name, task)
    messages = parse(data["messages"])
    if messages[-1].role != USER:
        raise ArgumentError("the last message must have the role user")
    return Prompt(name, task, messages)
