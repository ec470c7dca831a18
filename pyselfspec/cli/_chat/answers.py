"""Answers in a terminal: streamed, wrapped between words, thoughts dimmed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from ...chat.answer import Piece
from ...chat.conversation import Conversation
from ...speculate.completion import Completion
from ...templates.messages import ASSISTANT, USER, Message
from .._generation_report import closing_line
from .screen import Screen
from .wrap import Erase, Rows, Span, Wrapper

PROMPT = "> "
OWN = ""  # the colour of the model's own tokens: the terminal's
COLOURS = ("green", "cyan", "yellow", "magenta", "blue", "red")  # of drafters, by first use
LONG_S = 10.0  # after this time, a hint shows how to stop an answer
UNBROKEN = 1 << 30  # cells of a line
N_TURNS = 2  # shown of a saved conversation
N_LINES = 16  # shown of a message of it


class Answers(Screen):
    """Shows answers.

    show_drafts: colour tokens by the drafter that they come from. folds: one line takes the place
    of thoughts when the answer begins; a command must show them again.
    """

    folds: ClassVar[bool] = False

    def __init__(self, *, show_drafts: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._show_drafts = show_drafts
        self._colours: dict[str | None, str] = {None: OWN}
        self._hinted = False  # that Ctrl-C stops an answer
        self._rows = Rows(self._console.width)  # of the latest answer

    def answer(self, pieces: Iterable[Piece]) -> None:
        wrapper, self._rows = self._wrapper(), Rows(self._console.width)
        began, thought, said = time.monotonic(), False, False
        for piece in pieces:
            if piece.is_thought and not thought:
                self._show(wrapper.put("thinking:\n", "dim"))
            elif thought and not piece.is_thought:
                wrapper = self._wrapper()
                if not said and self._can_fold():
                    self._fold(time.monotonic() - began)
                self._show([Span("\n\n")])
            thought, said = piece.is_thought, said or not piece.is_thought
            was_in_code = wrapper.in_code
            steps = wrapper.put(printable(piece.text), self._style(piece))
            hints = time.monotonic() - began > LONG_S and not (was_in_code or wrapper.in_code)
            self._show(self._with_hint(steps) if hints else steps)
        self._print()

    def _can_fold(self) -> bool:
        """Return whether the rows that thoughts fill are known: a resized window breaks its lines
        anew."""
        console = self._console
        return self.folds and not console.is_dumb_terminal and console.width == self._rows.width

    def _fold(self, seconds: float) -> None:
        """Replace all rows of the answer so far by one, but for those above the screen."""
        n = min(self._rows.n, self._console.height - 1)
        erase = (ControlType.ERASE_IN_LINE, 2)
        up = [(ControlType.CURSOR_UP, 1), erase] * n
        self._console.control(Control(ControlType.CARRIAGE_RETURN, erase, *up))
        self._show([Span(f"thought for {seconds:.1f} s; /thinking shows it", "dim")])

    def turns(self, messages: Sequence[Message]) -> None:
        """Show the last turns of a conversation."""
        questions = [i for i, message in enumerate(messages) if message.role == USER]
        for message in messages[questions[-N_TURNS:][0] :] if questions else ():
            if message.role == USER:
                self.note(PROMPT + _shortened(message.text))
            elif message.role == ASSISTANT:
                self._wrapped(_shortened(message.text) + "\n")

    def stopped(self) -> None:
        self._print()
        self.note("stopped")

    def answered(self, conversation: Conversation, completion: Completion) -> None:
        if self._show_drafts:
            counted = ((o, completion.sources.count(o), c) for o, c in self._colours.items())
            legend = (Text(f"■ {o or 'the model'}: {n}", c) for o, n, c in counted if n)
            self._print(Text("  ").join(legend))
        self.note(closing_line(completion) + "\n")

    def note(self, text: str) -> None:
        self._wrapped(text, "dim")

    def error(self, text: str) -> None:
        self._wrapped(text, "red")

    def _wrapped(self, text: str, style: str = "") -> None:
        self._show(self._wrapper().put(printable(text), style))
        self._print()

    def _wrapper(self) -> Wrapper:
        """Return a wrapper of lines; a dumb terminal cannot erase words, so it gets unbroken
        lines."""
        return Wrapper(lambda: UNBROKEN if self._console.is_dumb_terminal else self._console.width)

    def _show(self, steps: Iterable[Span | Erase]) -> None:
        for step in steps:
            self._rows.add(step)
            if isinstance(step, Span):
                self._print(Text(step.text, step.style), end="")
            else:
                back, erase = ControlType.CURSOR_BACKWARD, ControlType.ERASE_IN_LINE
                self._console.control(Control((back, step.n), (erase, 0)))

    def _with_hint(self, steps: list[Span | Erase]) -> Iterator[Span | Erase]:
        """Insert the hint after the first line break, once."""
        for step in steps:
            if self._hinted or isinstance(step, Erase) or "\n" not in step.text:
                yield step
                continue
            self._hinted = True
            line, _, rest = step.text.partition("\n")
            yield Span(f"{line}\n", step.style)
            yield Span("(Ctrl-C stops the answer)\n", "dim")
            yield Span(rest, step.style)

    def _style(self, piece: Piece) -> str:
        """Return the colour of a piece's drafter, the next free one at first; dim in thoughts."""
        colour, n = OWN, len(self._colours) - 1
        if self._show_drafts:
            colour = self._colours.setdefault(piece.origin, COLOURS[n % len(COLOURS)])
        return f"dim {colour}".strip() if piece.is_thought else colour

    def _print(self, text: Text | str = "", end: str = "\n") -> None:
        self._console.print(text, end=end, soft_wrap=True, markup=False)


class Once(Answers):
    """Shows the answer to one question; reads nothing. Ctrl-C ends the program."""

    def stopped(self) -> None:
        self._print()
        raise KeyboardInterrupt


def printable(text: str) -> str:
    """Replace characters that control the terminal, which texts of models and files may contain.

    >>> printable("a\\x1b[31mb\\n")
    'a�[31mb\\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _shortened(text: str) -> str:
    """Return the first and the last lines of a long text."""
    lines = text.splitlines()
    half = N_LINES // 2
    return text if len(lines) <= N_LINES else "\n".join([*lines[:half], "...", *lines[-half:]])
