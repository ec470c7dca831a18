"""Several texts of one context side by side, their rows in shared passes.

Every text is the one it would be alone, bit for bit, as long as passes keep to the library's exact
width: it is a budget for the rows of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import ExitStack

from ..errors import ContextFullError
from ..runtime.context import Context
from .requests import Answer, Request, Work, answers
from .text import Text
from .types import Step


def steps_together(
    context: Context, texts: Sequence[Text]
) -> Generator[tuple[Text, Step | None], None, None]:
    """Yield each text with the step that it has made, as they come; with None when its prompt has
    been read. A text that finds no more room in the context ends.

    Raises what Context.run does; ContextFullError only for a prompt without room.
    """
    with ExitStack() as stack:
        running = [_Running(text) for text in texts]
        for each in running:
            stack.callback(each.close)
            yield from each.advance(None)
        while waiting := [each for each in running if each.request is not None]:
            chosen, found = _run_next(context, waiting)
            # whoever was not chosen has waited longer from now on
            running = [each for each in waiting if each not in chosen] + chosen
            events = [each.advance(answer) for each, answer in zip(chosen, found, strict=True)]
            yield from itertools.chain.from_iterable(events)


class _Running:
    """A text, the work that it is doing, and the request it waits for; none when it has ended."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.request: Request | None = None
        self._work: Work[None] | Work[Step] = text.begin()
        self._began = False

    def advance(self, answer: Answer | None) -> list[tuple[Text, Step | None]]:
        """Work up to the next request; what has been finished on the way."""
        try:
            self.request = next(self._work) if answer is None else self._work.send(answer)
            return []
        except StopIteration as end:
            self._began, self.request = True, None
            finished: Step | None = end.value
        if not self.text.ended:
            self._work = self.text.step()
            self.request = next(self._work)
        return [(self.text, finished)]

    def give_up(self, error: ContextFullError) -> None:
        """There is no room for another token. Raises the error if there was none for the prompt."""
        if not self._began:
            raise error
        self.close()
        self.text.end()

    def close(self) -> None:
        self._work.close()
        self.request = None


def _run_next(context: Context, waiting: Sequence[_Running]) -> tuple[list[_Running], list[Answer]]:
    """Choose a pass and run it: who took part, and the answers. Nobody, when the only one that
    could found no room and ended."""
    chosen = _next_pass(waiting, context.pass_width)
    while chosen:
        try:
            requests = [each.request for each in chosen if each.request is not None]
            return chosen, answers(context, requests)
        except ContextFullError as error:
            if len(chosen) == 1:
                chosen[0].give_up(error)
            chosen = chosen[: len(chosen) // 2]
    return [], []


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
