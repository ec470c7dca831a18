"""Check the file of a draft head before llama.cpp reads it, alone and against its target model; and
find the head that a model's own file may contain.

If a head does not fit its model, llama.cpp would end the process. Each kind of heads is a module:
``dflash``, ``eagle3`` and ``gemma4_assistant`` read files, ``own_head`` the block after the others
in a model's file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import ArgumentError, ModelFileError, UnsupportedError
from ...util import paths
from .. import file as gguf_file
from ..file import GgufFile
from ..header import Header, read_header
from . import dflash, eagle3, gemma4_assistant
from .eagle3 import N_BLOCKS_READ
from .head_file import HeadFile, HeadFormat
from .own_head import OWN_HEADS, own

__all__ = [
    "N_BLOCKS_READ",
    "OWN_HEADS",
    "HeadFile",
    "HeadFormat",
    "check",
    "has_tuned",
    "is_head",
    "last_states_width",
    "own",
    "tuned_path",
]

Reader = Callable[[Header, GgufFile, GgufFile], HeadFile]  # of a head, and for a model
READERS: dict[str, Reader] = {
    dflash.ARCHITECTURE: dflash.read,
    eagle3.ARCHITECTURE: eagle3.read,
    gemma4_assistant.ARCHITECTURE: gemma4_assistant.read,
}


def is_head(architecture: str) -> bool:
    """Return whether models of this architecture only draft for others."""
    return architecture in READERS


def last_states_width(target: GgufFile, own_head: HeadFile | None) -> int:
    """Return the number of values per token that passes of a model can leave for a head after its
    last block; 0 if they leave none."""
    if own_head is not None:
        return own_head.n_state
    return target.n_embd if target.architecture in gemma4_assistant.TARGETS else 0


def check(path: Path, target: GgufFile) -> HeadFile:
    """Check the file of a head, and that the head fits this model.

    Raises ModelFileError for a file that is not a valid head, ArgumentError for one that does not
    fit, UnsupportedError for a kind that cannot draft yet.
    """
    file = gguf_file.check(path)
    if not is_head(file.architecture):
        raise ModelFileError(
            f"{path}: is a model of the architecture {file.architecture}, not a draft head "
            f"({', '.join(READERS)}): give the file of a head"
        )
    try:
        return READERS[file.architecture](read_header(path), file, target)
    except (ModelFileError, UnsupportedError) as error:
        raise type(error)(f"{path}: {error}") from None
    except ArgumentError as error:
        raise ArgumentError(
            f"{path}: {error}; take the head that was made for this model"
        ) from None


def tuned_path(fingerprint: str) -> Path:
    """Return the path of the head that ``tune`` trained for the model of this fingerprint."""
    return paths.data("heads") / f"{fingerprint[:32]}.gguf"


def has_tuned() -> bool:
    """Return whether any model has a trained head; does not need the fingerprint."""
    return any(paths.data("heads").glob("*.gguf"))
