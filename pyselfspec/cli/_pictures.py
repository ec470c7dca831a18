"""The pictures of a command line, and the projector that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click

from ..errors import ArgumentError
from ..gguf.header import read_header
from ..runtime.model import Model
from ..runtime.projector import Projector
from ..runtime.projector_trial import require_sound
from ..util.files import read_limited
from ._options import mmproj_option
from ._types import FILE, rare

MAX_PICTURE = 1 << 28  # bytes of a file


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """The projector file, and pictures for it."""

    title: ClassVar[str] = "Pictures"
    mmproj: Path | None = mmproj_option()
    images: tuple[Path, ...] = rare(
        "--image",
        type=FILE,
        multiple=True,
        help="Picture to put before the first question, or before a prompt to continue, or where "
        "that has <__media__>; needs --mmproj; repeatable.",
    )

    def check(self) -> None:
        """Raise UsageError for pictures without a projector, and ModelFileError for a projector
        that is not a GGUF file: without pictures, nothing else would read it."""
        if self.images and self.mmproj is None:
            raise click.UsageError("--image needs --mmproj and the projector file of the model")
        if self.mmproj is not None:
            read_header(self.mmproj)

    def projector(self, model: Model, n_threads: int | None) -> Projector | None:
        """Return the projector, which the model closes; None without one. Raises ModelFileError for
        a file that is not a projector of the model."""
        if self.mmproj is None:
            return None
        require_sound(model.path, self.mmproj)
        return Projector(model, self.mmproj, n_threads=n_threads)


def read_picture(projector: Projector, path: Path) -> bytes:
    """Return the content of a picture's file. Raises OSError for a file that cannot be opened,
    ArgumentError for a picture that the projector cannot read."""
    try:
        with path.open("rb") as file:
            data = read_limited(file, MAX_PICTURE)
        projector.read(data)  # it keeps the picture, so that this takes time only once
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None
    return data
