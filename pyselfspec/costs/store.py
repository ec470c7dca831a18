"""Stores what generation observes, times of passes and hit rates: one JSON file per model and
machine in the user's cache folder.

A file belongs to a model, a library build, devices, a number of threads and a kind of attention,
and is named after their hash.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.ffi.devices import gpus, system_info
from ..util import build, paths, records
from ..util.machine import usable_cores
from ..util.processor_name import processor_name
from .chances import LENGTHS, N_SURENESS, Counts
from .table import N_WIDTH

MAX_US = 1e12


class StoreWarning(UserWarning):
    """A stored file that cannot be used."""


@dataclass(frozen=True, slots=True)
class StoreKey:
    """Everything that times of full passes depend on. model: the file's fingerprint. attention: see
    Context.options.attention."""

    model: str
    build: str
    devices: str
    n_threads: int
    attention: str

    @property
    def path(self) -> Path:
        text = json.dumps(records.to_dict(self), sort_keys=True)
        return paths.cache("costs") / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def key_of(context: Context) -> StoreKey:
    model = context.model
    return StoreKey(
        model=model.fingerprint,
        build=build.BUILD_ID,
        devices=f"{machine()}; {system_info()}; {model.n_gpu_layers} layers on GPUs, "
        f"split by {model.split_mode}, main GPU {model.main_gpu}, load {model.load}"
        + "".join(f", over RPC {server}" for server in model.rpc),
        n_threads=context.n_threads,
        attention=context.options.attention,
    )


@cache
def machine() -> str:
    """Return the processor's name, the number of usable cores, and GPUs that the library sees."""
    return ", ".join([processor_name(), f"{usable_cores()} cores", *gpus()])


@dataclass(frozen=True, slots=True)
class Observations:
    """Measurements made while generating with one model on one machine.

    widths: times of full passes over 1 to N_WIDTH tokens, relative to that of one.
    copies, earlier: accepted and all copies from the text and from earlier texts, by kind of match,
        see Chances.
    """

    FORMAT: ClassVar[int] = 2

    key: StoreKey
    widths: tuple[float, ...]
    copies: Counts
    earlier: Counts

    def __post_init__(self) -> None:
        if len(self.widths) != N_WIDTH or not all(0 < w < MAX_US for w in self.widths):
            raise ArgumentError("widths are out of range")
        for counts in (self.copies, self.earlier):
            shape = {len(row) for row in counts}
            if len(counts) != len(LENGTHS) or shape != {N_SURENESS}:
                raise ArgumentError("copies are not counted by kind of match")
            if not all(0 <= right <= n < MAX_US and n for row in counts for right, n in row):
                raise ArgumentError("counts are out of range")


#
# files
#


def load(key: StoreKey) -> Observations | None:
    """Return what is stored, None if there is no file. Warns of a file that cannot be used."""
    try:
        found = records.load(key.path, Observations, what="file of costs")
        if found.key != key:
            raise ArgumentError("it belongs to another model or machine")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ArgumentError) as error:
        text = f"{key.path} does not hold costs of this model here ({error}); it is ignored"
        warnings.warn(text, StoreWarning, stacklevel=1)  # one place: shown once per process
        return None


def save(observed: Observations) -> None:
    """Replace what is stored. Raises OSError if the file cannot be written."""
    path = observed.key.path
    path.parent.mkdir(parents=True, exist_ok=True)
    records.save(path, observed)
