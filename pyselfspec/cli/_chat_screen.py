"""Where a chat is read from and shown: a terminal, a pipe, or records of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Protocol

import click

from ..chat.conversation import Conversation, Piece
from ..errors import ArgumentError
from ..speculate.completion import Completion
from ..speculate.report import report
from ._options import MAX_TEXT


class Screen(Protocol):
    """keys: what /help says of keys."""

    keys: tuple[str, ...]

    def read(self, draft: str) -> str | None:
        """What is typed next, None at the end. draft: what it begins as."""
        ...

    def answer(self, pieces: Iterable[Piece]) -> None:
        """Show an answer while it comes."""
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
    """Each line of stdin is said in turn; answers on stdout, everything else on stderr. What goes
    wrong ends the chat: nobody is there to put it right."""

    keys: tuple[str, ...] = ()

    def read(self, draft: str) -> str | None:
        if sys.stdin is None:
            raise ArgumentError("stdin is closed")
        data = sys.stdin.buffer.readline(MAX_TEXT)
        try:
            return data.decode() if data else None
        except UnicodeDecodeError as error:
            raise ArgumentError(
                f"stdin is not UTF-8 text: byte 0x{data[error.start]:02x}"
            ) from None

    def answer(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            click.echo(piece.text, nl=False)
        click.echo()

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

    def answer(self, pieces: Iterable[Piece]) -> None:
        for _piece in pieces:
            pass

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        said = {"question": conversation.question, "n_left_out": conversation.n_left_out}
        click.echo(json.dumps(said | report(completion, self._model)))
