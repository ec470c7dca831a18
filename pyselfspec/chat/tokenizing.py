"""Tokens of what a template wrote: special tokens where the template wants them, plain text where
somebody typed what looks like one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

from ..runtime import vocabulary
from ..runtime.model import Model
from .guard import Guard, Markers

_JOINT = "\n"  # put before a text whose beginning is no beginning of a text


class Tokenizing:
    """For one model. source: of its template.

    control: markers that llama.cpp finds only where it is told to parse special tokens.
    all: user-defined tokens, too, that this template writes. llama.cpp finds these in any text, as
    suits ordinary words such as "<b>"; where a template gives one a meaning, a typed one is none.
    """

    def __init__(self, model: Model, source: str) -> None:
        self._model = model
        found = vocabulary.markers(model)
        control = {marker.text: marker for marker in found if marker.is_control}
        self.control = Markers(control)
        self._user_defined = Markers(
            marker.text
            for marker in found
            if not marker.is_control and len(marker.text.strip()) > 2 and marker.text in source
        )
        self.all = Markers((*self.control.texts, *self._user_defined.texts))
        self._strips_before = {text for text, marker in control.items() if marker.strips_before}
        self._strips_behind = {text for text, marker in control.items() if marker.strips_behind}

    def tokens(self, text: str, guard: Guard, *, goes_on: bool) -> list[int]:
        """goes_on: other text is before this one.

        From one control token to the next, a stretch in which something is hidden is tokenized as
        plain text, all of it, so its tokens are those that the words have anywhere.
        """
        if not guard.has_hidden(text):
            return self._parsed(text, goes_on=goes_on)
        found: list[int] = []
        parsed_from = 0
        for stretch in self._stretches(text):
            words = text[stretch.start : stretch.stop]
            if guard.has_hidden(words):
                before = text[parsed_from : stretch.start]
                found += self._parsed(before, goes_on=goes_on and parsed_from == 0)
                found += self._plain(
                    self._stripped(text, stretch), guard, goes_on=goes_on and stretch.start == 0
                )
                parsed_from = stretch.stop
        return found + self._parsed(text[parsed_from:], goes_on=False)

    def answer(self, text: str) -> list[int]:
        """Tokens of an answer's text after its prompt; no control token is read in it."""
        return self._tokenized(text, parse_special=False, goes_on=True)

    def _stretches(self, text: str) -> list[range]:
        """Between control tokens, and before the first and behind the last."""
        ends = [
            0,
            *(end for place in self.control.whole(text) for end in (place.start, place.stop)),
        ]
        return [range(*pair) for pair in list(pairwise([*ends, len(text)]))[::2]]

    def _stripped(self, text: str, stretch: range) -> str:
        words = text[stretch.start : stretch.stop]
        if self._strips_before and text.startswith(tuple(self._strips_before), stretch.stop):
            words = words.rstrip()
        if self._strips_behind and text.endswith(tuple(self._strips_behind), 0, stretch.start):
            words = words.lstrip()
        return words

    def _plain(self, text: str, guard: Guard, *, goes_on: bool) -> list[int]:
        words, hidden = guard.shown(text)
        cuts = [  # llama.cpp finds these, unless they are in two pieces
            place.start + 1
            for place in self._user_defined.whole(words)
            if not hidden.isdisjoint(place)
        ]
        found: list[int] = []
        for start, end in pairwise([0, *cuts, len(words)]):
            on = goes_on or start > 0
            found += self._tokenized(words[start:end], parse_special=False, goes_on=on)
        return found

    def _parsed(self, text: str, *, goes_on: bool) -> list[int]:
        return self._tokenized(text, parse_special=True, goes_on=goes_on)

    def _tokenized(self, text: str, *, parse_special: bool, goes_on: bool) -> list[int]:
        def tokens(text: str) -> list[int]:
            return self._model.tokenize(text, add_special=False, parse_special=parse_special)

        if not text:
            return []
        if goes_on and self._adds_space:
            joint, joined = tokens(_JOINT), tokens(_JOINT + text)
            if joined[: len(joint)] == joint:
                return joined[len(joint) :]
        return tokens(text)

    @cached_property
    def _adds_space(self) -> bool:
        """Whether the model's tokenizer puts a space before every text."""
        first = self._model.tokenize("a", add_special=False)
        return self._model.detokenize(first) != "a"


def split_at(signs: Iterable[str], text: str) -> list[str]:
    """A text and the characters in it that are such signs, apart, in order."""
    pattern = "".join(signs)
    return re.split(f"([{pattern}])", text) if pattern else [text]
