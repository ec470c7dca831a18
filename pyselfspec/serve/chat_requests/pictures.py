"""Images in messages: read from data URLs, and put into prompts where the template shows them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...runtime.pictures import Picture
from ...runtime.projector import Projector
from ...templates.special_token_guard import Guard, texts_in
from ..protocol.errors import invalid, unsupported
from ..protocol.request_options import RequestReader

IMAGE = "image_url"
MARKER = "<__media__>"  # what a displayed prompt has in place of an image, as llama-server's
UNREAD = "[an image, which this server cannot read]"


@dataclass(slots=True)
class TakenPictures:
    """The images of a request. pictures: by placeholder, a character that no message has."""

    projector: Projector | None
    requests: RequestReader
    guard: Guard
    pictures: dict[str, Picture] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        projector: Projector | None,
        requests: RequestReader,
        messages: Sequence[Mapping[str, Any]],
        avoid: Sequence[Any],
    ) -> tuple[list[dict[str, Any]], TakenPictures]:
        """Return the messages with placeholders, and the images. avoid: other texts of the
        prompt. Raises ApiError without a projector, for images that cannot be read, and for more
        than the context holds."""
        taken = cls(projector, requests, Guard(texts_in([*messages, *avoid])))
        return [taken.without(each, f"messages[{i}]") for i, each in enumerate(messages)], taken

    def without(self, message: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return a message with placeholders for its images."""
        content = message.get("content")
        if not has_pictures(content):
            return dict(message)
        if message.get("role") == "assistant":
            raise invalid(where, f"{where}: answers have no images")
        texts: list[str] = []
        is_after_text = False
        for i, part in enumerate(content or ()):
            is_text = not _is_picture(part)
            text = part.get("text") if isinstance(part, Mapping) and is_text else None
            if is_text and not isinstance(text, str):
                at = f"{where}.content[{i}]"
                raise unsupported(at, f"{at}: beside images, only parts of text are supported")
            if is_text and is_after_text:
                texts.append("\n")
            texts.append(str(text) if is_text else self._take(part, f"{where}.content[{i}]"))
            is_after_text = is_text
        return {**message, "content": "".join(texts)}

    def _take(self, part: Mapping[str, Any], where: str) -> str:
        if self.projector is None:
            raise unsupported(
                where,
                "this server reads no images; start it with --mmproj and the projector file of "
                "the model",
            )
        placeholder = self.guard.new_placeholder()
        self.pictures[placeholder] = self.projector.read(_bytes_of(part.get(IMAGE), where))
        n_tokens = sum(len(picture.tokens) for picture in self.pictures.values())
        if n_tokens >= self.requests.n_ctx:  # before more are read in vain
            raise self.requests.too_long(f"at least {n_tokens}")
        return placeholder


def has_pictures(content: Any) -> bool:
    """Return whether the content of a message has images."""
    return isinstance(content, list) and any(map(_is_picture, content))


def described(messages: Sequence[Mapping[str, Any]], marker: str = MARKER) -> list[dict[str, Any]]:
    """Return the messages with a marker in place of each image."""
    return [
        {
            **each,
            "content": [
                {"type": "text", "text": marker} if _is_picture(part) else part
                for part in each["content"]
            ],
        }
        if has_pictures(each.get("content"))
        else dict(each)
        for each in messages
    ]


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == IMAGE


def _bytes_of(given: Any, where: str) -> bytes:
    """Return the file in a data URL. Raises ApiError for other URLs, of which none is fetched."""
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str) or not url.startswith("data:"):
        raise invalid(
            where,
            "images are sent in the request as data URLs (data:image/png;base64,...); this "
            "server fetches none from other addresses",
        )
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise invalid(where, f"{where}: the data URL is not base64")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(where, f"{where}: the data URL is not base64") from None
