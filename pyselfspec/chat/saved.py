"""Chats as files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..util import records
from .messages import Message, parse


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A conversation. model: the name of its file, for people. vocabulary: names the tokens of
    answers, see Model.vocabulary."""

    FORMAT: ClassVar[int] = 1
    model: str
    vocabulary: str
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if self.messages:
            parse([message.to_dict() for message in self.messages])


def load(path: Path) -> SavedChat:
    """Raises RecordError for a file that holds no chat, OSError for one that cannot be read."""
    try:
        return records.load(path, SavedChat, what="saved chat")
    except records.RecordError as error:
        reason = str(error.__cause__).partition(":")[0]  # no details of a parser
        raise records.RecordError(
            f"{path} is not a saved chat ({reason}); give another file"
        ) from error


def save(path: Path, chat: SavedChat) -> None:
    """The file appears when it is complete; one that is there is replaced."""
    records.save(path, chat)
