"""Objectives: what makes one mask better than another. One file each, named as users call it.

An objective is a module here with a class ``Objective``, made from a `Setting`. The command line
and the conformance tests find it by listing this folder. Pure as far as this file goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from ...costs.expected import PassCosts
from ...masks.layer_mask import LayerMask
from ...masks.score import Score
from ...util import by_name

if TYPE_CHECKING:
    from ...runtime.context import Context

WINDOW = 32  # tokens of a masked pass of agreement, as SWIFT; shorter ones cost more, tell the same
CACHE_BYTES = 512 * 2**20  # of hidden states that masks share
# What objectives were called in earlier versions.
FORMER = {
    "match": "agreement",
    "acceptance": "agreement",
    "ppl": "perplexity",
    "tokens-per-second": "expected-speed",
    "measured": "measured-speed",
}


@dataclass(frozen=True, slots=True)
class About:
    """What is known of an objective before a model is open.

    label: of the number people are shown.
    lost: of Score.mean_excess, what skipping costs.
    n_chunks: of text, by default.
    higher_is_better: of the number shown.
    weighs_cost: whether the value knows that cheap masks are better. Masks of different cost can
        only be compared by others up to a bound on the cost; and only others rank masks by their
        excess loss, so that some can be given up by it.
    writes_text: without a text it wants one that the model wrote itself, which is what drafts will
        have to predict.
    results: the objective whose files of results go with this one.
    kept: whether scores go into that file. Timings do not.
    """

    label: str
    lost: str
    n_chunks: int
    higher_is_better: bool = True
    weighs_cost: bool = False
    writes_text: bool = True
    results: str = "agreement"
    kept: bool = True

    @property
    def counts_drafts(self) -> bool:
        """Whether scores count right runs of tokens, from which a speed can be expected."""
        return self.kept and self.results == "agreement"


@dataclass(frozen=True, slots=True)
class Setting:
    """What an objective is made from.

    context: with room for n_kept chunks and a window more, and n_kept + 1 sequences. The objective
        uses all of its sequences.
    chunks: token ids, all chunks equally long; the second half of each is scored.
    costs: of masked passes, for objectives that weigh them; None is enough for the others.
    window: tokens in a masked pass of agreement.
    n_kept: chunks whose K/V is kept between calls, for masks that come one by one.
    cache_bytes: most memory for hidden states that masks share, 0 to share none.
    seed: of text that is sampled.
    """

    context: Context
    chunks: Sequence[tuple[int, ...]]
    costs: PassCosts | None = None
    window: int = WINDOW
    n_kept: int = 1
    cache_bytes: int = CACHE_BYTES
    seed: int = 0


class Objective(Protocol):
    """Life cycle: `scores` for chunks in any order, then `value` and `shown` of their sums."""

    @property
    def about(self) -> About: ...

    @property
    def n_sublayers(self) -> int:
        """Attention and feed-forward sublayers run so far, times tokens."""

    @property
    def n_chunks(self) -> int:
        """Chunks of text there are."""

    def scores(self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]) -> Iterator[Score]:
        """A score for each mask on one chunk, in the order of the masks; computed as it is asked
        for.

        chunk: 0 to n_chunks - 1.
        base: a mask that the others differ little from; what they share with it may run once. That
            works best for masks in the order of their `entry` (masks/layer_mask.py), which is how
            `Scorer` gives them; the scores do not depend on it, bit for bit.

        The loss of a score is per token, in the unit of the objective: nats, wrong tokens,
        microseconds. Its excess is over the full model on the same tokens, and so is 0 for the mask
        that skips nothing. Scores of several chunks add up.

        Raises ArgumentError for chunks that are too short, and the errors of Context.decode.
        """

    def value(self, mask: LayerMask, score: Score) -> float:
        """What strategies look for; the higher, the better."""

    def shown(self, mask: LayerMask, score: Score) -> float:
        """The number that people know, see About.label."""

    def error(self, score: Score) -> float | None:
        """Standard error of the number shown, None where it is not known."""


class ObjectiveFactory(Protocol):
    about: ClassVar[About]

    def __call__(self, setting: Setting) -> Objective: ...


def names() -> tuple[str, ...]:
    """Names of all objectives, as the command line spells them."""
    return by_name.names(__path__)


def load(name: str) -> ObjectiveFactory:
    """The ``Objective`` class of a file; former names are known. Raises ArgumentError for a name
    that is no file here."""
    name = FORMER.get(name, name)
    factory: ObjectiveFactory = by_name.load(__name__, "objective", name).Objective
    return factory
