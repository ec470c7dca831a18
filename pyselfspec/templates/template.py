"""Chat templates of models: messages in, the tokens of a prompt out.

Special tokens typed in messages stay plain text, see guard.py.
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
from .messages import ASSISTANT, DEVELOPER, SYSTEM, USER, Message, Messages, parse
from .rendering import Renderer, Worker, shared
from .special_token_guard import Guard, each_text, texts_in
from .tokenizing import TemplateTokenizer, split_at

TOOL_USE = "tool_use"  # the name of the template for messages with tools
NEEDLE = "needle"

Tools = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """Renders messages as Hugging Face's library does, and tokenizes them as llama.cpp does.

    source: the template. tool_use: another template for messages with tools, None to use `source`.
    all_sources: both. stop: strings that end an answer. now: the clock that templates see. worker:
    renders them.

    Raises ModelFileError for a template with a syntax error, ArgumentError for a model without a
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
        worker: Worker = shared,
    ) -> None:
        model.require_tokenizer("a chat needs one")
        self.model = model
        self.source = source
        self.stop = tuple(stop)
        try:
            self._default = Renderer(source, now=now, worker=worker)
            self._tool_use = (
                None if tool_use is None else Renderer(tool_use, now=now, worker=worker)
            )
        except ArgumentError as error:
            raise ModelFileError(f"{model.path.name}: {error}") from None
        self.all_sources = source + (tool_use or "")
        self._bos, self._eos = vocabulary.bos_and_eos(model)

    @classmethod
    def of(
        cls, model: Model, source: str | None = None, *, worker: Worker = shared
    ) -> ChatTemplate:
        """Return the template of a model. source: another template, or a name in FALLBACKS.

        Raises ArgumentError if the model has no template and none is given.
        """
        if source is not None:
            fallback = FALLBACKS.get(source, Fallback(source))
            return cls(model, fallback.source, stop=fallback.stop, worker=worker)
        own = vocabulary.chat_template(model)
        if own is None:
            raise ArgumentError(
                f"{model.path.name} has no chat template, so it was not trained to chat; use a "
                "chat model, or give a template (--chat-template): "
                f"{', '.join(FALLBACKS)} or one of your own"
            )
        tool_use = vocabulary.chat_template(model, TOOL_USE)
        return cls(model, own, tool_use=tool_use, worker=worker)

    def tokens(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        inserted: Mapping[str, Sequence[int]] | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt, with one BOS token if model or template add it.

        variables: others that the template may read, such as enable_thinking.
        inserted: token ids by a character in the messages that they replace, for images.

        An answer whose message has tokens keeps them, unless the template changes its text.

        Raises ArgumentError for invalid messages, and for messages that the template refuses.
        """
        conversion = _Conversion(self, parse(messages), tools, add_generation_prompt, variables)
        text, answers = conversion.with_answers()
        replaced = answers | {key: tuple(ids) for key, ids in (inserted or {}).items()}
        if any(text.count(key) != 1 for key in inserted or ()):
            raise ArgumentError("the chat template does not show every image once; use another")
        start = self.model.start_token
        found: list[int] = []
        if start is not None:
            text = text.removeprefix(self._bos)
            found.append(start)
        for i, part in enumerate(split_at(replaced, text)):
            if part in replaced:
                found += replaced[part]
            else:
                found += self._tokenizer.tokens(part, conversion.guard, follows=i > 0)
        return found

    def answer_tokens(self, text: str) -> list[int]:
        """Return the token ids of the beginning of an answer, to append to those of `tokens`."""
        return self._tokenizer.answer(text)

    def marker_tokens(self, text: str) -> list[int]:
        """Return the token ids of text of the template's own, to append to those of `tokens`."""
        return self._tokenizer.markers(text)

    def text(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the rendered prompt, for display: special tokens in messages look like those of
        the template."""
        conversion = _Conversion(self, parse(messages), tools, add_generation_prompt, variables)
        return conversion.guard.restore(conversion.text({}))[0]

    @cached_property
    def _tokenizer(self) -> TemplateTokenizer:
        return TemplateTokenizer(self.model, self.all_sources)

    @cached_property
    def _wants_parts(self) -> bool:
        """Return whether the template shows contents only as lists of parts."""

        def shows(content: Any) -> bool:
            with suppress(ArgumentError):
                message = {"role": USER, "content": content}
                return NEEDLE in self._rendered([message], None, False, {})
            return False

        return not shows(NEEDLE) and shows([{"type": "text", "text": NEEDLE}])

    def _rendered(
        self,
        messages: list[dict[str, Any]],
        tools: Any,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        rendering = self._tool_use if tools and self._tool_use else self._default
        own = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._bos,
            "eos_token": self._eos,
        }
        return rendering.text(**{**variables, **own})


class _Conversion:
    """Renders one list of messages with placeholders for special tokens and for answers."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        tools: Tools | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> None:
        self._template = template
        self._messages = messages
        self._markers = template._tokenizer
        self._add_generation_prompt = add_generation_prompt
        said = [message.to_dict() for message in messages]
        self.guard = Guard(avoid=(*texts_in([said, tools, variables]), template.all_sources))
        self._variables = each_text(dict(variables), self._whole) if variables else {}
        self._tools = each_text(tools, self._whole) if tools else None

    def with_answers(self) -> tuple[str, dict[str, tuple[int, ...]]]:
        """Return the text with a placeholder for each answer that keeps its tokens, and the token
        ids by placeholder. An answer keeps them if the template shows its text unchanged."""
        plain = self.text({})
        own = {
            i: (self.guard.new_placeholder(), message.tokens)
            for i, message in enumerate(self._messages)
            if message.role == ASSISTANT and message.tokens
        }

        def with_placeholders(answers: Sequence[int]) -> str | None:
            placeholders = {i: own[i][0] for i in answers}
            text = shown = self.text(placeholders)
            for i, placeholder in placeholders.items():
                shown = shown.replace(placeholder, self._content(self._messages[i]))
            return text if shown == plain and all(map(text.count, placeholders.values())) else None

        kept: Sequence[int] = tuple(own)
        text = with_placeholders(kept)
        if text is None:
            kept = [i for i in own if with_placeholders([i]) is not None]
            text = with_placeholders(kept)
        return (plain, {}) if text is None else (text, dict(own[i] for i in kept))

    def text(self, placeholders: Mapping[int, str]) -> str:
        """Return the rendered text. placeholders: replace contents, by index of the message."""
        try:
            return self._rendered(placeholders, as_objects=True)
        except ArgumentError as error:
            # a few templates need the arguments of tool calls as text
            if not isinstance(error.__cause__, TypeError):
                raise
            return self._rendered(placeholders, as_objects=False)

    def _rendered(self, placeholders: Mapping[int, str], *, as_objects: bool) -> str:
        shown = [
            self._shown(message, placeholders.get(i), as_objects)
            for i, message in enumerate(self._messages)
        ]
        return self._template._rendered(
            shown, self._tools, self._add_generation_prompt, self._variables
        )

    def _shown(self, message: Message, placeholder: str | None, as_objects: bool) -> dict[str, Any]:
        """Return a message as templates see it. as_objects: decode arguments of tool calls."""
        data = replace(message, content=None).to_dict()
        if message.content is not None:
            content = self._content(message) if placeholder is None else placeholder
            wants_parts = self._template._wants_parts
            data["content"] = [{"type": "text", "text": content}] if wants_parts else content
        if message.role == DEVELOPER and DEVELOPER not in self._template.all_sources:
            data["role"] = SYSTEM
        if "reasoning_content" in data:
            data["reasoning_content"] = self.guard.hide(
                data["reasoning_content"], self._markers.all
            )
            if not (message.text and message.tool_calls):  # which gpt-oss refuses together
                data["thinking"] = data["reasoning_content"]
        for key in {"name", "tool_call_id"} & data.keys():
            data[key] = self.guard.hide(data[key], self._markers.all)
        for call in data.get("tool_calls", ()) if as_objects else ():
            with suppress(ValueError):  # invalid JSON stays text
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        if message.tool_calls:
            data["tool_calls"] = each_text(data["tool_calls"], self._whole)
        return data

    def _content(self, message: Message) -> str:
        """Return the content with hidden markers. Answers keep user-defined tokens, such as those
        around reasoning, which only the model writes."""
        said = message.role == ASSISTANT
        markers = self._markers.control if said else self._markers.all
        return self.guard.hide(message.text, markers)

    def _whole(self, text: str) -> str:
        return self.guard.hide_whole(text, self._markers.all)
