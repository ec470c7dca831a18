"""Costs of a drafter's passes before any were timed: from the bytes of the weights that they read,
and from times of full passes by width that an earlier run observed."""

from __future__ import annotations

from dataclasses import replace

from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from . import store
from .by_bytes import ByteCosts, costs_by_bytes
from .table import CostTable


def width_costs(context: Context) -> tuple[float, ...] | None:
    """Return observed times of full passes over 1 to N_WIDTH tokens, relative to that of one; None
    if none were observed."""
    observed = store.load(store.key_of(context))
    return None if observed is None else observed.widths


def mask_costs(context: Context) -> ByteCosts:
    """Return costs of passes with any mask, to compare masks that were never timed. They do not
    depend on what was observed, so that the same scan finds the same mask later."""
    model = context.model
    return ByteCosts(model.file, shares=model.n_layer > 1 and context.can_enter(1))


def costs_with_mask(
    context: Context, mask: LayerMask, shares: bool, head_share: float = 1.0
) -> CostTable:
    """Return the costs of drafting with a mask.

    shares: whether draft and verification pass share blocks.
    head_share: share of the output matrix's rows that a draft token computes.
    """
    return costs_by_bytes(context.model.file, mask, shares, head_share, width_costs(context))


def costs_with_second(context: Context, n_bytes: float) -> CostTable:
    """Return the costs of drafting with a second model or a head.

    n_bytes: bytes of weights that a draft token reads; 0 for drafts that take no passes.
    """
    full = LayerMask.full(context.model.n_layer)
    costs = costs_with_mask(context, full, shares=False).levels[0]
    share = n_bytes / context.model.file.weight_bytes()
    return CostTable((replace(costs, token_us=costs.plain_us * share),))


def costs_without_passes(context: Context) -> CostTable:
    """Return the costs of drafts that take no passes."""
    return costs_with_second(context, 0)
