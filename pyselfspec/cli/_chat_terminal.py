"""A chat in a terminal: lines that can be edited, between answers."""

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

from ..util.paths import data
from ._chat_answers import PROMPT, Answers
from ._chat_typing import is_open
from ._signals import Ended

MORE = ". "


class Terminal(Answers):
    """title: what the first line says of the model. commands: names that are completed after a
    slash. typed: keys that came before. show_drafts: colours of drafters.

    input, output: of prompt_toolkit, default: the terminal's.
    """

    keys: tuple[str, ...] = (
        "Enter sends, Alt-Enter begins a new line, Tab completes commands",
        'put text of several lines between """ and """',
        "Ctrl-C stops an answer or forgets a line, Ctrl-D ends, up and down go through the history",
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
        except KeyboardInterrupt:  # forget the line
            return ""

    def confirms(self, question: str) -> bool:
        """Whether the user says yes."""
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
    """Of all chats, in the user's data folder, for nobody else to read."""
    path = data("chat") / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # a home that cannot be written to is no reason not to talk
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
    """Completes the names behind a slash at the start."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Choice]:
        typed = document.text
        for name in self._names:
            if typed.startswith("/") and name.startswith(typed[1:]):
                yield Choice(name, start_position=1 - len(typed))
