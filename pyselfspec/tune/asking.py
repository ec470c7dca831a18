"""What a model is asked to write: from the user's chats or texts, or from what is bundled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..chat.template import ChatTemplate
from ..errors import ArgumentError
from ..gguf import fingerprint
from ..runtime.model import Model
from ..runtime.vocabulary import chat_template
from ..util import records
from ..util.paths import SAMPLE_TEXT
from . import prompts

BUNDLED = "bundled prompts"
TEXT_SUFFIXES = (".txt", ".md")
N_BEGINNING = 32  # tokens of a text that a model without a chat template goes on with


@dataclass(frozen=True, slots=True)
class Prompts:
    """name: as users know them. chats: messages to be answered; or passages: of text, which chat
    models are asked about and others go on with."""

    name: str
    chats: tuple[tuple[Any, ...], ...] = ()
    passages: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256, equal for equal prompts; without chats, those of the package are among them."""
        asked = self.chats or prompts.stock()
        return fingerprint.of_text(records.encode([asked, self.passages]).decode())

    def tokens(self, model: Model, seed: int, *, held_out: bool) -> Iterator[list[int]]:
        """Prompts without end, the same for the same seed.

        held_out: those that are for measuring, or only others.
        """
        if chat_template(model) is None:
            return self._beginnings(model, seed, held_out)
        return self._chats(ChatTemplate.of(model), seed, held_out)

    def _chats(self, template: ChatTemplate, seed: int, held_out: bool) -> Iterator[list[int]]:
        if self.chats:
            for chat in _drawn(self.chats, seed, held_out):
                yield list(template.tokens(list(chat)))
        for request in prompts.requests(seed, self.passages):
            if request.held_out == held_out:
                yield list(template.tokens([{"role": "user", "content": request.text}]))

    def _beginnings(self, model: Model, seed: int, held_out: bool) -> Iterator[list[int]]:
        if self.chats:
            raise ArgumentError(
                f"{model.path.name} has no chat template, so it cannot answer chats; give plain "
                "text instead"
            )
        for passage in _drawn(self.passages, seed, held_out):
            yield model.first_tokens(passage, N_BEGINNING)


def _drawn(items: Sequence[Any], seed: int, held_out: bool) -> Iterator[Any]:
    """Items at random, held-out ones or others; where there are only a few, all serve for both."""
    drawn = [each for each in items if prompts.is_held_out(str(each)) == held_out] or items
    rng = random.Random(seed)
    while True:
        yield rng.choice(drawn)


def bundled() -> Prompts:
    text = SAMPLE_TEXT.read_text(encoding="utf-8")
    return Prompts(BUNDLED, passages=tuple(prompts.cut(text)))


def read(path: Path) -> Prompts:
    """A JSONL file of chats, a text, or a folder of texts.

    A line of JSONL has ``messages`` as chat programs write them, or ``prompt``, a text.
    Raises ArgumentError for what is none of these, OSError for what cannot be read.
    """
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix in TEXT_SUFFIXES)
        passages = tuple(part for each in files for part in prompts.cut(_text(each)))
        if not passages:
            raise ArgumentError(f"{path} has no text in files ending in .txt or .md")
        return Prompts(path.name, passages=passages)
    if path.suffix == ".jsonl":
        return Prompts(path.name, chats=tuple(_chats(path)))
    passages = tuple(prompts.cut(_text(path)))
    if not passages:
        raise ArgumentError(f"{path} has no text")
    return Prompts(path.name, passages=passages)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} is not UTF-8 text") from None


def _chats(path: Path) -> Iterator[tuple[Any, ...]]:
    lines = [line for line in _text(path).splitlines() if line.strip()]
    if not lines:
        raise ArgumentError(f"{path} has no chats")
    for i, line in enumerate(lines, 1):
        try:
            data = records.parse(line)
        except ArgumentError as error:
            raise ArgumentError(f"{path}, line {i}: {error}") from None
        yield _chat(data, f"{path}, line {i}")


def _chat(data: Any, where: str) -> tuple[Any, ...]:
    """The messages of a line, up to the last that a user says."""
    found = data if isinstance(data, dict) else {}
    if isinstance(found.get("prompt"), str):
        return ({"role": "user", "content": found["prompt"]},)
    messages = found.get("messages")
    if isinstance(messages, list):
        users = [i for i, each in enumerate(messages) if _said_by_user(each)]
        if users:
            return tuple(messages[: users[-1] + 1])
    raise ArgumentError(
        f'{where}: is no chat; a line has "messages", a list that a user\'s message is in, or '
        '"prompt", a text'
    )


def _said_by_user(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"
