"""Residual sampling: a draft token that was drawn from a law of its own is accepted as often as any
rule could that keeps the text's law.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", section 2.3,
https://arxiv.org/abs/2211.17192; Chen et al., "Accelerating Large Language Model Decoding with
Speculative Sampling", algorithm 2, https://arxiv.org/abs/2302.01318. A token drawn from q is
accepted with probability min(1, p/q), p being the target's law; otherwise the token is drawn from
what p has more than q. So tokens follow p, and a draft token is accepted with probability
sum(min(p, q)), where sample and match would accept sum(p * q) of drawn ones and max p at best.

Exact only if q is the law that the token was really drawn from, and nothing but laws decides
whether it is verified, see Pick.p. For a token that was not drawn this rule is sample and match.
Pure: knows no model.
"""

from __future__ import annotations

import numpy as np

from .requests import Answer, Draws
from .types import Law, Pick

# How drafts are verified: sample and match, see verify.py, or this.
MATCH, RESIDUAL = "match", "residual"
VERIFY = (MATCH, RESIDUAL)

_STREAM = 0x5E1F  # apart from other streams of one seed


def acceptance(p: Law, q: Law, token: int) -> float:
    """The probability to accept a token that was drawn from q."""
    return min(1.0, float(p[token] / q[token])) if q[token] > 0 else 1.0


def remainder(p: Law, q: Law) -> Law:
    """The law of the token in the place of a rejected one. Where p is nowhere above q, they are
    equal but for rounding, and it is p."""
    more = np.maximum(p - q, 0.0)
    total = more.sum()
    return more / total if total > 0 else p


def draw(law: Law, u: float) -> int:
    """A token by its law; u: uniform in [0, 1). Never one of probability 0."""
    edges = law.cumsum()
    return int(edges.searchsorted(u * edges[-1], side="right"))


class Residual:
    """Draws draft tokens, and settles them. One serves one text.

    sampler: whose law drafts follow; it need not be the target's.
    seed: of two streams, one for drafts and one for verdicts, both apart from the target's.
    """

    def __init__(self, sampler: Draws, seed: int) -> None:
        self._sampler = sampler
        streams = np.random.SeedSequence([_STREAM, seed]).spawn(2)
        self._drafting, self._settling = map(np.random.default_rng, streams)

    def drawing(self, answer: Answer, row: int) -> Pick:
        """A draft token to follow a row of a pass, see DraftLimit.drawing."""
        law = answer.law(self._sampler, row)
        likeliest = int(law.argmax())
        return Pick(draw(law, self._drafting.random()), float(law[likeliest]), likeliest, law)

    def settle(self, token: int, q: Law, p: Law) -> int:
        """The text's token by the target's law p, the draft's having been drawn from q; it is the
        draft's where that is accepted, and only then."""
        if self._settling.random() < acceptance(p, q, token):
            return token
        return draw(remainder(p, q), self._settling.random())
