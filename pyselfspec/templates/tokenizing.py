"""Tokenizes rendered templates: special tokens written by the template become tokens, and those
typed in messages become plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

from ..runtime import vocabulary
from ..runtime.model import Model
from .special_token_guard import Guard, Markers

_JOINT = "\n"  # put before a text that continues another, so that it gets no leading space


class TemplateTokenizer:
    """Tokenizes for one model. source: the model's chat template.

    control: markers that llama.cpp finds only with parse_special. all: these and the user-defined
    tokens that the template writes. llama.cpp finds user-defined tokens in any text, which suits
    ordinary words such as "<b>"; one that has a meaning in the template must not be read from a
    message.
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
        self._strips_after = {text for text, marker in control.items() if marker.strips_behind}

    def tokens(self, text: str, guard: Guard, *, follows: bool) -> list[int]:
        """Return the token ids of a text. follows: whether other text comes before it.

        A stretch between two control tokens that has placeholders is tokenized as plain text as a
        whole, so that its words have their usual tokens.
        """
        if not guard.has_hidden(text):
            return self._parsed(text, follows=follows)
        found: list[int] = []
        parsed_from = 0
        ends = [end for place in self.control.find(text) for end in (place.start, place.stop)]
        for start, stop in list(pairwise([0, *ends, len(text)]))[::2]:
            words = text[start:stop]
            if guard.has_hidden(words):
                before = text[parsed_from:start]
                found += self._parsed(before, follows=follows and parsed_from == 0)
                if self._strips_before and text.startswith(tuple(self._strips_before), stop):
                    words = words.rstrip()
                if self._strips_after and text.endswith(tuple(self._strips_after), 0, start):
                    words = words.lstrip()
                plain, hidden = guard.restore(words)
                cuts = [  # llama.cpp does not find a user-defined token that is split
                    place.start + 1
                    for place in self._user_defined.find(plain)
                    if not hidden.isdisjoint(place)
                ]
                for begin, end in pairwise([0, *cuts, len(plain)]):
                    on = begin > 0 or (follows and start == 0)
                    found += self._tokenized(plain[begin:end], parse_special=False, follows=on)
                parsed_from = stop
        return found + self._parsed(text[parsed_from:], follows=False)

    def answer(self, text: str) -> list[int]:
        """Return the token ids of an answer after its prompt; control tokens stay plain text."""
        return self._tokenized(text, parse_special=False, follows=True)

    def markers(self, text: str) -> list[int]:
        """Return the token ids of text of the template after its prompt."""
        return self._parsed(text, follows=True)

    def _parsed(self, text: str, *, follows: bool) -> list[int]:
        return self._tokenized(text, parse_special=True, follows=follows)

    def _tokenized(self, text: str, *, parse_special: bool, follows: bool) -> list[int]:
        def tokens(text: str) -> list[int]:
            return self._model.tokenize(text, add_special=False, parse_special=parse_special)

        if not text:
            return []
        if follows and self._adds_space:
            joint, joined = tokens(_JOINT), tokens(_JOINT + text)
            if joined[: len(joint)] == joint:
                return joined[len(joint) :]
        return tokens(text)

    @cached_property
    def _adds_space(self) -> bool:
        """Return whether the model's tokenizer puts a space before every text."""
        first = self._model.tokenize("a", add_special=False)
        return self._model.detokenize(first) != "a"


def split_at(separators: Iterable[str], text: str) -> list[str]:
    """Split a text at these characters, which stay in the list."""
    pattern = "".join(separators)
    return re.split(f"([{pattern}])", text) if pattern else [text]
