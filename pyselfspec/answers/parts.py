"""The parts of an answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..templates.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning before or within an answer. at: its place in all that is written."""

    text: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer's text. at: its place in all that is written."""

    text: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Called:
    """A whole call of a tool."""

    call: ToolCall


Part = Reasoning | Said | Called
