"""Several texts of one context side by side, their rows in shared passes.

Every text is the one it would be alone, bit for bit, as long as passes keep to the library's exact
width: it is a budget for the rows of all.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack

from ..errors import ArgumentError, ContextFullError
from ..runtime.context import Context
from .requests import Answer, Request, Work, answers
from .text import Text
from .types import Step

Event = tuple[Text, Step | None]  # None: the prompt has been read


def steps_together(context: Context, texts: Sequence[Text]) -> Generator[list[Event], None, None]:
    """Yield what each pass has finished. A text that finds no more room in the context ends.

    Raises ArgumentError for texts that share a sequence; what Context.run does; and
    ContextFullError for a prompt without room.
    """
    ids = [text.seq.seq_id for text in texts]
    twice = next((i for i in ids if ids.count(i) > 1), None)
    if twice is not None:
        raise ArgumentError(f"each text needs a sequence of its own; sequence {twice} has two")
    with ExitStack() as stack:
        running = [_Running(text) for text in texts]
        for each in running:
            stack.callback(each.close)
            yield each.advance(None)
        while waiting := [each for each in running if each.request is not None]:
            chosen, found = _run_next(context, waiting)
            # whoever was not chosen has waited longer from now on
            running = [each for each in waiting if each not in chosen] + chosen
            pairs = zip(chosen, found, strict=True)
            yield [event for each, answer in pairs for event in each.advance(answer)]


class _Running:
    """A text, the work that it is doing, and the request it waits for; none when it has ended."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.request: Request | None = None
        self._work: Work[None] | Work[Step] = text.begin()

    def advance(self, answer: Answer | ContextFullError | None) -> list[Event]:
        """Work up to the next request; what has been finished on the way."""
        try:
            if answer is None:
                self.request = next(self._work)
            elif isinstance(answer, ContextFullError):
                self.request = self._work.throw(answer)
            else:
                self.request = self._work.send(answer)
            return []
        except StopIteration as end:
            self.request, finished = None, end.value
        except ContextFullError:
            if not self.text.ended:
                raise
            self.request = None
            return []
        if not self.text.ended:
            self._work = self.text.step()
            self.request = next(self._work)
        return [(self.text, finished)]

    def close(self) -> None:
        self._work.close()
        self.request = None


def _run_next(
    context: Context, waiting: Sequence[_Running]
) -> tuple[list[_Running], Sequence[Answer | ContextFullError]]:
    """Choose a pass and run it: who took part, and the answers."""
    chosen = _next_pass(waiting, context.pass_width)
    while True:
        try:
            return chosen, answers(context, [each.request for each in chosen if each.request])
        except ContextFullError as error:
            if len(chosen) == 1:
                return chosen, [error]
            chosen = chosen[: len(chosen) // 2]


def _next_pass(waiting: Sequence[_Running], width: int) -> list[_Running]:
    """The oldest request and all that fit into its pass.

    Drafts go first: texts that wait for their verification pass then share it. Nobody starves,
    since a draft ends at its limit.
    """
    drafts = [each for each in waiting if each.request and each.request.what.is_draft]
    first, *others = drafts or waiting
    assert first.request is not None
    chosen, n_rows = [first], len(first.request.rows)
    for each in others:
        assert each.request is not None
        n = n_rows + len(each.request.rows)
        if n <= width and each.request.what.joins(first.request.what):
            chosen.append(each)
            n_rows = n
    return chosen
