"""Stores measured costs and hit rates: one JSON file per model and machine in the user's cache
folder.

A file belongs to a model, a library build, devices, a number of threads and a kind of attention,
and is named after their hash. `calibrate` adds calibrations; generation adds observations. The rule
which of them counts is in lookup.py.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.ffi.devices import gpus, system_info
from ..util import build, paths, records
from ..util.files import locked, require_target
from ..util.machine import usable_cores
from ..util.processor_name import processor_name
from .chances import LENGTHS, N_SURENESS, Counts
from .table import N_WIDTH, CostTable

MAX_US = 1e12
LOCK_S = 2.0  # wait for another process that writes the same file


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


#
# what a file holds
#


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs measured with one drafter.

    n_ctx: size of the context, see `rounded_size`. drafter: its identity, see Drafter.
    n_rounds: number of measurements that the medians are of.
    """

    n_ctx: int
    drafter: dict[str, Any]
    table: CostTable
    n_rounds: int
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    def __post_init__(self) -> None:
        lengths = [costs.n_past for costs in self.table.levels]
        if not lengths or lengths != sorted(set(lengths)):
            raise ArgumentError("levels are not in order")
        for costs in self.table.levels:
            numbers = (*costs.full_us, *costs.verify_us, costs.token_us + 1, costs.last_us + 1)
            widths = {len(costs.full_us), len(costs.verify_us)}
            if widths != {N_WIDTH} or not all(0 < us < MAX_US for us in numbers):
                raise ArgumentError("times are out of range")

    @property
    def widths(self) -> tuple[float, ...]:
        """Times of full passes over 1 to N_WIDTH tokens, relative to that of one."""
        costs = self.table.levels[0]
        return tuple(us / costs.plain_us for us in costs.full_us)


@dataclass(frozen=True, slots=True)
class Observations:
    """Measurements made while generating.

    widths: times of full passes over 1 to N_WIDTH tokens, relative to that of one.
    copies, earlier: accepted and all copies from the text and from earlier texts, by kind of match,
        see Chances.
    """

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


@dataclass(frozen=True, slots=True)
class StoredCosts:
    """All measurements of one model on one machine, the latest calibration last."""

    FORMAT: ClassVar[int] = 1

    key: StoreKey
    calibrations: tuple[Calibration, ...] = ()
    observations: Observations | None = None

    def calibration(self, n_ctx: int, drafter: Mapping[str, Any]) -> Calibration | None:
        """Return the calibration of this drafter and size of context, None if there is none."""
        key = (rounded_size(n_ctx), dict(drafter))
        return next((c for c in self.calibrations if (c.n_ctx, c.drafter) == key), None)

    def with_calibration(self, new: Calibration) -> StoredCosts:
        """Return a copy with this calibration, which replaces one of the same drafter and size."""
        kept = (c for c in self.calibrations if (c.n_ctx, c.drafter) != (new.n_ctx, new.drafter))
        return replace(self, calibrations=(*kept, new))


def rounded_size(n_ctx: int) -> int:
    """Return a size of context rounded up to a power of two: contexts of a class share costs."""
    return 1 << (n_ctx - 1).bit_length()


#
# files
#


def load(key: StoreKey) -> StoredCosts:
    """Return what is stored, nothing if there is no file. Warns of a file that cannot be used."""
    try:
        return _read(key)
    except (OSError, ArgumentError) as error:
        text = f"{key.path} does not hold costs of this model here ({error}); it is ignored"
        warnings.warn(text, StoreWarning, stacklevel=1)  # one place: shown once per process
        return StoredCosts(key)


def _read(key: StoreKey) -> StoredCosts:
    try:
        found = records.load(key.path, StoredCosts, what="file of costs")
    except (FileNotFoundError, NotADirectoryError):
        return StoredCosts(key)
    if found.key != key:
        raise ArgumentError("it belongs to another model or machine")
    return found


def require_writable(key: StoreKey) -> None:
    """Raise ArgumentError or OSError if nothing can be stored: before the work."""
    key.path.parent.mkdir(parents=True, exist_ok=True)
    require_target(key.path)


def update(key: StoreKey, change: Callable[[StoredCosts], StoredCosts]) -> Path:
    """Change what is stored and return the file's path. Replaces a file that cannot be used.

    Raises ArgumentError or OSError if the file cannot be written.
    """
    require_writable(key)
    with locked(key.path, "run again", wait_s=LOCK_S):
        try:
            stored = _read(key)
        except (OSError, ArgumentError):
            stored = StoredCosts(key)
        records.save(key.path, change(stored))
    return key.path


def save_calibration(key: StoreKey, calibration: Calibration) -> Path:
    return update(key, lambda stored: stored.with_calibration(calibration))
