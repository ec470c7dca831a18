"""Chat models that are on this machine, and which of them a chat takes when none is named.

A chat model is one whose template tells apart who speaks. Knows no native library.
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
GET_ONE = f"pyselfspec pull {RECOMMENDED}"


@dataclass(frozen=True, slots=True)
class Installed:
    """A model on this machine. name: what opens it. time: when it was used or fetched last, in
    seconds since 1970."""

    name: str
    path: Path
    time: float


@dataclass(frozen=True, slots=True)
class LastChat:
    """The model that was chatted with last."""

    FORMAT: ClassVar[int] = 1
    path: str


def latest() -> Installed:
    """The chat model that was used or fetched last.

    Raises ArgumentError with the way to get one when none is here.
    """
    for model in sorted(_models(), key=lambda each: each.time, reverse=True):
        if _is_chat_model(model.path):
            return model
    raise ArgumentError(f"no chat model is here; get a small one with: {GET_ONE}, or give a MODEL")


def remember(path: Path) -> None:
    """Keep which model was chatted with; where nothing can be written, nothing is kept."""
    file = _last_file()
    with suppress(OSError, ArgumentError):
        file.parent.mkdir(parents=True, exist_ok=True)
        records.save(file, LastChat(str(path.absolute())))


def _models() -> Iterator[Installed]:
    """All models with names, and the one of the last chat, whether they chat or not."""
    last, used_at = _last_chat()
    here = hub.here()
    if last is not None and last.resolve() not in {path.resolve() for path in here.values()}:
        here[str(last)] = last
    for name, path in here.items():
        with suppress(OSError):
            used = last is not None and path.resolve() == last.resolve()
            fetched_at = path.stat().st_mtime
            yield Installed(name, path, max(fetched_at, used_at) if used else fetched_at)


def _is_chat_model(path: Path) -> bool:
    with suppress(ModelFileError):
        return tells_speakers_apart(read_header(path).metadata.get(KEY))
    return False


def _last_chat() -> tuple[Path | None, float]:
    """Where the model of the last chat is, and when that was."""
    file = _last_file()
    with suppress(OSError, ArgumentError):
        return Path(records.load(file, LastChat, what="note").path), file.stat().st_mtime
    return None, 0.0


def _last_file() -> Path:
    return data("chat") / "last.json"
