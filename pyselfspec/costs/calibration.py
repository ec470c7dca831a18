"""Keeps what passes cost on this machine, in the user's cache folder.

A table belongs to a model, a library build, devices, threads, a size of context, a kind of
attention and a drafter with its options; its file is named after the hash of all that.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime._lib import gpus, system_info
from ..runtime.context import Context
from ..util import paths, records
from ..util.build import BUILD_ID
from ..util.files import require_target
from ..util.machine import usable_cores
from .by_bytes import ByteCosts, costs_by_bytes
from .table import N_WIDTH, Costs, CostTable

MAX_US = 1e12


class CalibrationWarning(UserWarning):
    """A table in the cache that is no use."""


#
# what a table belongs to
#


@dataclass(frozen=True, slots=True)
class Key:
    model: str  # its fingerprint
    build: str
    devices: str
    n_threads: int
    attention: str  # Context.attention
    n_ctx: int  # rounded up to a power of two
    drafter: dict[str, Any]  # its identity

    @property
    def folder(self) -> Path:
        """For all tables with the same times of full passes."""
        machine = (self.model, self.build, self.devices, self.n_threads, self.attention)
        return paths.cache("calibration") / _digest(machine)

    @property
    def path(self) -> Path:
        return self.folder / f"{_digest((self.n_ctx, self.drafter))}.json"


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def key_of(context: Context, drafter: Mapping[str, Any]) -> Key:
    """drafter: its identity, see Drafter."""
    model = context.model
    return Key(
        model=model.fingerprint,
        build=BUILD_ID,
        devices=f"{machine()}; {system_info()}; {model.n_gpu_layers} layers on GPUs, "
        f"split by {model.split_mode}, main GPU {model.main_gpu}"
        + "".join(f", lent by {server}" for server in model.rpc),
        n_threads=context.n_threads,
        attention=context.attention,
        n_ctx=1 << (context.n_ctx - 1).bit_length(),
        drafter=dict(drafter),
    )


@cache
def machine() -> str:
    """The processor's name, how many cores this process may use, and GPUs that the library sees."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE)
        name = named[1] if named else name
    return ", ".join([name, f"{usable_cores()} cores", *gpus()])


#
# the cache
#


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured costs with what they belong to. n_rounds: repetitions that medians are of."""

    FORMAT: ClassVar[int] = 2

    key: Key
    table: CostTable
    n_rounds: int
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    def to_dict(self) -> dict[str, Any]:
        return records.to_dict(self)


def _require_sound(table: CostTable) -> None:
    """Raise ArgumentError for times that cannot be."""
    lengths = [costs.n_past for costs in table.levels]
    if not lengths or lengths != sorted(set(lengths)):
        raise ArgumentError("levels are not in order")
    for costs in table.levels:
        numbers = (*costs.full_us, *costs.verify_us, costs.token_us + 1, costs.last_us + 1)
        widths = {len(costs.full_us), len(costs.verify_us)}
        if widths != {N_WIDTH} or not all(0 < us < MAX_US for us in numbers):
            raise ArgumentError("times are not what times can be")


def require_place(key: Key) -> None:
    """Raise ArgumentError or OSError where a table could not be kept: before the work."""
    key.folder.mkdir(parents=True, exist_ok=True)
    require_target(key.path)


def save(calibration: Calibration) -> Path:
    path = calibration.key.path
    path.parent.mkdir(parents=True, exist_ok=True)
    records.save(path, calibration)
    return path


def _read(path: Path) -> Calibration:
    found = records.load(path, Calibration, what="calibration")
    _require_sound(found.table)
    return found


def load(key: Key) -> Calibration | None:
    """The table measured before, if there is one. Warns of a file that does not hold it."""
    try:
        found = _read(key.path)
        if found.key != key:
            raise ArgumentError("it belongs to something else")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ArgumentError) as error:
        text = f"{key.path} is no calibration of this model here ({error}); it is ignored"
        warnings.warn(text, CalibrationWarning, stacklevel=2)
        return None


def width_costs(context: Context) -> tuple[float, ...] | None:
    """Times of full passes over 1 to N_WIDTH tokens over that of one, from any table of this model
    with these threads on this machine, whatever drafter it was measured for."""
    for path in sorted(key_of(context, {}).folder.glob("*.json")):
        try:
            costs = _read(path).table.levels[0]
        except (OSError, ArgumentError):
            continue  # load() warns of it where it matters
        return tuple(us / costs.plain_us for us in costs.full_us)
    return None


def mask_costs(context: Context) -> ByteCosts:
    """What passes with any mask cost, to compare masks that were never timed."""
    model = context.model
    shares = model.n_layer > 1 and context.can_enter(1)
    return ByteCosts(model.file, shares, width_costs(context))


def measured_costs(context: Context, drafter: Mapping[str, Any]) -> CostTable | None:
    """Those of this drafter, by its identity, where they were measured."""
    known = load(key_of(context, drafter))
    return known.table if known else None


def costs_for(
    context: Context,
    mask: LayerMask,
    shares: bool,
    drafter: Mapping[str, Any],
    head_share: float = 1.0,
) -> CostTable:
    """Of drafting with a mask: measured costs if there are any, else those that the bytes of the
    weights suggest.

    shares: whether draft and verification pass share blocks. drafter: its identity. head_share: of
        the head's rows, those that a draft token looks at.
    """
    known = measured_costs(context, drafter)
    return known or costs_by_bytes(context.model.file, mask, shares, head_share)


def costs_of_copies(
    context: Context, drafter: Mapping[str, Any], learned: tuple[float, ...] | None = None
) -> CostTable:
    """Of drafts that take no passes: full passes as calibrated for this drafter or any other, else
    as learned, else as the bytes of the weights suggest.

    learned: as ``width_costs`` answers.
    """
    known = measured_costs(context, drafter)
    if known is not None:
        return known
    full = LayerMask.full(context.model.n_layer)
    estimated = costs_by_bytes(context.model.file, full, shares=False).levels[0]
    widths = width_costs(context) or learned
    full_us = estimated.full_us if widths is None else tuple(estimated.plain_us * w for w in widths)
    return CostTable((Costs(0, full_us, full_us, 0.0, 0.0),))


def costs_of_second(
    context: Context,
    n_bytes: float,
    drafter: Mapping[str, Any],
    learned: tuple[float, ...] | None = None,
) -> CostTable:
    """Of drafting with a second model or a head: measured costs if there are any, else full passes
    as for copies, and draft tokens as the bytes of its weights suggest.

    n_bytes: of weights that a draft token reads. drafter: its identity. learned: as ``width_costs``
        answers.
    """
    known = measured_costs(context, drafter)
    if known is not None:
        return known
    costs = costs_of_copies(context, drafter, learned).levels[0]
    share = n_bytes / context.model.file.weight_bytes()
    return CostTable((replace(costs, token_us=costs.plain_us * share),))
