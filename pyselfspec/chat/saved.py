"""Reads and writes saved chats. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..templates.messages import Message, parse
from ..util import records


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A conversation. model: the name of the model's file, for information. vocabulary: that of the
    answers' token ids, see Model.vocabulary."""

    FORMAT: ClassVar[int] = 1
    model: str
    vocabulary: str
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if self.messages:
            parse([message.to_dict() for message in self.messages])


def load(path: Path) -> SavedChat:
    """Read a chat. Raises RecordError for a file without one, OSError for an unreadable file."""
    try:
        return records.load(path, SavedChat, what="saved chat")
    except records.RecordError as error:
        reason = str(error.__cause__).partition(":")[0]  # without the details of the parser
        raise records.RecordError(
            f"{path} is not a saved chat ({reason}); give another file"
        ) from error


def save(path: Path, chat: SavedChat) -> None:
    """Write a chat. Replaces an existing file; a partly written file never appears."""
    records.save(path, chat)
