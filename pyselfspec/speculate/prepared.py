"""How a context drafts, looked up once: which drafter, with which options and costs.

A second text in the same context finds everything ready: no profile or calibration is read again
and no graph is checked again before its first token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from ..costs.table import CostTable
from ..costs.timed import TimedCosts
from ..errors import ArgumentError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from . import controllers, drafters
from .controllers import Acceptance, Controller, Memory
from .draft_names import SIGN, Names, split
from .drafters import Drafter, Lookup
from .joined import joined

AUTO = "auto"  # the drafters that suit the context, plain decoding where none does
MASKED = "layer-skip"  # the drafter for masks
HEAD = "head"  # the drafter for heads, which needs passes as well


@dataclass(frozen=True, slots=True)
class Speculation:
    """name: of the drafter, or of several that are joined, as users give it.
    options: of each drafter, by its name.
    make: a new drafter for a text.
    mask: what drafts skip, None where they skip nothing of the model.
    costs: what drafts and verification passes cost, as known before there are timings.
    timings: what they turn out to cost; for all texts of the context.
    acceptance: of the conversation in each sequence.
    """

    name: str
    options: Mapping[str, Any]
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
    draft: Names | None = AUTO,
    *,
    options: Any = None,
    mask: LayerMask | None = None,
    profile: bool = True,
    with_mask: bool = False,
) -> Speculation | None:
    """How to draft in a context; None for plain decoding.

    draft: name of a drafter, see ``drafters.names()``, with a file behind a colon where it takes
        one, or several with + between them or in a list; AUTO; or None to decode plainly.
    options: of a drafter, its ``Options``, or a tuple of these; default: those it suggests itself.
    mask: what drafts skip, where the drafter has such an option; default: the model's profile.
    profile: False leaves the profile aside.
    with_mask: AUTO is to draft with a mask also where none is known to be good.

    Raises ArgumentError, MaskError or UnsupportedError for what does not go together.
    """
    if draft is None:
        if options is not None or mask is not None:
            raise ArgumentError("plain decoding drafts nothing, so it takes no mask and no options")
        return None
    given = as_tuple(options)
    for each in given:
        if not (is_dataclass(each) and each.__hash__):
            raise ArgumentError(f"options of a drafter are a frozen dataclass, got {each!r}")
    names = draft if isinstance(draft, str) else tuple(draft)
    key = ("speculation", names, given, mask, profile, with_mask)
    return context.once(key, lambda: _looked_up(context, names, given, mask, profile, with_mask))


def as_tuple(options: Any) -> tuple[Any, ...]:
    """Options as they may be given: none, those of one drafter, or several."""
    if options is None:
        return ()
    return options if isinstance(options, tuple) else (options,)


def _looked_up(
    context: Context,
    draft: Names,
    options: tuple[Any, ...],
    mask: LayerMask | None,
    profile: bool,
    with_mask: bool,
) -> Speculation | None:
    named = () if draft == AUTO else split(draft, drafters.names())
    if draft != AUTO and not named:
        raise ArgumentError("a list of drafters names at least one; draft=None decodes plainly")
    own = {getattr(each, "mask", None) for each in options} - {None}
    if mask is not None and own - {mask}:
        raise ArgumentError("the options have a mask of their own; give one or the other")
    known = profiles.mask_for(context.model) if mask is None and profile else mask
    if named:
        found = dict.fromkeys((each.name for each in named), None)
        if len(found) < len(named):
            raise ArgumentError(f"{SIGN.join(each.name for each in named)} names a drafter twice")
    else:
        found = drafters.suggested(context, known)
        if with_mask and not any(map(_takes_mask, found.values())):
            found[MASKED] = drafters.load(MASKED).Options()
        if {MASKED, HEAD} <= found.keys():  # one of them; a head, unless a mask was asked for
            del found[HEAD if with_mask or mask is not None else MASKED]
    if not found:
        return None
    given = {_owner(found, each): each for each in options}
    found |= given
    for each in named:
        found[each.name] = drafters.options_of(each, **_values(given.get(each.name)))
    if mask is not None and not any(map(_takes_mask, found.values())):
        raise ArgumentError(f"the drafter {SIGN.join(found)} takes no mask")
    # a mask that was found is known to be good for drafts that read the whole text
    for name in found:
        found[name] = _with_mask(found[name], known if name == MASKED else mask)
    with ExitStack() as stack:
        made = {}
        for name in found:
            made[name] = drafters.load(name).make(context, found[name])
            stack.callback(made[name].close)
        names = sorted(made, key=lambda name: not isinstance(made[name], Lookup))
        drafter = joined([made[name] for name in names])
        costs, mask = drafter.costs(), drafter.mask
    chosen = {name: found[name] for name in names}

    def make() -> Drafter:
        return joined([drafters.load(name).make(context, chosen[name]) for name in names])

    return Speculation(SIGN.join(names), chosen, make, mask, costs, TimedCosts(costs))


def _owner(names: Iterable[str], options: Any) -> str:
    """Which of these drafters the options are of."""
    for name in names:
        if isinstance(options, drafters.load(name).Options):
            return name
    raise ArgumentError(f"{options!r} are no options of the drafter {SIGN.join(names)}")


def _values(options: Any) -> dict[str, Any]:
    """By field; none of no options."""
    return {} if options is None else {f.name: getattr(options, f.name) for f in fields(options)}


def _takes_mask(options: Any) -> bool:
    return "mask" in {field.name for field in fields(options)}


def _with_mask(options: Any, mask: LayerMask | None) -> Any:
    """The options, with this mask where they could have one and have none."""
    takes_it = _takes_mask(options) and options.mask is None
    return replace(options, mask=mask) if takes_it else options
