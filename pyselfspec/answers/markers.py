"""Markers that are control tokens of a model, which have no text of their own, and markers at the
end of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..runtime import vocabulary
from ..runtime.model import Model
from ..runtime.pictures import is_text
from .form import AnswerForm

N_TAIL = 16  # tokens at the end of a prompt, which may open reasoning


def visible_tokens(model: Model, form: AnswerForm) -> tuple[tuple[int, str], ...]:
    """Return the markers of a form that are control tokens of a model, which have no text."""
    found = []
    for text in form.texts:
        tokens = model.tokenize(text, add_special=False)
        if len(tokens) == 1 and not model.piece(tokens[0]):
            found.append((tokens[0], text))
        elif len(tokens) > 1:  # a marker of several, such as <|channel|>analysis<|message|>
            found += [(t, vocabulary.text_of(model, t)) for t in tokens if not model.piece(t)]
    return tuple(dict(found).items())


def opened_reasoning(
    model: Model, prompt: Sequence[int], form: AnswerForm, shown: Mapping[int, str]
) -> str | None:
    """Return the marker that closes reasoning which the end of a prompt opens, None if none does.

    shown: the visible tokens of the form.
    """
    pieces = [
        shown[t].encode() if t in shown else model.piece(t) for t in prompt[-N_TAIL:] if is_text(t)
    ]
    tail = b"".join(pieces).decode(errors="replace").rstrip()
    return next((close for mark, close in form.think if tail.endswith(mark.rstrip())), None)
