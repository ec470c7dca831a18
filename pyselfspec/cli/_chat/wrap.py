"""Line breaks between words in a streamed text. Pure.

Each part of the text is shown at once. A word that reaches the margin moves to a new line. Words
longer than a line, rows of tables and code between fences stay whole, so that they can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.cells import cell_len

TAB = 8  # cells
FENCES = ("```", "~~~")
WHOLE = (*FENCES, "|")  # prefixes of lines that are never broken


@dataclass(frozen=True, slots=True)
class Span:
    """Text to show in a style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Erase:
    """Take back the last n cells of the line."""

    n: int


class Rows:
    """Counts the line breaks of steps in a terminal, including the terminal's own."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.n = 0
        self._column = 0

    def add(self, step: Span | Erase) -> None:
        if isinstance(step, Erase):
            self._column -= step.n
            return
        for c in step.text:
            n = 0 if c == "\n" else cell_len(c)
            if c == "\n" or self._column + n > self.width:
                self.n, self._column = self.n + 1, 0
            self._column += n


class Wrapper:
    """Wraps one text as it streams.

    width: returns the cells of a line; called for each part, since windows are resized.
    in_code: whether the next part is code, or ends the line of an opening fence.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._column = 0
        self._word: list[Span] = []  # already shown, may still move to a new line
        self._line = ""  # the text of the current line so far
        self._fence = ""  # the fence that closes the code, empty outside of code

    @property
    def in_code(self) -> bool:
        return bool(self._fence) or self._line.lstrip().startswith(FENCES)

    def put(self, text: str, style: str = "") -> list[Span | Erase]:
        """Return the steps that show the next part of the text."""
        width = max(2, self._width())
        joined: list[Span | Erase] = []
        for step in (step for c in text for step in self._character(c, style, width)):
            last = joined[-1] if joined else None
            if isinstance(step, Span) and isinstance(last, Span) and step.style == last.style:
                joined[-1] = Span(last.text + step.text, step.style)
            else:
                joined.append(step)
        return joined

    def _character(self, c: str, style: str, width: int) -> Iterator[Span | Erase]:
        if c == "\n":
            self._end_line()
            yield Span(c, style)
            return
        self._line += c
        shown = " " * (TAB - self._column % TAB) if c == "\t" else c
        if self._fence or self._line.lstrip().startswith(WHOLE):
            self._column += cell_len(shown)
            yield Span(shown, style)
        elif c in " \t":  # up to the margin; a new line follows there anyway
            self._word = []
            shown = shown[: max(0, width - self._column)]
            self._column += len(shown)
            yield Span(shown, style)
        else:
            yield from self._letter(c, style, width)

    def _end_line(self) -> None:
        line = self._line.strip()
        if self._fence:
            ends = line.startswith(self._fence) and not line.strip(self._fence[0])
            self._fence = "" if ends else self._fence
        elif line.startswith(FENCES):
            n = len(line) - len(line.lstrip(line[0]))
            self._fence = line[:n]
        self._line, self._column, self._word = "", 0, []

    def _letter(self, c: str, style: str, width: int) -> Iterator[Span | Erase]:
        """Yield a character of a word, after a line break if the word reaches the margin.

        A wide character counts as a word, since Chinese and Japanese have no spaces.
        """
        n = cell_len(c)
        if n > 1:
            self._word = []
        n_word = cell_len("".join(span.text for span in self._word))
        before = self._column - n_word
        # the last cell stays empty: a cursor after it cannot be moved back reliably
        if self._column + n >= width and before > 0 and n_word + n < width:
            if n_word:
                yield Erase(n_word)
            yield Span("\n")
            yield from self._word
            self._column = n_word
        elif self._column + n > width:  # the terminal breaks the line
            self._column, self._word = 0, []
        self._column += n
        self._word = [*self._word, Span(c, style)] if n < 2 else []
        yield Span(c, style)
