"""The settings of one training run: a TOML file, checked, nothing else."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCALES = ("uniform", "linear", "sum_l", "sqrt")
CURRICULA = ("rotational", "gradual")
TIME_SCHEDULES = ("constant", "exponential")


class ConfigError(ValueError):
    """A setting that cannot be; the message is for the user."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the Llama model."""

    n_layer: int = 12
    n_embd: int = 256
    n_ff: int = 768
    n_head: int = 4
    n_head_kv: int = 2
    n_vocab: int = 4096
    context: int = 512


@dataclass(frozen=True)
class Plan:
    """How long and how fast."""

    tokens: int = 10_000_000
    batch: int = 8192  # tokens per step
    sequence: int = 256  # tokens per row of a batch
    lr: float = 4e-3
    weight_decay: float = 0.1
    warmup: float = 0.02  # share of the steps in which the rate rises
    decay: float = 0.3  # share of the steps, the last ones, in which it falls to zero
    grow_from: int = 0  # blocks at the start; 0: all of them
    grow_at: float = 0.5  # share of the steps after which the others are added, as copies
    seed: int = 1


@dataclass(frozen=True)
class LayerSkip:
    """Settings that make early exits good drafters. No field has an effect in the plain recipe."""

    p_max: float = 0.1  # layer dropout of the last block at the end
    time_schedule: str = "exponential"  # S(t)
    exits: tuple[int, ...] = ()  # blocks run before an exit; empty: every one
    exit_scale: float = 1.0  # e_scale: weight of an early exit before normalisation
    layer_scale: str = "uniform"  # e(l)
    curriculum: str = "rotational"  # C(t, l)
    agreement: float = 0.0  # weight of the divergence between exit and last block


@dataclass(frozen=True)
class Config:
    shape: Shape = field(default_factory=Shape)
    plan: Plan = field(default_factory=Plan)
    layerskip: LayerSkip = field(default_factory=LayerSkip)

    def __post_init__(self) -> None:
        shape, plan, skip = self.shape, self.plan, self.layerskip
        for group in (shape, plan):
            for key, value in asdict(group).items():
                if value < 0 or (value == 0 and key not in MAY_BE_ZERO):
                    raise ConfigError(f"{key} = {value}: give a number above 0")
        if shape.n_embd % shape.n_head or shape.n_head % shape.n_head_kv:
            raise ConfigError(
                f"n_embd {shape.n_embd}, n_head {shape.n_head}, n_head_kv {shape.n_head_kv}: "
                "each must be a multiple of the next"
            )
        if plan.batch % plan.sequence or plan.sequence > shape.context:
            raise ConfigError(
                f"sequence {plan.sequence}: must divide batch {plan.batch} "
                f"and be at most context {shape.context}"
            )
        if plan.grow_from > shape.n_layer:
            raise ConfigError(f"grow_from {plan.grow_from}: the model has {shape.n_layer} blocks")
        for name, value, allowed in (
            ("time_schedule", skip.time_schedule, TIME_SCHEDULES),
            ("layer_scale", skip.layer_scale, SCALES),
            ("curriculum", skip.curriculum, CURRICULA),
        ):
            if value not in allowed:
                raise ConfigError(f"{name} = {value!r}: allowed are {', '.join(allowed)}")
        if any(not isinstance(e, int) or not 0 < e < shape.n_layer for e in skip.exits):
            raise ConfigError(
                f"exits {list(skip.exits)}: give numbers from 1 to {shape.n_layer - 1}"
            )
        if not 0 <= skip.p_max < 1:
            raise ConfigError(f"p_max = {skip.p_max}: give a probability below 1")

    @property
    def n_step(self) -> int:
        return max(1, self.plan.tokens // self.plan.batch)


MAY_BE_ZERO = {"grow_from", "seed", "weight_decay", "warmup", "decay", "grow_at"}


def _group(kind: Any, name: str, values: object) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"[{name}] must be a table")
    known: dict[str, Any] = {f.name: type(f.default) for f in fields(kind)}
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"[{name}] {key}: unknown; known are {', '.join(known)}")
        wanted = known[key]
        try:
            made[key] = tuple(value) if wanted is tuple else wanted(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"[{name}] {key} = {value!r}: give a {wanted.__name__}") from None
    return kind(**made)


def load(path: Path) -> Config:
    """Raises ConfigError for a file that is no TOML or holds what cannot be."""
    try:
        text = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    kinds = {"shape": Shape, "plan": Plan, "layerskip": LayerSkip}
    if unknown := text.keys() - kinds.keys():
        raise ConfigError(f"{path}: unknown table [{unknown.pop()}]; known are {', '.join(kinds)}")
    try:
        return Config(**{name: _group(kinds[name], name, text[name]) for name in text})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
