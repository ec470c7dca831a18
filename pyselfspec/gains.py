"""What passes cost, relative to a plain one-token pass, and what drafting with a mask can gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .gguf_file import GgufFile
from .score import DEPTH, Score
from .types import LayerMask


class Costs(Protocol):
    def draft(self, mask: LayerMask) -> float:
        """One token through a masked pass."""

    def check(self, width: int) -> float:
        """A full pass over so many tokens; 1 for one."""


@dataclass(frozen=True, slots=True)
class ByteCosts:
    """Costs where reading the weights is all that takes time: fast processors, or big models.

    Nothing is measured. With few cores a wide check costs more, and a draft pays less than this
    says.
    """

    file: GgufFile

    def draft(self, mask: LayerMask) -> float:
        return self.file.weight_bytes(mask.skip_attn, mask.skip_ffn) / self.file.weight_bytes()

    def check(self, width: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Gain:
    """Expected speed over plain decoding, with the draft length that is best."""

    speed: float
    n_draft: int


def gain(score: Score, mask: LayerMask, costs: Costs) -> Gain:
    """The best that drafting with a mask can do, by its match score.

    Tokens per check over the time of draft and check (Leviathan et al.,
    https://arxiv.org/abs/2211.17192, section 3.1), with runs that were counted instead of a rate
    that is assumed to be constant.
    """
    return max(gains(score, mask, costs), key=lambda gain: gain.speed)


def gains(score: Score, mask: LayerMask, costs: Costs) -> list[Gain]:
    """The same for every draft length that the score tells about, from 1 on."""
    c = costs.draft(mask)
    lengths = range(1, min(DEPTH, len(score.n_runs)) + 1)
    return [Gain(score.tokens_per_check(n) / (n * c + costs.check(n + 1)), n) for n in lengths]
