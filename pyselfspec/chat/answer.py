"""An answer of a chat in pieces: reasoning apart from text, with the drafter that proposed each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from ..answers.form import THINK_MARKS, AnswerForm
from ..answers.markers import opened_reasoning, visible_tokens
from ..answers.parts import Called, Part, Reasoning, Said
from ..answers.reader import AnswerReader
from ..speculate.completion import Completion
from ..speculate.output.sources import TokenTracker
from ..templates.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text. origin: the drafter that proposed it, None for the full model."""

    text: str
    origin: str | None = None
    is_thought: bool = False


class ChatForm:
    """The form of the answers in a chat with a template. shown: control tokens among its markers,
    which completions must show."""

    def __init__(self, template: ChatTemplate) -> None:
        form = AnswerForm.of(template.all_sources)
        # a model may reason although a template that replaces its own has no markers
        self._form = AnswerForm(form.think or THINK_MARKS[:1], (), form.silent)
        self._model = template.model
        self.shown = dict(visible_tokens(self._model, self._form))

    def reader(self, prompt: Sequence[int]) -> AnswerReader:
        """Return a reader of the answer to a prompt."""
        reasoning_end = opened_reasoning(self._model, prompt, self._form, self.shown)
        return AnswerReader(self._form, {}, reasoning_end=reasoning_end)

    def without_thoughts(self, text: str) -> str:
        """Return the text of a whole answer, whose prompt may have opened the reasoning."""
        ends = (
            close
            for opening, close in self._form.think
            if close in text and opening not in text.partition(close)[0]
        )
        return read_whole(AnswerReader(self._form, {}, reasoning_end=next(ends, None)), text)[1]


def read_whole(reader: AnswerReader, text: str) -> tuple[str, str]:
    """Return the reasoning and the text of a whole answer."""
    parts = [*reader.push(text), *reader.finish()]
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return reasoning, "".join(part.text for part in parts if isinstance(part, Said))


def read_pieces(completion: Completion, reader: AnswerReader) -> Iterator[Piece]:
    """Generate an answer; yield it in pieces of one kind and one origin each."""
    tracker = TokenTracker[str | None]()
    origins: list[str | None] = []  # of each character
    n_seen = 0
    for text in completion:
        new = slice(n_seen, len(completion.tokens))
        n_seen = new.stop
        for token, source in zip(completion.tokens[new], completion.sources[new], strict=True):
            tracker.push(completion.piece(token), source)
        for each in tracker.take(text):
            origins += [each.tag] * len(each.text)
        yield from _pieces(reader.push(text), origins)
    yield from _pieces(reader.finish(), origins)


def _pieces(parts: Sequence[Part], origins: Sequence[str | None]) -> Iterator[Piece]:
    for part in parts:
        assert not isinstance(part, Called), "a chat has no tools"
        of_part = origins[part.at : part.at + len(part.text)]
        for origin, group in groupby(zip(part.text, of_part, strict=True), key=itemgetter(1)):
            text = "".join(character for character, _ in group)
            yield Piece(text, origin, isinstance(part, Reasoning))
