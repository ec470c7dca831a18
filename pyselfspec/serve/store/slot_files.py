"""Saves and restores slot contents under a client-chosen file name. A file belongs to the API key
that created it. Slots belong to the engine's thread; files are for other threads."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ArgumentError
from ...runtime.context import Context
from ...runtime.sequence_snapshot import SavedSequence, restore_sequence, save_sequence
from ..engine.slots import Slot, Slots
from ..protocol.errors import ApiError, invalid
from . import snapshot_file
from .snapshot_file import Compatibility

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class SlotFiles:
    """Files in one folder; thread-safe. kind: of the contexts that they fit."""

    folder: Path
    kind: Compatibility
    writing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, context: Context, folder: Path | None) -> SlotFiles | None:
        """Return the files of a folder, which is made if it is missing. Raises ArgumentError for
        one that cannot be used."""
        if folder is None:
            return None
        snapshot_file.make_folder(folder)
        return cls(folder, Compatibility.of(context))

    def write(self, name: str, saved: SavedSequence, owner: str) -> int:
        """Write a snapshot to a file; return its number of bytes. Raises ApiError."""
        path = self._path(name)
        with self.writing:
            if path.exists():  # a damaged file may be replaced
                self._require_owner(path, owner)
            try:
                return snapshot_file.write(path, saved, self.kind, owner)
            except OSError as error:
                reason = error.strerror or error
                raise ApiError(500, f"{name} cannot be written: {reason}") from None

    def read(self, name: str, owner: str) -> tuple[SavedSequence, int]:
        """Return the snapshot in a file and the file's number of bytes. Raises ApiError."""
        path = self._path(name)
        self._require_owner(path, owner)
        try:
            saved, n_bytes = snapshot_file.read(path, self.kind), path.stat().st_size
        except (ArgumentError, OSError) as error:
            raise ApiError(400, str(error).replace(str(path), name)) from None
        if saved is None:
            raise ApiError(
                400,
                f"{name} was saved with another model or build, or in a context of another kind; "
                "start the server as then, or choose another file",
            )
        return saved, n_bytes

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise invalid(
                "filename",
                "filename has up to 128 letters, digits, dots, hyphens and underscores, and no "
                "dot or hyphen at its beginning",
            )
        return self.folder / name

    def _require_owner(self, path: Path, owner: str) -> None:
        """Raise ApiError unless a file exists that this owner has written."""
        try:
            header, _ = snapshot_file.read_header(path)
        except (ArgumentError, OSError):
            header = None
        if header is None or header.owner != owner:
            raise ApiError(
                404, f"no saved slot named {path.name} for this API key", param="filename"
            )


def copy_of(slot: Slot, owner: str) -> SavedSequence:
    """Return a copy of the contents of an idle slot. Raises ApiError."""
    require_own(slot, owner)
    if (saved := save_sequence(slot.seq)) is None:
        raise ApiError(
            400,
            "the slot holds nothing that can be saved, or uses LoRA adapters or images; "
            "generate one first",
        )
    return saved


def restore(slots: Slots, slot: Slot, saved: SavedSequence, owner: str) -> None:
    """Replace the contents of an idle slot by a snapshot. Raises ApiError."""
    require_own(slot, owner)
    n = len(saved.tokens)
    if not slots.can_hold(slot, n):
        raise ApiError(400, f"the file has {n} tokens, more than fit now")
    if not restore_sequence(slot.seq, saved):
        raise ApiError(400, "the file does not fit into this context; start with its options")
    slot.owner = owner


def require_own(slot: Slot, owner: str) -> None:
    """Raise ApiError for a slot that is busy, or that holds the contents of another owner."""
    if not slot.is_idle:
        raise ApiError(409, "the slot is busy; try again when its completion has ended")
    if slot.seq.tokens and slot.owner != owner:
        raise ApiError(403, "the contents of this slot belong to another API key")
