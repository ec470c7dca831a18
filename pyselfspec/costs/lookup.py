"""Finds the best available costs of passes for a drafter.

The rule: a calibration of this drafter counts most. Else relative times of full passes come from
the latest calibration of any drafter, else from what generation observed, else from the bytes of
the weights; and costs of draft tokens from the bytes of the weights. Scans ignore observed timings;
otherwise the same scan could choose another mask later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from . import store
from .by_bytes import ByteCosts, costs_by_bytes
from .table import Costs, CostTable


def calibrated_costs(context: Context, drafter: Mapping[str, Any]) -> CostTable | None:
    """Return the calibration of a drafter, by its identity; None if there is none."""
    found = store.load(store.key_of(context)).calibration(context.n_ctx, drafter)
    return None if found is None else found.table


def width_costs(context: Context) -> tuple[float, ...] | None:
    """Return measured times of full passes over 1 to N_WIDTH tokens, relative to that of one; None
    if none were measured."""
    stored = store.load(store.key_of(context))
    if stored.calibrations:
        return stored.calibrations[-1].widths
    return None if stored.observations is None else stored.observations.widths


def mask_costs(context: Context) -> ByteCosts:
    """Return costs of passes with any mask, to compare masks that were never timed."""
    model = context.model
    shares = model.n_layer > 1 and context.can_enter(1)
    calibrations = store.load(store.key_of(context)).calibrations
    return ByteCosts(model.file, shares, calibrations[-1].widths if calibrations else None)


def costs_with_mask(
    context: Context,
    mask: LayerMask,
    shares: bool,
    drafter: Mapping[str, Any],
    head_share: float = 1.0,
) -> CostTable:
    """Return the costs of drafting with a mask.

    shares: whether draft and verification pass share blocks. drafter: its identity.
    head_share: share of the output matrix's rows that a draft token computes.
    """
    calibrated = calibrated_costs(context, drafter)
    return calibrated or costs_by_bytes(context.model.file, mask, shares, head_share)


def costs_without_passes(context: Context, drafter: Mapping[str, Any]) -> CostTable:
    """Return the costs of drafts that take no passes. drafter: its identity."""
    calibrated = calibrated_costs(context, drafter)
    if calibrated is not None:
        return calibrated
    full = LayerMask.full(context.model.n_layer)
    estimated = costs_by_bytes(context.model.file, full, shares=False).levels[0]
    widths = width_costs(context)
    full_us = estimated.full_us if widths is None else tuple(estimated.plain_us * w for w in widths)
    return CostTable((Costs(0, full_us, full_us, 0.0, 0.0),))


def costs_with_second(context: Context, n_bytes: float, drafter: Mapping[str, Any]) -> CostTable:
    """Return the costs of drafting with a second model or a head.

    n_bytes: bytes of weights that a draft token reads. drafter: its identity.
    """
    calibrated = calibrated_costs(context, drafter)
    if calibrated is not None:
        return calibrated
    costs = costs_without_passes(context, drafter).levels[0]
    share = n_bytes / context.model.file.weight_bytes()
    return CostTable((replace(costs, token_us=costs.plain_us * share),))
