"""Drafters: cheap ways to guess the next tokens. One file each; the file name is the name users
give.

A drafter is a module here with a class ``Drafter``. The command line, the conformance tests and the
benchmarks find it by listing this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ...masks.layer_mask import LayerMask
from ...util import by_name
from ..types import Draft, DraftLimit, Verdict

if TYPE_CHECKING:
    from ...runtime.context import Context


class Drafter(Protocol):
    """Life cycle: ``begin`` once per text, then ``draft`` and ``accept`` in turn, one pair per
    step.

    At the end of ``draft`` a drafter holds no K/V cells of its own, and sequence 0 is as it was; or
    the draft has ``shared``, and sequence 0 holds the tokens to check as well.
    """

    def begin(self, history: Sequence[int]) -> None:
        """A new text starts with these tokens."""

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        """At most ``limit.n_max`` tokens to follow history. All of history but its last token is in
        sequence 0."""

    def accept(self, verdict: Verdict) -> None:
        """What became of the last draft."""


class DrafterFactory(Protocol):
    def __call__(self, context: Context, mask: LayerMask) -> Drafter: ...


def names() -> tuple[str, ...]:
    """Names of all drafters, as the command line spells them."""
    return by_name.names(__path__)


def load(name: str) -> DrafterFactory:
    """The ``Drafter`` class of a drafter's file. Raises ArgumentError for a name that is no file
    here."""
    factory: DrafterFactory = by_name.load(__name__, "drafter", name).Drafter
    return factory
