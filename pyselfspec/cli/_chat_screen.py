"""Where a chat is read from and shown: a terminal, a pipe, or records of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import click

from ..chat.conversation import Conversation
from ..chat.messages import Message
from ..chat.thoughts import Piece
from ..errors import ArgumentError
from ..speculate.completion import Completion
from ..speculate.report import report
from ._chat_typing import is_open
from ._options import MAX_TEXT


class Screen(Protocol):
    """keys: what /help says of keys."""

    keys: tuple[str, ...]

    def read(self, draft: str) -> str | None:
        """What is typed next, None at the end. draft: what it begins as."""
        ...

    def confirms(self, question: str) -> bool:
        """Ask whether to do something that cannot be undone."""
        ...

    def answer(self, pieces: Iterable[Piece]) -> None:
        """Show an answer while it comes."""
        ...

    def turns(self, messages: Sequence[Message]) -> None:
        """Show the end of a conversation that goes on."""
        ...

    def stopped(self) -> None:
        """Ctrl-C has stopped it, or what was typed; raises KeyboardInterrupt to end the chat."""
        ...

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        """It is complete."""
        ...

    def note(self, text: str) -> None: ...

    def error(self, text: str) -> None: ...


class Lines:
    """Each line of stdin is said in turn. Answers are on stdout, without the model's thoughts, and
    everything else is on stderr. What goes wrong ends the chat: no user is there to correct it."""

    keys: tuple[str, ...] = ()

    def read(self, draft: str) -> str | None:
        said = line = self._line()
        while line and said and is_open(said):
            line = self._line()
            said += line or ""
        return said

    def _line(self) -> str | None:
        if sys.stdin is None:
            raise ArgumentError("stdin is closed")
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

    def turns(self, messages: Sequence[Message]) -> None:
        pass

    def stopped(self) -> None:
        raise KeyboardInterrupt

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        pass

    def note(self, text: str) -> None:
        click.echo(text, err=True)

    def error(self, text: str) -> None:
        raise click.ClickException(text)


class Records(Lines):
    """The same, with one object per answer. model: the name under which it was opened."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._answer = ""

    def answer(self, pieces: Iterable[Piece]) -> None:
        self._answer = "".join([piece.text for piece in pieces if not piece.is_thought])

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        said: dict[str, Any] = {"question": conversation.question, "answer": self._answer}
        said["n_left_out"] = conversation.n_left_out
        click.echo(json.dumps(said | report(completion, self._model)))
