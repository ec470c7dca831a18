"""The form of a model's answers, found in its chat template: which markers stand around
reasoning and around calls of tools. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .call_forms import CALL_FORMS, HERMES, CallForm

THINK_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
)
HARMONY = "<|channel|>"
# Markers without a meaning for the reader, by a marker of their family; they are left out.
SILENT = {
    HARMONY: (
        "<|start|>assistant",
        "<|channel|>final",
        "<|channel|>commentary",
        "<|constrain|>json",
        "<|message|>",
        "<|end|>",
    ),
    "<｜tool▁call▁begin｜>": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "<|tool_call_begin|>": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
}
# Words by which a template of a family is known, where it does not write the opening marker whole.
_SIGNS = {
    "<|channel|>analysis<|message|>": "<|channel|>analysis",
    "<|channel>thought\n": "<|channel>",
    "<|tool_call>call:": "<|tool_call>",
    "<｜DSML｜function_calls>": "｜DSML｜",
    "<｜DSML｜tool_calls>": "｜DSML｜",
    "<minimax:tool_call>": "minimax:tool_call",
    "to=functions.": "functions.",
}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Markers of one model. think: pairs around reasoning. calls: forms of calls. silent: markers
    that are left out."""

    think: tuple[tuple[str, str], ...] = ()
    calls: tuple[CallForm, ...] = (HERMES,)
    silent: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: str) -> AnswerForm:
        """Return the form that a chat template shows. Calls in Hermes' form are read from every
        model: a request may have described it."""

        def shows(marker: str) -> bool:
            sign = _SIGNS.get(marker, marker)
            if marker == "to=functions.":
                return sign in source and HARMONY in source
            return sign in source

        return cls(
            tuple(
                (opening, close)
                for opening, close in THINK_MARKS
                if shows(opening) or (close[1] == "/" and close in source)
            ),
            tuple(form for form in CALL_FORMS if form is HERMES or shows(form.open)),
            tuple(mark for sign, marks in SILENT.items() if sign in source for mark in marks),
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """All markers. A model may have some as control tokens, which have no text otherwise."""
        calls = [text for form in self.calls for text in (form.open, form.close) if text]
        inner = ('<|"|>', "[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<|tool_call_argument_begin|>")
        return (*(text for pair in self.think for text in pair), *calls, *self.silent, *inner)
