"""A conversation with a model in one context: what was said, what is said next. Knows no terminal.

Later turns evaluate only what is new: the sequence holds the earlier ones, and answers go into the
next prompt as the tokens that the model generated.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Unpack

from ..errors import ArgumentError, ContextFullError
from ..runtime.context import Context
from ..runtime.sampling import SEED_MAX
from ..speculate.completion import INTERRUPTED, N_PREDICT, Completion, CompletionOptions
from ..speculate.origins import Origins, Part
from ..util.files import require_no_model
from . import saved
from .fitting import fitting
from .messages import ASSISTANT, SYSTEM, USER, Message
from .saved import SavedChat
from .template import ChatTemplate
from .thoughts import BEGIN, END, Piece, Thoughts

ANSWER_SHARE = 4  # of the context, a quarter at least is for the answer
KEPT_SHARE = 2  # half of it is filled when turns are left out, so that the next ones have room
N_LAST = 16  # tokens at the end of a prompt, where the template may begin thoughts


class Conversation:
    """options: of each answer, as for Completion. system: what the model is told first.

    ``ask`` and ``again`` yield pieces of an answer; however they are left, by an error, Ctrl-C or
    ``close``, the conversation goes on with what has been generated until then.

    >>> chat = Conversation(context, ChatTemplate.of(model))              # doctest: +SKIP
    >>> for piece in chat.ask("How are you?"): print(piece.text, end="")  # doctest: +SKIP
    """

    def __init__(
        self,
        context: Context,
        template: ChatTemplate,
        *,
        system: str | None = None,
        **options: Unpack[CompletionOptions],
    ) -> None:
        self.context = context
        self.template = template
        self.options = options
        self.messages: tuple[Message, ...] = ()
        self.completion: Completion | None = None  # of the latest answer
        self.thoughts = Thoughts()  # of the latest answer
        self.n_left_out = 0  # messages that the model does not see any more, behind the system's
        self._n_again = 0  # times that the latest question was asked again
        self.system = system

    @property
    def system(self) -> str | None:
        """What the model is told first; None leaves that to the template."""
        first = self.messages[0] if self.messages else None
        return first.text if first is not None and first.role == SYSTEM else None

    @system.setter
    def system(self, text: str | None) -> None:
        said = self.messages if self.system is None else self.messages[1:]
        self.messages = said if text is None else (Message(SYSTEM, text), *said)

    @property
    def question(self) -> str | None:
        """The latest one."""
        at = self._last_question()
        return None if at is None else self.messages[at].text

    def ask(self, text: str) -> Generator[Piece, None, None]:
        """The answer to a question.

        Raises ArgumentError when the template refuses it, ContextFullError when it does not fit;
        then nothing was said.
        """
        self._n_again = 0
        yield from self._answer((*self.messages, Message(USER, text)))

    def again(self, text: str | None = None) -> Generator[Piece, None, None]:
        """Another answer to the latest question, or to this text in its place.

        A seed that was given is another one each time. Raises as `ask`; then the former answer
        stays. Raises ArgumentError before the first question.
        """
        at = self._last_question()
        if at is None:
            raise ArgumentError("nothing has been asked yet")
        self._n_again = self._n_again + 1 if text is None else 0
        question = self.messages[at] if text is None else Message(USER, text)
        yield from self._answer((*self.messages[:at], question))

    def clear(self) -> None:
        """Begin anew, with the same system prompt."""
        self.messages = self.messages[:1] if self.system is not None else ()
        self.n_left_out = 0

    def save(self, path: Path) -> None:
        """Write all that was said to a file, see `load`; one that is there is replaced."""
        require_no_model(path)
        model = self.context.model
        saved.save(path, SavedChat(model.path.name, model.vocabulary, self.messages))

    def load(self, path: Path) -> None:
        """Go on with a saved conversation, of this or another model."""
        chat = saved.load(path)
        same = chat.vocabulary == self.context.model.vocabulary
        self.messages = tuple(
            message if same and self._spells(message) else replace(message, tokens=None)
            for message in chat.messages
        )
        self.n_left_out = 0

    def _spells(self, message: Message) -> bool:
        """Whether the tokens are the text, and nothing beside it."""
        model, tokens = self.context.model, message.tokens or ()
        return (
            all(0 <= token < model.n_vocab and model.piece(token) for token in tokens)
            and model.detokenize(tokens) == message.text
        )

    def _last_question(self) -> int | None:
        asked = [i for i, message in enumerate(self.messages) if message.role == USER]
        return asked[-1] if asked else None

    # answers

    def _answer(self, messages: tuple[Message, ...]) -> Generator[Piece, None, None]:
        prompt, n_left_out = self._prompt(messages)
        completion = Completion(self.context, prompt, **self._options())
        self.completion = completion
        last = self.context.model.detokenize(prompt[-N_LAST:])
        thoughts = self.thoughts = Thoughts(begun=last.rstrip().endswith(BEGIN))
        origins, piece_of, n_told = Origins[str | None](), self.context.model.piece, 0
        try:
            for text in completion:
                new = range(n_told, len(completion.tokens))
                n_told = new.stop
                for i in new:
                    origins.push(piece_of(completion.tokens[i]), completion.origins[i])
                yield from thoughts.take(_pieces(origins.take(text)))
            yield from thoughts.rest()
        finally:
            if completion.finish_reason is None:
                completion.finish_reason = INTERRUPTED
            if completion.tokens:
                self.messages = (*messages, self._said(completion))
                self.n_left_out = n_left_out

    def _options(self) -> CompletionOptions:
        options = self.options.copy()
        options["stop"] = (*options.get("stop", ()), *self.template.stop)
        sampling = options.get("sampling")
        if sampling is not None and sampling.seed is not None:
            seed = (sampling.seed + self._n_again) % (SEED_MAX + 1)
            options["sampling"] = replace(sampling, seed=seed)
        return options

    def _said(self, completion: Completion) -> Message:
        """The answer. Its text is that of its tokens, which a stop string has cut.

        Thoughts that did not end are ended, so that a template that leaves out thoughts finds them.
        """
        model, tokens = self.context.model, completion.tokens
        if self.thoughts.are_open and END in self.template.source:
            return Message(ASSISTANT, f"{completion.text}\n{END}\n\n")
        if completion.finish_reason == "stop":
            return Message(ASSISTANT, completion.text)
        if model.is_eog(tokens[-1]):  # the template writes it
            tokens = tokens[:-1]
        return Message(ASSISTANT, model.detokenize(tokens), tokens=tuple(tokens))

    def _prompt(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """Tokens of the messages that the model is to see, and how many it is not to see."""
        n_ctx = self.context.n_ctx
        n_answer = min(self.options.get("n_predict", N_PREDICT), n_ctx // ANSWER_SHARE)
        n_system = int(messages[0].role == SYSTEM)
        n_left_out = min(self.n_left_out, self._n_before_last(messages) - n_system)
        seen = (*messages[:n_system], *messages[n_system + n_left_out :])
        prompt = self.template.tokens(seen)
        if len(prompt) + n_answer > n_ctx:
            seen = self._fitting(seen, n_ctx - n_answer)
            prompt = self.template.tokens(seen)
        return prompt, len(messages) - len(seen)

    def _n_before_last(self, messages: Sequence[Message]) -> int:
        return max(i for i, message in enumerate(messages) if message.role == USER)

    def _fitting(self, messages: Sequence[Message], n_max: int) -> tuple[Message, ...]:
        def n_tokens(some: Sequence[Message]) -> int:
            return len(self.template.tokens(some))

        try:
            return fitting(messages, n_tokens, min(n_max, self.context.n_ctx // KEPT_SHARE))
        except ContextFullError:
            return fitting(messages, n_tokens, n_max)


def _pieces(parts: Iterable[Part[str | None]]) -> list[Piece]:
    """Of one origin each, as long as they can be."""
    by_origin = groupby((part for part in parts if part.text), key=lambda part: part.of)
    return [Piece("".join(part.text for part in group), origin) for origin, group in by_origin]
