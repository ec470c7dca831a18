"""A model's chat template: messages in, tokens out, after which the model answers.

What somebody typed is text and nothing else: see guard.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from ..errors import ArgumentError, ModelFileError
from ..runtime import vocabulary
from ..runtime.model import Model
from .fallbacks import FALLBACKS, Fallback
from .guard import Guard, each_text, texts_in
from .messages import ASSISTANT, DEVELOPER, SYSTEM, USER, Message, Messages, parse
from .rendering import Rendering
from .tokenizing import Tokenizing, split_at

TOOL_USE = "tool_use"  # the name of a template for messages with tools
NEEDLE = "needle"

Tools = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """Renders messages as Hugging Face's library does, and tokenizes them as llama.cpp does.

    source: the template. tool_use: the one for messages with tools, where the model has another.
    stop: strings that end an answer, where no token does. now: the clock that templates see.

    Raises ModelFileError for a template that is broken, ArgumentError for a model without a
    tokenizer.
    """

    def __init__(
        self,
        model: Model,
        source: str,
        *,
        tool_use: str | None = None,
        stop: Sequence[str] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        model.require_tokenizer("a chat needs one")
        self.model = model
        self.source = source
        self.stop = tuple(stop)
        try:
            self._default = Rendering(source, now=now)
            self._tool_use = None if tool_use is None else Rendering(tool_use, now=now)
        except ArgumentError as error:
            raise ModelFileError(f"{model.path.name}: {error}") from None
        self._sources = source + (tool_use or "")
        self._bos, self._eos = vocabulary.bos_and_eos(model)

    @classmethod
    def of(cls, model: Model, source: str | None = None) -> ChatTemplate:
        """The model's own template; or another source, or the name of one of FALLBACKS.

        Raises ArgumentError for a model that has none and is given none.
        """
        if source is not None:
            fallback = FALLBACKS.get(source, Fallback(source))
            return cls(model, fallback.source, stop=fallback.stop)
        own = vocabulary.chat_template(model)
        if own is None:
            raise ArgumentError(
                f"{model.path.name} has no chat template, so it was not made to chat; choose a "
                f"model that was, or give a template: {', '.join(FALLBACKS)} or one of your own"
            )
        return cls(model, own, tool_use=vocabulary.chat_template(model, TOOL_USE))

    def tokens(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of messages, after which the model answers; with a BOS token where the model
        has that habit or the template writes one, never two.

        An answer whose message has its own tokens keeps them, unless the template changes its text.

        Raises ArgumentError for what is no message, and for messages that the template refuses.
        """
        said = _Said(self, parse(messages), tools, add_generation_prompt)
        text, answers = said.with_answers()
        start = self.model.start_token
        found: list[int] = []
        if start is not None:
            text = text.removeprefix(self._bos)
            found.append(start)
        for i, part in enumerate(split_at(answers, text)):
            if part in answers:
                found += answers[part]
            else:
                found += self._tokenizing.tokens(part, said.guard, goes_on=i > 0)
        return found

    def answer_tokens(self, text: str) -> list[int]:
        """Token ids of an answer that has begun with this text, to follow those of `tokens`."""
        return self._tokenizing.answer(text)

    def text(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """What `tokens` tokenizes, for people to look at: it does not tell what was typed from what
        the template writes."""
        said = _Said(self, parse(messages), tools, add_generation_prompt)
        return said.guard.shown(said.text({}))[0]

    @cached_property
    def _tokenizing(self) -> Tokenizing:
        return Tokenizing(self.model, self._sources)

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether it shows contents only where they are lists of parts."""

        def shows(content: Any) -> bool:
            with suppress(ArgumentError):
                return NEEDLE in self._rendered([{"role": USER, "content": content}], None, False)
            return False

        return not shows(NEEDLE) and shows([{"type": "text", "text": NEEDLE}])

    def _rendered(
        self, messages: list[dict[str, Any]], tools: Any, add_generation_prompt: bool
    ) -> str:
        rendering = self._tool_use if tools and self._tool_use else self._default
        return rendering.text(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._bos,
            eos_token=self._eos,
        )


class _Said:
    """Messages on their way through a template."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        tools: Tools | None,
        add_generation_prompt: bool,
    ) -> None:
        self._template = template
        self._messages = messages
        self._markers = template._tokenizing
        self._add_generation_prompt = add_generation_prompt
        said = [message.to_dict() for message in messages]
        self.guard = Guard(avoid=(*texts_in([said, tools]), template._sources))
        self._tools = each_text(tools, self._whole) if tools else None

    def with_answers(self) -> tuple[str, dict[str, tuple[int, ...]]]:
        """The text, with a sign in it for each answer that keeps its tokens, and these.

        One does where the template shows its text as it is, whatever it says.
        """
        plain = self.text({})
        own = {
            i: (self.guard.new_sign(), message.tokens)
            for i, message in enumerate(self._messages)
            if message.role == ASSISTANT and message.tokens
        }

        def with_signs(answers: Sequence[int]) -> str | None:
            signs = {i: own[i][0] for i in answers}
            text = shown = self.text(signs)
            for i, sign in signs.items():
                shown = shown.replace(sign, self._content(self._messages[i]))
            return text if shown == plain and all(map(text.count, signs.values())) else None

        kept: Sequence[int] = tuple(own)
        text = with_signs(kept)
        if text is None:
            kept = [i for i in own if with_signs([i]) is not None]
            text = with_signs(kept)
        return (plain, {}) if text is None else (text, dict(own[i] for i in kept))

    def text(self, signs: Mapping[int, str]) -> str:
        """signs: by the numbers of messages, what stands for their contents."""
        try:
            return self._rendered(signs, as_objects=True)
        except ArgumentError as error:
            # a few templates add the arguments of tool calls to their text as they are
            if not isinstance(error.__cause__, TypeError):
                raise
            return self._rendered(signs, as_objects=False)

    def _rendered(self, signs: Mapping[int, str], *, as_objects: bool) -> str:
        shown = [
            self._shown(message, signs.get(i), as_objects)
            for i, message in enumerate(self._messages)
        ]
        return self._template._rendered(shown, self._tools, self._add_generation_prompt)

    def _shown(self, message: Message, sign: str | None, as_objects: bool) -> dict[str, Any]:
        """A message as templates see it. as_objects: arguments of tool calls."""
        data = replace(message, content=None).to_dict()
        if message.content is not None:
            content = self._content(message) if sign is None else sign
            wants_parts = self._template._wants_parts
            data["content"] = [{"type": "text", "text": content}] if wants_parts else content
        if message.role == DEVELOPER and DEVELOPER not in self._template._sources:
            data["role"] = SYSTEM
        for key in {"name", "tool_call_id"} & data.keys():
            data[key] = self.guard.hide(data[key], self._markers.all)
        for call in data.get("tool_calls", ()) if as_objects else ():
            with suppress(ValueError):  # else it stays the text that the model wrote
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        if message.tool_calls:
            data["tool_calls"] = each_text(data["tool_calls"], self._whole)
        return data

    def _content(self, message: Message) -> str:
        """Answers of models have user-defined tokens, such as those around their thoughts, which
        are text to llama.cpp; nobody else writes these."""
        said = message.role == ASSISTANT
        markers = self._markers.control if said else self._markers.all
        return self.guard.hide(message.text, markers)

    def _whole(self, text: str) -> str:
        return self.guard.hide_whole(text, self._markers.all)
