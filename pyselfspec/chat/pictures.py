"""Pictures in the messages of a chat, put into its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..runtime.pictures import Picture
from ..runtime.projector import Projector
from ..templates.messages import Message
from ..templates.special_token_guard import Guard, texts_in
from ..templates.template import ChatTemplate

UNREAD = "[a picture, which this model cannot read]\n"


def prompt_of(
    messages: Sequence[Message], template: ChatTemplate, projector: Projector | None
) -> tuple[list[int], tuple[Picture, ...]]:
    """Return the tokens of a prompt, and the pictures in it, each before the text of its message.

    Without a projector, a text says that there was a picture. Raises ArgumentError for a picture
    that cannot be read.
    """
    if not any(message.pictures for message in messages):
        return template.tokens(messages), ()
    guard = Guard(texts_in([template.all_sources, *(each.to_dict() for each in messages)]))
    pictures: dict[str, Picture] = {}
    shown = []
    for message in messages:
        before = ""
        for data in message.pictures:
            if projector is None:
                before += UNREAD
                continue
            placeholder = guard.new_placeholder()
            pictures[placeholder] = projector.read(data)
            before += placeholder
        shown.append(replace(message, content=before + message.text) if before else message)
    inserted = {placeholder: picture.tokens for placeholder, picture in pictures.items()}
    return template.tokens(shown, inserted=inserted), tuple(pictures.values())
