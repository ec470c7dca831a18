"""Chat models on this machine, and the default model of a chat.

A chat model is one whose template shows the roles of messages. Does not load the native library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .. import hub
from ..errors import ArgumentError, ModelFileError
from ..gguf.chat_template import KEY, tells_speakers_apart
from ..gguf.header import read_header
from ..util import records
from ..util.paths import data

RECOMMENDED = "smollm2-135m"
GET_ONE = f"pyselfspec models pull {RECOMMENDED}"


@dataclass(frozen=True, slots=True)
class Installed:
    """A model on this machine. name: opens it. time: of its last use or download, in seconds since
    1970."""

    name: str
    path: Path
    time: float


@dataclass(frozen=True, slots=True)
class LastChat:
    """The record of the model that was last used in a chat."""

    FORMAT: ClassVar[int] = 1
    path: str


def latest() -> Installed:
    """Return the chat model that was last used or downloaded.

    Raises ArgumentError, with the command to get one, if there is none.
    """
    for model in sorted(_models(), key=lambda each: each.time, reverse=True):
        with suppress(ModelFileError):
            if tells_speakers_apart(read_header(model.path).metadata.get(KEY)):
                return model
    raise ArgumentError(
        f"no chat model is installed; get a small one with: {GET_ONE}, or give a MODEL"
    )


def remember(path: Path) -> None:
    """Record the model of a chat. Does nothing if the record cannot be written."""
    file = _last_file()
    with suppress(OSError, ArgumentError):
        file.parent.mkdir(parents=True, exist_ok=True)
        records.save(file, LastChat(str(path.absolute())))


def _models() -> Iterator[Installed]:
    """Yield all models with names, and that of the last chat, without checking their templates."""
    last, used_at, file = None, 0.0, _last_file()
    with suppress(OSError, ArgumentError):
        last = Path(records.load(file, LastChat, what="note").path)
        used_at = file.stat().st_mtime
    here = hub.installed()
    if last is not None and last.resolve() not in {path.resolve() for path in here.values()}:
        here[str(last)] = last
    for name, path in here.items():
        with suppress(OSError):
            used = last is not None and path.resolve() == last.resolve()
            fetched_at = path.stat().st_mtime
            yield Installed(name, path, max(fetched_at, used_at) if used else fetched_at)


def _last_file() -> Path:
    return data("chat") / "last.json"
