"""From a DraftConfig to the drafters of a context, their costs and what texts teach about them.

A second text in the same context finds everything ready: no profile is read again
and no graph is checked again before its first token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..costs.table import CostTable
from ..costs.timed import TimedCosts
from ..errors import ArgumentError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..util.closable import Closing
from . import controllers, drafters
from .config import AUTO, DraftConfig
from .context_state import kept
from .controllers import Acceptance, Controller, Learned
from .draft_names import SIGN, split
from .drafters import Drafter, LookupDrafter
from .drafters._combined import combine

MASKED = "layer-skip"  # the drafter for masks
HEAD, TWIN = "head", "twin"  # drafters that run passes as well


@dataclass(slots=True)
class DraftSetup(Closing):
    """The drafters of a config in one context, for all its texts.

    options: ``Options`` by drafter name, in the order in which the drafters are combined.
    mask: the sublayers that drafts skip; None where they skip nothing of the model.
    costs: expected costs of drafts and verification passes, before there are timings.
    timings: these costs, corrected by the timings of all texts.
    acceptance: by sequence id, of the conversation there.
    """

    context: Context
    options: Mapping[str, Any]
    mask: LayerMask | None
    costs: CostTable
    timings: TimedCosts
    acceptance: dict[int, Acceptance] = field(default_factory=dict)
    _first: Drafter | None = None  # made to be asked for mask and costs; the first text gets it

    @classmethod
    def create(cls, context: Context, options: Mapping[str, Any]) -> DraftSetup:
        """Return the setup for drafters with these options. Raises what making them raises, and
        UnsupportedError where rejected draft tokens cannot be removed."""
        context.abilities.require_drafts()
        with ExitStack() as stack:
            made = {name: _make(context, name, each, stack) for name, each in options.items()}
            names = sorted(made, key=lambda name: not isinstance(made[name], LookupDrafter))
            drafter = combine([made[name] for name in names])
            costs, ordered = drafter.costs(), {name: options[name] for name in names}
            if not context.abilities.max_rollback:
                costs = costs.repeating()
            timings = TimedCosts(costs, n_preparing=context.n_preparing)
            setup = cls(context, ordered, drafter.mask, costs, timings, _first=drafter)
            stack.pop_all()
        return setup

    @property
    def name(self) -> str:
        """Names of the drafters, joined by +."""
        return SIGN.join(self.options)

    def make(self) -> Drafter:
        """Return a new drafter for one text, which the caller closes."""
        drafter, self._first = self._first, None
        if drafter is not None:
            return drafter
        with ExitStack() as stack:
            drafter = combine(
                [_make(self.context, name, each, stack) for name, each in self.options.items()]
            )
            stack.pop_all()
        return drafter

    def controller(
        self, controller: Controller | str, seq_id: int, *, continues: bool
    ) -> Controller:
        """Return a controller for a text in this sequence; one that is an object is returned as is.

        continues: whether the text continues what the sequence holds, see `is_continuation`; else
            its acceptance is learned anew.
        """
        if not isinstance(controller, str):
            return controller
        if not continues:
            self.acceptance.pop(seq_id, None)
        memory = Learned(self.timings, self.acceptance.setdefault(seq_id, Acceptance()))
        return controllers.load(controller)(self.costs, memory)

    def close(self) -> None:
        if self._first is not None:
            self._first.close()


def _make(context: Context, name: str, options: Any, stack: ExitStack) -> Drafter:
    """Return a new drafter, which the stack closes."""
    drafter = drafters.load(name).make(context, options)
    stack.callback(drafter.close)
    return drafter


def resolve(context: Context, config: DraftConfig) -> DraftSetup | None:
    """Return the setup for the drafters that a config names in this context, the one and only for
    equal names, options and masks; None for plain decoding.

    Raises ArgumentError, MaskError, UnsupportedError or a file's error where they do not go with
    the context, and ArgumentError for a config with a drafter that is made already.
    """
    names = config.names
    if names is None:
        if config.draft is not None:
            raise ArgumentError("only drafters that are given by name can be resolved")
        return None
    key = (names, config.options, config.mask, config.profile)

    def create() -> DraftSetup | None:
        options = _chosen_options(context, config)
        return DraftSetup.create(context, options) if options else None

    return kept(context, DraftSetup, key, create)


def is_continuation(n_held: int, n_reused: int) -> bool:
    """Tell whether a text continues the one before in its sequence: whether it reuses at least half
    of the n_held tokens there."""
    return 0 < n_held <= 2 * n_reused


def _chosen_options(context: Context, config: DraftConfig) -> dict[str, Any]:
    """Return the options of each drafter by name; none where AUTO decodes plainly."""
    mask, names = config.mask, config.names
    assert names is not None
    named = () if names == AUTO else split(names, drafters.all_names())
    profiled = profiles.mask_for(context.model) if mask is None and config.profile else mask
    found = (
        dict.fromkeys(each.name for each in named)
        if named
        else _suggested(context, config, profiled)
    )
    if len(found) < len(named):
        raise ArgumentError(f"{SIGN.join(each.name for each in named)} names a drafter twice")
    if not found:
        return {}
    given = {_owner(found, each): each for each in config.options}
    found |= given
    for each in named:
        found[each.name] = drafters.options_of(each, **_values(given.get(each.name)))
    if mask is not None and not any(map(_takes_mask, found.values())):
        raise ArgumentError(f"the drafter {SIGN.join(found)} takes no mask")
    # the mask of a profile is known to be good for drafts that read the whole text
    return {
        name: _with_mask(options, profiled if name == MASKED else mask)
        for name, options in found.items()
    }


def _suggested(context: Context, config: DraftConfig, profiled: LayerMask | None) -> dict[str, Any]:
    """Return the drafters that AUTO stands for, of which at most one runs passes: a head, unless a
    mask was given; a mask; or a twin. None where each row has a pass of its own, so that no draft
    saves time."""
    if context.abilities.pass_width == 1:
        return {}
    found = drafters.suggested(context, profiled)
    order = (HEAD, MASKED, TWIN) if config.mask is None else (MASKED, HEAD, TWIN)
    for name in [each for each in order if each in found][1:]:
        del found[name]
    return found


def _owner(names: Iterable[str], options: Any) -> str:
    """Return the drafter that these options belong to."""
    for name in names:
        if isinstance(options, drafters.load(name).Options):
            return name
    raise ArgumentError(f"{options!r} are not options of the drafter {SIGN.join(names)}")


def _values(options: Any) -> dict[str, Any]:
    """Return field values by name; {} for None."""
    return {} if options is None else {f.name: getattr(options, f.name) for f in fields(options)}


def _takes_mask(options: Any) -> bool:
    return "mask" in {field.name for field in fields(options)}


def _with_mask(options: Any, mask: LayerMask | None) -> Any:
    """Return the options with this mask, where they have a field for one and it is None."""
    takes_it = _takes_mask(options) and options.mask is None
    return replace(options, mask=mask) if takes_it else options
