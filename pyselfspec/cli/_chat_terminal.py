"""A chat in a terminal: lines that can be edited, answers that stream in, colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer
from prompt_toolkit.completion import Completion as Choice
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text

from ..chat.conversation import Conversation, Piece
from ..speculate.completion import Completion
from ..speculate.report import closing_line
from ..util.paths import data
from ._signals import Ended

PROMPT, MORE = "> ", ". "
OWN = ""  # the colour of the model's own tokens: the terminal's
COLOURS = ("green", "cyan", "yellow", "magenta", "blue", "red")  # of drafters, as they turn up


class Terminal:
    """commands: names that are completed behind a slash. show_drafts: colours of drafters.

    input, output: of prompt_toolkit, default: the terminal's.
    """

    keys: tuple[str, ...] = (
        "Enter sends, Alt-Enter begins a new line, Tab completes commands",
        "Ctrl-C stops an answer or forgets a line, Ctrl-D ends, up and down go through the history",
    )

    def __init__(
        self,
        model: str,
        commands: Iterable[str],
        *,
        show_drafts: bool = False,
        console: Console | None = None,
        **session: Any,
    ) -> None:
        self._console = console or Console(highlight=False)
        self._show_drafts = show_drafts
        self._colours: dict[str | None, str] = {None: OWN}
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=CommandNames(commands),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=MORE,
            **session,
        )
        self.note(f"{model}; /help lists commands, Ctrl-D ends")

    def read(self, draft: str) -> str | None:
        try:
            return self._session.prompt(PROMPT, default=draft)
        except EOFError:
            return None
        except Ended:
            raise
        except KeyboardInterrupt:  # forget the line
            return ""

    def answer(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            style = self._colour(piece.origin) if self._show_drafts else OWN
            self._print(Text(printable(piece.text), style), end="")
        self._print()

    def _colour(self, origin: str | None) -> str:
        """Of a drafter, the next free one when it first turns up."""
        n = len(self._colours) - 1
        return self._colours.setdefault(origin, COLOURS[n % len(COLOURS)])

    def stopped(self) -> None:
        self._print()
        self.note("stopped")

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        if self._show_drafts:
            self._print(self._legend(completion))
        self.note(closing_line(completion) + "\n")

    def _legend(self, completion: Completion) -> Text:
        n_of = {origin: completion.origins.count(origin) for origin in self._colours}
        parts: Iterator[Text] = (
            Text(f"■ {origin or 'the model'}: {n_of[origin]}", colour)
            for origin, colour in self._colours.items()
            if n_of[origin]
        )
        return Text("  ").join(parts)

    def note(self, text: str) -> None:
        self._print(Text(printable(text), "dim"))

    def error(self, text: str) -> None:
        self._print(Text(printable(text), "red"))

    def _print(self, text: Text | str = "", end: str = "\n") -> None:
        self._console.print(text, end=end, soft_wrap=True, markup=False)


def printable(text: str) -> str:
    """Without what would steer the terminal: models and files may hold anything.

    >>> printable("a\\x1b[31mb\\n")
    'a�[31mb\\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


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
