"""A conversation with a model in one context.

Prefix reuse keeps later turns short: answers stand in the next prompt as the tokens that the model
generated, and the KV cache holds them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

from ..errors import ArgumentError, ContextFullError
from ..runtime.context import Context
from ..runtime.pictures import Picture
from ..runtime.projector import Projector
from ..runtime.sampling import SEED_MAX
from ..speculate.completion import N_PREDICT, Completion, CompletionOptions
from ..speculate.config import AUTO, DraftChoice, DraftConfig
from ..speculate.output.record import INTERRUPTED
from ..templates.messages import ASSISTANT, SYSTEM, USER, Message, parse
from ..templates.template import ChatTemplate
from ..util import records
from ..util.files import require_no_model
from .answer import ChatForm, Piece, read_pieces, read_whole
from .pictures import prompt_of
from .trimming import trim_messages

ANSWER_SHARE = 4  # at least a quarter of the context is free for the answer
KEPT_SHARE = 2  # leaving out turns keeps half of the context, so that the next ones have room


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A conversation on disk. model: the name of the model's file, for information. vocabulary:
    that of the answers' token ids, see Model.vocabulary."""

    FORMAT: ClassVar[int] = 1
    model: str
    vocabulary: str
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if self.messages:
            parse([message.to_dict() for message in self.messages])


class Conversation:
    """Questions and answers. draft, options: arguments of Completion for each answer. system: the
    system prompt, None for the template's own. projector: reads pictures for the model.

    ``ask`` and ``regenerate`` yield pieces of an answer. If they end early, by an error, Ctrl-C or
    ``close``, the conversation keeps what has been generated.

    >>> chat = Conversation(context, ChatTemplate.of(model))              # doctest: +SKIP
    >>> for piece in chat.ask("How are you?"): print(piece.text, end="")  # doctest: +SKIP
    """

    def __init__(
        self,
        context: Context,
        template: ChatTemplate,
        draft: DraftChoice | DraftConfig = AUTO,
        *,
        system: str | None = None,
        projector: Projector | None = None,
        **options: Unpack[CompletionOptions],
    ) -> None:
        self.context = context
        self.template = template
        self.projector = projector
        self.config = DraftConfig.create(draft)
        self.options = options
        self.messages: tuple[Message, ...] = ()
        self.completion: Completion | None = None  # of the latest answer
        self.is_thinking = False  # at the end of the latest answer
        self._form = ChatForm(template)
        self.n_left_out = 0  # messages after the system prompt that no longer fit into the context
        self._n_regenerated = 0  # answers to the latest question after the first
        self.system = system

    @property
    def system(self) -> str | None:
        """The system prompt; None for the template's own."""
        first = self.messages[0] if self.messages else None
        return first.text if first is not None and first.role == SYSTEM else None

    @system.setter
    def system(self, text: str | None) -> None:
        turns = self.messages if self.system is None else self.messages[1:]
        self.messages = turns if text is None else (Message(SYSTEM, text), *turns)

    @property
    def question(self) -> str | None:
        """The latest question."""
        at = self._last_question()
        return None if at is None else self.messages[at].text

    @property
    def reasoning(self) -> str:
        """The reasoning of the latest answer; empty if it has none."""
        latest = self.completion
        if latest is None:
            return ""
        return read_whole(self._form.reader(latest.prompt), latest.text)[0]

    def without_thoughts(self) -> list[Message]:
        """Return all messages, answers without their reasoning, to be shown."""
        return [
            Message(ASSISTANT, self._form.without_thoughts(message.text))
            if message.role == ASSISTANT
            else message
            for message in self.messages
        ]

    def ask(self, text: str, pictures: Sequence[bytes] = ()) -> Generator[Piece, None, None]:
        """Yield the answer to a question. pictures: the bytes of files, which come before it.

        Raises ArgumentError if the template refuses it or a picture cannot be read,
        ContextFullError if it does not fit; the conversation then stays unchanged.
        """
        self._n_regenerated = 0
        question = Message(USER, text, pictures=tuple(pictures))
        yield from self._answer((*self.messages, question))

    def regenerate(self, text: str | None = None) -> Generator[Piece, None, None]:
        """Yield another answer to the latest question, or to `text` with the same pictures.

        A fixed seed grows by one each time. Raises the errors of `ask`, and then keeps the former
        answer; ArgumentError before the first question.
        """
        at = self._last_question()
        if at is None:
            raise ArgumentError("there is no question yet; ask one first")
        self._n_regenerated = self._n_regenerated + 1 if text is None else 0
        question = self.messages[at]
        question = question if text is None else replace(question, content=text)
        yield from self._answer((*self.messages[:at], question))

    def clear(self) -> None:
        """Remove all messages but the system prompt."""
        self.messages = self.messages[:1] if self.system is not None else ()
        self.n_left_out = 0

    def switch(
        self,
        context: Context,
        template: ChatTemplate,
        draft: DraftChoice | DraftConfig = AUTO,
        projector: Projector | None = None,
    ) -> None:
        """Go on with another model, which reads the messages in its own template."""
        former = self.context.model.vocabulary
        self.context, self.template, self._form = context, template, ChatForm(template)
        self.projector = projector
        self.config = DraftConfig.create(draft)
        self._take(self.messages, former)
        self.completion, self.is_thinking = None, False

    def save(self, path: Path) -> None:
        """Write all messages to a file, for `load`. Replaces an existing file, as a whole."""
        require_no_model(path)
        model = self.context.model
        records.save(path, SavedChat(model.path.name, model.vocabulary, self.messages))

    def load(self, path: Path) -> None:
        """Replace the messages by those of a file. The file may come from another model.

        Raises RecordError for a file without a chat, OSError for an unreadable file.
        """
        try:
            chat = records.load(path, SavedChat, what="saved chat")
        except records.RecordError as error:
            reason = str(error.__cause__).partition(":")[0]  # without the details of the parser
            raise records.RecordError(
                f"{path} is not a saved chat ({reason}); give another file"
            ) from error
        self._take(chat.messages, chat.vocabulary)

    def _take(self, messages: Sequence[Message], vocabulary: str) -> None:
        """Replace the messages by others, which keep their tokens if this model spells them so.
        vocabulary: of the model that wrote them."""
        model = self.context.model
        has_tokens = vocabulary == model.vocabulary

        def spells(message: Message) -> bool:
            tokens = message.tokens or ()
            are_valid = all(0 <= token < model.n_vocab and model.piece(token) for token in tokens)
            return are_valid and model.detokenize(tokens) == message.text

        self.messages = tuple(
            message if has_tokens and spells(message) else replace(message, tokens=None)
            for message in messages
        )
        self.n_left_out = 0

    def _last_question(self) -> int | None:
        questions = [i for i, message in enumerate(self.messages) if message.role == USER]
        return questions[-1] if questions else None

    # answers

    def _answer(self, messages: tuple[Message, ...]) -> Generator[Piece, None, None]:
        prompt, pictures, n_left_out = self._prompt(messages)
        options = self.options.copy()
        options["pictures"] = pictures
        options["shown"] = {**(options.get("shown") or {}), **self._form.shown}
        options["stop"] = (*options.get("stop", ()), *self.template.stop)
        sampling = options.get("sampling")
        if sampling is not None and sampling.seed is not None:
            seed = (sampling.seed + self._n_regenerated) % (SEED_MAX + 1)
            options["sampling"] = replace(sampling, seed=seed)
        completion = Completion(self.context, prompt, self.config, **options)
        self.completion, self.is_thinking = completion, False
        try:
            yield from read_pieces(completion, self._form.reader(prompt))
        finally:
            if completion.finish_reason is None:
                completion.finish_reason = INTERRUPTED
            if completion.tokens:
                self.messages = (*messages, self._answer_message(completion))
                self.n_left_out = n_left_out

    def _answer_message(self, completion: Completion) -> Message:
        """Return the answer as a message, with its tokens unless a stop string has cut the text.

        Closes open reasoning, so that templates which remove reasoning find its end. Where markers
        are control tokens, which no template finds in a text, reasoning stands apart.
        """
        model, tokens, shown = self.context.model, completion.tokens, self._form.shown
        reader = self._form.reader(completion.prompt)
        reasoning, said = read_whole(reader, completion.text)
        self.is_thinking = reader.reasoning_end is not None
        if shown and (self.is_thinking or not shown.keys().isdisjoint(tokens)):
            return Message(ASSISTANT, said, reasoning=reasoning or None)
        if reader.reasoning_end is not None and reader.reasoning_end in self.template.source:
            return Message(ASSISTANT, f"{completion.text}\n{reader.reasoning_end}\n\n")
        if completion.finish_reason == "stop":
            return Message(ASSISTANT, completion.text)
        if model.is_eog(tokens[-1]):  # the template writes the end token
            tokens = tokens[:-1]
        return Message(ASSISTANT, model.detokenize(tokens), tokens=tuple(tokens))

    def _prompt(self, messages: Sequence[Message]) -> tuple[list[int], tuple[Picture, ...], int]:
        """Return the prompt, the pictures in it, and how many messages it leaves out."""
        n_ctx = self.context.n_ctx
        n_answer = min(self.options.get("n_predict", N_PREDICT), n_ctx // ANSWER_SHARE)
        n_system = int(messages[0].role == SYSTEM)
        last = max(i for i, message in enumerate(messages) if message.role == USER)
        n_left_out = min(self.n_left_out, last - n_system)
        seen = (*messages[:n_system], *messages[n_system + n_left_out :])
        prompt, pictures = prompt_of(seen, self.template, self.projector)
        if len(prompt) + n_answer > n_ctx:

            def n_tokens(some: Sequence[Message]) -> int:
                return len(prompt_of(some, self.template, self.projector)[0])

            n_max = n_ctx - n_answer
            try:
                seen = trim_messages(seen, n_tokens, min(n_max, n_ctx // KEPT_SHARE))
            except ContextFullError:
                seen = trim_messages(seen, n_tokens, n_max)
            prompt, pictures = prompt_of(seen, self.template, self.projector)
        return prompt, pictures, len(messages) - len(seen)
