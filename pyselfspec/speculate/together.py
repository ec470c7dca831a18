"""Several texts of one context side by side, their rows in shared passes; they join and leave while
others go on.

Every text is the one it would be alone, bit for bit, as long as passes keep to the library's exact
width: it is a budget for the rows of all. Without flash attention that does not hold, see
`warning_of`.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import closing

from ..errors import ArgumentError, ContextFullError, SelfSpecError
from ..runtime.context import Context
from ..util.closing import Closing
from .requests import Answer, Request, Work, answers
from .text import Text
from .types import Step

# None: the prompt has been read. An error has ended the text, and nobody else's.
Event = tuple[Text, Step | Exception | None]


class SideBySideWarning(UserWarning):
    """Texts that are written side by side may differ from those written alone."""


def warning_of(context: Context) -> str | None:
    """Warning text for contexts where parallel texts may differ from single ones, else None."""
    if context.is_exact_beside_others or not context.exact_width:
        return None
    cause = (
        "without flash attention" if context.flash_attn is False else "in this model's attention"
    )
    return (
        f"{cause}, a text's last bits depend on the other texts in the context, so that it may "
        "differ from the one written alone"
    )


def steps_together(context: Context, texts: Sequence[Text]) -> Generator[list[Event], None, None]:
    """Yield what each pass has finished. A text that finds no more room in the context ends.

    Warns with SideBySideWarning where a text may not be the one that it is alone.

    Raises ArgumentError for texts that share a sequence; what Context.run does; and
    ContextFullError for a prompt without room.
    """
    warning = warning_of(context) if len(texts) > 1 else None
    if warning is not None:
        warnings.warn(warning, SideBySideWarning, stacklevel=2)
    with closing(Together(context)) as together:
        for text in texts:
            yield _no_errors(together.join(text))
        while together.texts:
            yield _no_errors(together.run_pass())


def _no_errors(events: list[Event]) -> list[Event]:
    for _, found in events:
        if isinstance(found, Exception):
            raise found
    return events


class Together(Closing):
    """Texts that are being worked on. Belongs to the context's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running: list[_Running] = []

    @property
    def texts(self) -> list[Text]:
        """Those that wait for a pass; others have ended."""
        return [each.text for each in self._running]

    def join(self, text: Text) -> list[Event]:
        """Begin a text; what was finished without a pass.

        Raises ArgumentError where another one has its sequence.
        """
        seq_id = text.seq.seq_id
        if any(each.text.seq.seq_id == seq_id for each in self._running):
            raise ArgumentError(f"each text needs a sequence of its own; sequence {seq_id} has two")
        running = _Running(text)
        self._running.append(running)
        return self._advanced([running], [None])

    def leave(self, text: Text) -> None:
        """Work on this text no more; its sequence holds what it has so far."""
        for each in [each for each in self._running if each.text is text]:
            self._running.remove(each)
            each.close()

    def run_pass(self) -> list[Event]:
        """One pass for those who have waited longest, and what it has finished."""
        chosen, found = _run_next(self._context, self._running)
        # whoever was not chosen has waited longer from now on
        self._running = [each for each in self._running if each not in chosen] + chosen
        return self._advanced(chosen, found)

    def _advanced(
        self, running: Sequence[_Running], found: Sequence[Answer | Exception | None]
    ) -> list[Event]:
        pairs = zip(running, found, strict=True)
        events = [event for each, answer in pairs for event in each.advance(answer)]
        self._running = [each for each in self._running if each.request is not None]
        return events

    def close(self) -> None:
        for text in self.texts:
            self.leave(text)


class _Running:
    """A text, the work that it is doing, and the request it waits for; none when it has ended."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.request: Request | None = None
        self._work: Work[None] | Work[Step] = text.begin()

    def advance(self, answer: Answer | Exception | None) -> list[Event]:
        """Work up to the next request; what has been finished on the way."""
        try:
            return self._finished(answer)
        except Exception as error:  # its own: others go on
            self.request = None
            if isinstance(error, ContextFullError) and self.text.ended:
                return []
            return [(self.text, error)]

    def _finished(self, answer: Answer | Exception | None) -> list[Event]:
        try:
            if answer is None:
                self.request = next(self._work)
            elif isinstance(answer, Exception):
                self.request = self._work.throw(answer)
            else:
                self.request = self._work.send(answer)
            return []
        except StopIteration as end:
            self.request, finished = None, end.value
        if not self.text.ended:
            self._work = self.text.step()
            self.request = next(self._work)
        return [(self.text, finished)]

    def close(self) -> None:
        self._work.close()
        self.request = None


def _run_next(
    context: Context, waiting: Sequence[_Running]
) -> tuple[list[_Running], Sequence[Answer | Exception]]:
    """Choose a pass and run it: who took part, and the answers."""
    chosen = _next_pass(waiting, context.pass_width)
    while True:
        try:
            return chosen, answers(context, [each.request for each in chosen if each.request])
        except SelfSpecError as error:
            # a memory that takes no tail back has lost the texts of a pass that failed
            if len(chosen) == 1 or not context.can_rollback:
                return chosen, [error] * len(chosen)
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
