"""How a context drafts, looked up once: which drafter, with which options and costs.

A second text in the same context finds everything ready: no profile or calibration is read again
and no graph is checked again before its first token.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

from ..costs.table import CostTable
from ..costs.timed import TimedCosts
from ..errors import ArgumentError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from . import controllers, drafters
from .controllers import Acceptance, Controller, Memory
from .drafters import Drafter

AUTO = "auto"  # the drafter that suits the context, plain decoding where none does


@dataclass(frozen=True, slots=True)
class Speculation:
    """name: of the drafter, as users give it.
    make: a new drafter for a text.
    mask: what drafts skip, None where they skip nothing of the model.
    costs: what drafts and verification passes cost, as known before there are timings.
    timings: what they turn out to cost; for all texts of the context.
    acceptance: of the conversation in each sequence.
    """

    name: str
    make: Callable[[], Drafter]
    mask: LayerMask | None
    costs: CostTable
    timings: TimedCosts
    acceptance: dict[int, Acceptance] = field(default_factory=dict)

    def controller(self, name: str, seq_id: int, *, goes_on: bool) -> Controller:
        """A controller for a text in this sequence. Raises ArgumentError for a name that is no
        file.

        goes_on: whether the text continues what the sequence holds; else acceptance is learned
            anew.
        """
        if not goes_on:
            self.acceptance.pop(seq_id, None)
        memory = Memory(self.timings, self.acceptance.setdefault(seq_id, Acceptance()))
        return controllers.load(name)(self.costs, memory)


def prepared(
    context: Context,
    draft: str | None = AUTO,
    *,
    options: Any = None,
    mask: LayerMask | None = None,
    profile: bool = True,
) -> Speculation | None:
    """How to draft in a context; None for plain decoding.

    draft: name of a drafter, see ``drafters.names()``; AUTO; or None to decode plainly.
    options: of the drafter, its ``Options``; default: those it suggests itself.
    mask: what drafts skip, where the drafter has such an option; default: the model's profile.
    profile: False leaves the profile aside.

    Raises ArgumentError, MaskError or UnsupportedError for what does not go together.
    """
    if draft is None:
        if options is not None or mask is not None:
            raise ArgumentError("plain decoding drafts nothing, so it takes no mask and no options")
        return None
    if options is not None and not (is_dataclass(options) and options.__hash__):
        raise ArgumentError(f"options of a drafter are a frozen dataclass, got {options!r}")
    key = ("speculation", draft, options, mask, profile)
    return context.once(key, lambda: _looked_up(context, draft, options, mask, profile))


def _looked_up(
    context: Context, draft: str, options: Any, mask: LayerMask | None, profile: bool
) -> Speculation | None:
    if mask is not None and getattr(options, "mask", None) not in (None, mask):
        raise ArgumentError("the options have a mask of their own; give one or the other")
    known = profiles.mask_for(context.model) if mask is None and profile else mask
    name = draft
    if draft == AUTO:
        found = drafters.suggested(context, known)
        if found is None:
            return None
        name, suggestion = found
        options = suggestion if options is None else options
    module = drafters.load(name)
    chosen = _with_mask(module.Options() if options is None else options, known)
    if not isinstance(chosen, module.Options):
        raise ArgumentError(f"{options!r} are no options of the drafter {name}")
    if mask is not None and getattr(chosen, "mask", None) is None:
        raise ArgumentError(f"the drafter {name} takes no mask")
    make = partial(module.make, context, chosen)
    with closing(make()) as drafter:
        costs = drafter.costs()
        return Speculation(name, make, drafter.mask, costs, TimedCosts(costs))


def _with_mask(options: Any, mask: LayerMask | None) -> Any:
    """The options, with this mask where they could have one and have none."""
    takes_mask = "mask" in {field.name for field in fields(options)}
    return replace(options, mask=mask) if takes_mask and options.mask is None else options
