"""Input and output of a chat: the interface, and the implementations for pipes and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from ...chat.answer import Piece
from ...chat.conversation import Conversation
from ...errors import ArgumentError
from ...speculate.completion import Completion
from ...templates.messages import Message
from .._generation_report import report
from .._options import MAX_TEXT
from .typed_ahead import is_open


class Screen:
    """Input and output of a chat, for one answer: reads nothing, and Ctrl-C ends the program.

    keys: lines of /help about keys.
    """

    keys: tuple[str, ...] = ()

    def read(self, draft: str) -> str | None:
        """Read the next message or command; return None at the end. draft: text to start with."""
        return None

    def confirms(self, question: str) -> bool:
        """Ask whether to do something that cannot be undone."""
        return False

    def opened(self, model: str) -> None:
        """Show that another model goes on with the conversation. model: its name."""
        self.note(f"model: {model}")

    def answer(self, pieces: Iterable[Piece]) -> None:
        """Show an answer as it is generated."""

    def turns(self, messages: Sequence[Message]) -> None:
        """Show the last messages of a loaded conversation."""

    def stopped(self) -> None:
        """Handle Ctrl-C during an answer or a command. Raises KeyboardInterrupt to end the chat."""
        raise KeyboardInterrupt

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        """Show a summary of a complete answer."""

    def note(self, text: str) -> None:
        click.echo(text, err=True)

    def error(self, text: str) -> None:
        """Show an error. Raises ClickException to end the chat, where no user can correct it."""
        raise click.ClickException(text)


class Lines(Screen):
    """Reads each line of stdin as a message, and writes answers without thoughts to stdout.

    Notes go to stderr. An error ends the chat.
    """

    def read(self, draft: str) -> str | None:
        said = line = self._line()
        while line and said and is_open(said):
            line = self._line()
            said += line or ""
        return said

    def _line(self) -> str | None:
        if sys.stdin is None:
            raise ArgumentError("stdin is closed; give a question after MODEL, with -p or with -f")
        data = sys.stdin.buffer.readline(MAX_TEXT)
        try:
            return data.decode() if data else None
        except UnicodeDecodeError as error:
            raise ArgumentError(
                f"stdin is not UTF-8 text: byte 0x{data[error.start]:02x}"
            ) from None

    def confirms(self, question: str) -> bool:
        return True

    def answer(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if not piece.is_thought:
                click.echo(piece.text, nl=False)
        click.echo()


class Records(Lines):
    """Reads lines of stdin, and writes one JSON object per answer.

    model: name by which the model was opened.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._answer = ""

    def opened(self, model: str) -> None:
        self._model = model

    def answer(self, pieces: Iterable[Piece]) -> None:
        self._answer = "".join([piece.text for piece in pieces if not piece.is_thought])

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        said: dict[str, Any] = {"question": conversation.question, "answer": self._answer}
        said["n_left_out"] = conversation.n_left_out
        click.echo(json.dumps(said | report(completion, self._model)))
