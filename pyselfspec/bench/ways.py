"""The ways to write a text that a benchmark compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..speculate import drafters
from ..speculate.draft_names import SIGN, split
from ..speculate.prepared import AUTO, prepared
from .types import PLAIN

COPIES = "ngram"  # the one of AUTO's drafters that remembers texts


@dataclass(frozen=True, slots=True)
class Way:
    """drafters: those that the name stands for, joined by +; "" for PLAIN. options, mask, profile:
    as for Completion. skips: what it drafts without."""

    name: str
    drafters: str
    options: tuple[Any, ...] = ()
    mask: LayerMask | None = None
    profile: bool = True
    skips: LayerMask | None = None

    @classmethod
    def named(cls, name: str) -> Way:
        """PLAIN, or what drafts by this name without a mask of its own."""
        return cls(name, "") if name == PLAIN else cls(name, name, forgetful(name))

    @property
    def completion_options(self) -> dict[str, Any]:
        """Keyword arguments of Completion."""
        if not self.drafters:
            return {"draft": None}
        return {
            "draft": self.name,
            "options": self.options or None,
            "mask": self.mask,
            "profile": self.profile,
        }


def forgetful(names: str) -> tuple[Any, ...]:
    """Options with which these drafters copy nothing from earlier texts: a prompt that comes again
    would find its own answer there."""
    chosen = COPIES if names == AUTO else names
    found = []
    for each in split(chosen, drafters.names()):
        if "session" in _fields(each.name):
            found.append(drafters.options_of(each, session=False))
    return tuple(found)


def ways_of(
    context: Context, names: Sequence[str], *, mask: LayerMask | None, profile: bool
) -> list[Way]:
    """Plain decoding, and the ways with these names; none: AUTO, and where that joins several
    drafters, each of them alone.

    mask: for those that take one. profile: False ignores the model's profile.

    Raises ArgumentError for a name that comes twice, and what `prepared` raises for one that does
    not go with the context.
    """
    chosen = list(names) or [AUTO]
    found = [Way(PLAIN, "")]
    for name in chosen:
        if name in (way.name for way in found):
            raise ArgumentError(f"{name} is to be measured twice; name each way to draft once")
        way = _way(context, name, mask, profile)
        found.append(way)
        parts = way.drafters.split(SIGN) if name == AUTO and not names else ()
        if len(parts) > 1:
            chosen += parts
    if mask is not None and not any(way.mask for way in found):
        raise ArgumentError("none of the ways to draft takes a mask; leave it out, or name another")
    return found


def _way(context: Context, name: str, mask: LayerMask | None, profile: bool) -> Way:
    takes = name == AUTO or any("mask" in _fields(n.name) for n in split(name, drafters.names()))
    own, options = mask if takes else None, forgetful(name)
    ready = prepared(context, name, options=options or None, mask=own, profile=profile)
    if ready is None:
        architecture = context.model.file.architecture
        raise ArgumentError(
            f"architecture {architecture}: its memory cannot take tokens back, so nothing is "
            "drafted and there is nothing to compare"
        )
    return Way(name, ready.name, options, own, profile, ready.mask)


def _fields(name: str) -> set[str]:
    return {field.name for field in fields(drafters.load(name).Options)}
