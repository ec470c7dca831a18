"""Markers of answers that are control tokens of a model, and so have no text of their own."""

from __future__ import annotations

from ..runtime import vocabulary
from ..runtime.model import Model
from .answers.form import AnswerForm


def visible_tokens(model: Model, form: AnswerForm) -> tuple[tuple[int, str], ...]:
    """Return the markers of a form that are control tokens of a model, which have no text."""
    found = []
    for text in form.texts:
        tokens = model.tokenize(text, add_special=False)
        if len(tokens) == 1 and not model.piece(tokens[0]):
            found.append((tokens[0], text))
        elif len(tokens) > 1:  # a marker of several, such as <|channel|>analysis<|message|>
            found += _control_tokens(model, text)
    return tuple(dict(found).items())


def _control_tokens(model: Model, text: str) -> list[tuple[int, str]]:
    """Return the control tokens in a text that consists of tokens and words."""
    tokens = model.tokenize(text, add_special=False)
    return [(t, vocabulary.text_of(model, t)) for t in tokens if not model.piece(t)]
