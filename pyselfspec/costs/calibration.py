"""Keeps what passes cost on this machine, in the user's cache folder.

A table belongs to a model, a library build, devices, threads, a size of context, a kind of
attention and a drafter with its options; its file is named after the hash of all that.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..masks.layer_mask import LayerMask
from ..runtime._lib import BUILD_ID, gpus, system_info
from ..runtime.context import Context
from ..util import paths
from ..util.machine import usable_cores
from .by_bytes import ByteCosts, guessed_costs
from .table import N_WIDTH, Costs, CostTable

FORMAT = 2


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
    n_ctx: int  # rounded up to a power of two
    attention: str  # Context.attention
    drafter: dict[str, Any]  # its identity

    @property
    def path(self) -> Path:
        name = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]
        return paths.cache("calibration") / f"{name}.json"


def key_of(context: Context, drafter: Mapping[str, Any]) -> Key:
    """drafter: its identity, see Drafter."""
    model = context.model
    return Key(
        model=model.fingerprint,
        build=BUILD_ID,
        devices=f"{machine()}; {system_info()}; {model.n_gpu_layers} layers on GPUs, "
        f"split by {model.split_mode}, main GPU {model.main_gpu}",
        n_threads=context.n_threads,
        n_ctx=1 << (context.n_ctx - 1).bit_length(),
        attention=context.attention,
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

    key: Key
    table: CostTable
    n_rounds: int
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Calibration:
        """Raises KeyError, TypeError or ValueError for anything but what to_dict makes."""
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}, this version reads {FORMAT}")
        levels = tuple(_costs_from(level) for level in data["table"]["levels"])
        if not levels or [c.n_past for c in levels] != sorted({c.n_past for c in levels}):
            raise ValueError("levels are not in order")
        return cls(Key(**data["key"]), CostTable(levels), data["n_rounds"], data["date"])


def _costs_from(level: dict[str, Any]) -> Costs:
    lists = {name: tuple(map(float, level[name])) for name in ("full_us", "check_us")}
    costs = Costs(**(level | lists))
    numbers = (*costs.full_us, *costs.check_us, costs.guess_us, costs.last_us + 1)
    if {len(us) for us in lists.values()} != {N_WIDTH} or not all(0 < us < 1e12 for us in numbers):
        raise ValueError("times are not what times can be")
    return costs


def save(calibration: Calibration) -> Path:
    path = calibration.key.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
        json.dump(calibration.to_dict(), file)
    os.replace(file.name, path)
    return path


def load(key: Key) -> Calibration | None:
    """The table measured before, if there is one. Warns of a file that does not hold it."""
    try:
        found = Calibration.from_dict(json.loads(key.path.read_text(encoding="utf-8")))
        if found.key != key:
            raise ValueError("it belongs to something else")
        return found
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        text = f"{key.path} is no calibration of this model here ({what}); it is ignored"
        warnings.warn(text, CalibrationWarning, stacklevel=2)
        return None


def width_costs(context: Context) -> tuple[float, ...] | None:
    """Times of full passes over 1 to N_WIDTH tokens over that of one, from any table of this model
    with these threads on this machine, whatever drafter it was measured for."""
    like = key_of(context, {})
    for path in sorted(like.path.parent.glob("*.json")):
        try:
            found = Calibration.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            continue  # load() warns of it where it matters
        same = ("model", "build", "devices", "n_threads", "attention")
        if all(getattr(found.key, name) == getattr(like, name) for name in same):
            costs = found.table.levels[0]
            return tuple(us / costs.plain_us for us in costs.full_us)
    return None


def mask_costs(context: Context) -> ByteCosts:
    """What passes with any mask cost, to compare masks that were never timed."""
    model = context.model
    shares = model.n_layer > 1 and context.can_enter(1)
    return ByteCosts(model.file, shares, width_costs(context))


def costs_for(
    context: Context, mask: LayerMask, shares: bool, drafter: Mapping[str, Any]
) -> CostTable:
    """Of drafting with a mask: measured costs if there are any, else those that the bytes of the
    weights suggest.

    shares: whether draft and verification pass share blocks. drafter: its identity.
    """
    known = load(key_of(context, drafter))
    return known.table if known else guessed_costs(context.model.file, mask, shares)
