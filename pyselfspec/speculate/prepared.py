"""How a context drafts, looked up once: which drafter, with which options and costs.

A second text in the same context finds everything ready: no profile or calibration is read again
and no graph is checked again before its first token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ..costs.table import CostTable
from ..errors import ArgumentError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from . import controllers, drafters
from .controllers import Controller
from .drafters import Drafter

AUTO = "auto"  # the drafter that suits the context, plain decoding where none does


@dataclass(frozen=True, slots=True)
class Speculation:
    """name: of the drafter, as users give it.
    make: a new drafter for a text.
    mask: what drafts skip, None where they skip nothing of the model.
    costs: what drafts and verification passes cost, as known before there are timings.
    """

    name: str
    make: Callable[[], Drafter]
    mask: LayerMask | None
    costs: CostTable

    def controller(self, name: str) -> Controller:
        """A controller for a text. Raises ArgumentError for a name that is no file."""
        return controllers.load(name)(self.costs)


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
        return None
    key = ("speculation", draft, options, mask, profile)
    return context.once(key, lambda: _looked_up(context, draft, options, mask, profile))


def _looked_up(
    context: Context, draft: str, options: Any, mask: LayerMask | None, profile: bool
) -> Speculation | None:
    if mask is None and profile:
        mask = profiles.mask_for(context.model)
    name = draft
    if draft == AUTO:
        found = drafters.suggested(context, mask)
        if found is None:
            return None
        name, suggestion = found
        options = suggestion if options is None else options
    module = drafters.load(name)
    chosen = _with_mask(name, module.Options() if options is None else options, mask)
    drafter = module.make(context, chosen)
    return Speculation(name, lambda: module.make(context, chosen), drafter.mask, drafter.costs())


def _with_mask(name: str, options: Any, mask: LayerMask | None) -> Any:
    if not is_dataclass(options) or isinstance(options, type):
        raise ArgumentError(f"options of {name} are a dataclass, got {options!r}")
    takes_mask = any(field.name == "mask" for field in fields(options))
    if mask is None or not takes_mask or options.mask is not None:  # type: ignore[attr-defined]
        return options
    return replace(options, mask=mask)
