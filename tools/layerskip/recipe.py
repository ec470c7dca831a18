"""The schedules of LayerSkip as pure functions of step and block.

Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding"
(2024), section 4.1, https://arxiv.org/abs/2404.16710. Blocks are counted from 0, an exit by the
number of blocks that run before it; progress is step / steps, from 0 to 1.
"""

from __future__ import annotations

import math

from tools.layerskip.config import LayerSkip, Plan


def dropout(skip: LayerSkip, block: int, n_layer: int, progress: float) -> float:
    """Probability that a block is left out for one row: S(t) D(l) p_max."""
    time = 1.0 if skip.time_schedule == "constant" else math.exp(progress * math.log(2)) - 1
    depth = math.exp(block * math.log(2) / max(1, n_layer - 1)) - 1
    return time * depth * skip.p_max


def layer_weight(scale: str, exit_: int) -> float:
    """e(l) before e_scale and normalisation, for an exit after `exit_` blocks."""
    match scale:
        case "uniform":
            return 1.0
        case "linear":
            return float(exit_)
        case "sum_l":
            return exit_ * (exit_ + 1) / 2
        case "sqrt":
            return math.sqrt(exit_)
    raise ValueError(scale)


def enabled_exits(skip: LayerSkip, n_layer: int, progress: float) -> list[int]:
    """The exits that a step may train.

    `gradual` opens them from the last to the first over the first half of the run.
    """
    exits = [e for e in skip.exits or range(1, n_layer) if e < n_layer]
    if skip.curriculum == "gradual":
        return [e for e in exits if progress >= 0.5 * (n_layer - e) / n_layer]
    return exits


def exit_of_step(skip: LayerSkip, n_layer: int, step: int, n_step: int) -> int | None:
    """The one early exit whose loss this step computes; None when no exit is open yet."""
    exits = enabled_exits(skip, n_layer, step / n_step)
    return exits[step % len(exits)] if exits else None


def loss_weights(skip: LayerSkip, exit_: int, n_layer: int) -> tuple[float, float]:
    """Weights of the early exit and of the last block; their sum is 1."""
    early = skip.exit_scale * layer_weight(skip.layer_scale, exit_)
    last = layer_weight(skip.layer_scale, n_layer)
    return early / (early + last), last / (early + last)


def learning_rate(plan: Plan, progress: float) -> float:
    """Share of the full rate: up in a line, level, down in a line to zero."""
    if progress < plan.warmup:
        return progress / plan.warmup
    return min(1.0, (1 - progress) / plan.decay) if plan.decay else 1.0


def n_layer_at(plan: Plan, n_layer: int, progress: float) -> int:
    """Blocks that exist at this point of the run."""
    return plan.grow_from if plan.grow_from and progress < plan.grow_at else n_layer


def grows_at(plan: Plan, n_layer: int, step: int, n_step: int) -> bool:
    """Whether blocks are added before this step."""
    before, now = (n_layer_at(plan, n_layer, s / n_step) for s in (step - 1, step))
    return now > before
