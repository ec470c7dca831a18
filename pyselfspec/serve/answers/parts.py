"""The parts of an answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...templates.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the reasoning before or within an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A whole call of a tool."""

    call: ToolCall


Part = Thought | Said | Called
