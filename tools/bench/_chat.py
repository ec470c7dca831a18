"""What a model is given when somebody talks to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pyselfspec import Model
from pyselfspec.runtime._lib import llama


@dataclass(frozen=True, slots=True)
class Chat:
    """Prompts for one model, as its chat template has them. template: None for plain text."""

    model: Model
    template: str | None

    @classmethod
    def of(cls, model: Model) -> Chat:
        template = llama.llama_model_chat_template(model.handle, None)
        return cls(model, template.decode() if template else None)

    def prompt(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """Tokens after which the model answers the last of these turns.

        answers: to all turns but the last. Without a template: the text of the last turn.
        """
        if self.template is None:
            return self.model.tokenize(turns[-1])
        # the formatter loads llama_cpp, which finds our library once pyselfspec is loaded
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        messages: list[Any] = []
        for turn, answer in zip_longest(turns, answers):
            messages.append({"role": "user", "content": turn})
            if answer is not None:
                messages.append({"role": "assistant", "content": answer})
        render = Jinja2ChatFormatter(
            self.template,
            eos_token=self._text(llama.llama_vocab_eos(self.model.vocab)),
            bos_token=self._text(llama.llama_vocab_bos(self.model.vocab)),
        )
        text = render(messages=messages).prompt
        return self.model.tokenize(text, add_special=False)  # the template writes them

    def _text(self, token: int) -> str:
        """Of a special token; nothing where the vocabulary has none."""
        return llama.llama_vocab_get_text(self.model.vocab, token).decode() if token >= 0 else ""
