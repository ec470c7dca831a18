"""A chat in a terminal, with editable input lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer
from prompt_toolkit.completion import Completion as Choice
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from rich.console import Console

from ...util.paths import data
from .._signals import Ended
from .answers import PROMPT, Answers
from .typed_ahead import is_open

MORE = ". "


class Terminal(Answers):
    """Reads messages from a terminal, and shows answers in it.

    title: the model in the first line. commands: names to complete after a slash. typed: keys
    typed before the chat started. show_drafts: colour tokens by drafter. session: input and output
    of prompt_toolkit, default: the terminal's.
    """

    folds = True
    keys: tuple[str, ...] = (
        "Enter sends, Alt-Enter starts a new line, Tab completes commands",
        'put text of several lines between """ and """',
        "Ctrl-C stops an answer or clears the line, Ctrl-D ends, Up and Down browse the history",
    )

    def __init__(
        self,
        title: str,
        commands: Iterable[str],
        *,
        typed: str = "",
        show_drafts: bool = False,
        console: Console | None = None,
        **session: Any,
    ) -> None:
        super().__init__(show_drafts=show_drafts, console=console)
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=CommandNames(commands),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=MORE,
            **session,
        )
        keys: list[KeyPress] = []
        Vt100Parser(keys.append).feed_and_flush(typed)
        store_typeahead(self._session.input, keys)
        self._yes_or_no: PromptSession[str] = PromptSession(history=InMemoryHistory(), **session)
        self.note(f"{title}; /help lists commands, Ctrl-D ends")

    def read(self, draft: str) -> str | None:
        try:
            return self._session.prompt(PROMPT, default=draft)
        except EOFError:
            return None
        except Ended:
            raise
        except KeyboardInterrupt:  # clear the line
            return ""

    def confirms(self, question: str) -> bool:
        """Ask a question; return whether the user answers yes."""
        try:
            said = self._yes_or_no.prompt(f"{question} [y/N] ")
        except EOFError:
            return False
        except Ended:
            raise
        except KeyboardInterrupt:
            return False
        return said.strip().lower() in ("y", "yes")


def _history() -> History:
    """Return the history of all chats, in a file that only the user can read."""
    path = data("chat") / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # chats work without a writable home
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        if is_open(event.current_buffer.text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class CommandNames(Completer):
    """Completes the names of commands after a slash at the start of a line."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Choice]:
        typed = document.text
        for name in self._names:
            if typed.startswith("/") and name.startswith(typed[1:]):
                yield Choice(name, start_position=1 - len(typed))
