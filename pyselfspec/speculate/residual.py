"""Residual sampling: draft tokens drawn from a distribution of their own are accepted as often as
any rule can that preserves the target's distribution.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", section 2.3,
https://arxiv.org/abs/2211.17192; Chen et al., "Accelerating Large Language Model Decoding with
Speculative Sampling", algorithm 2, https://arxiv.org/abs/2302.01318. A token drawn from q is
accepted with probability min(1, p/q), where p is the target's distribution; otherwise the token is
drawn from the normalized positive part of p - q. So tokens follow p, and a draft token is accepted
with probability sum(min(p, q)), where sample and match would accept sum(p * q) of drawn ones and
max p at best.

Exact only if the token was really drawn from q, and if whether it is verified does not depend on
the draw, see ``limits.Pick``. For a token that was not drawn this rule is sample and match. Pure.
"""

from __future__ import annotations

import numpy as np

from ..runtime.pass_result import Distribution, TokenSampler
from .limits import HasLogits, Pick

# How drafts are verified: by sample and match, see verify.py, or by residual sampling.
MATCH, RESIDUAL = "match", "residual"
VERIFY = (MATCH, RESIDUAL)

_STREAM = 0x5E1F  # keeps these streams independent of others with the same seed


def acceptance(p: Distribution, q: Distribution, token: int) -> float:
    """Return the probability of accepting a token that was drawn from q."""
    return min(1.0, float(p[token] / q[token])) if q[token] > 0 else 1.0


def remainder(p: Distribution, q: Distribution) -> Distribution:
    """Return the distribution of the token that replaces a rejected one. If p exceeds q nowhere,
    they are equal but for rounding, and it is p."""
    more = np.maximum(p - q, 0.0)
    total = more.sum()
    return more / total if total > 0 else p


def draw(p: Distribution, u: float) -> int:
    """Return the token at quantile u, 0 <= u < 1. It is never one of probability 0."""
    edges = p.cumsum()
    return int(edges.searchsorted(u * edges[-1], side="right"))


class Residual:
    """Draws draft tokens and decides about them, for one text.

    sampler: its distribution is the one that drafts are drawn from; it need not be the target's.
    seed: of two random streams, for drafts and for verdicts, both independent of the target's.
    """

    def __init__(self, sampler: TokenSampler, seed: int) -> None:
        self._sampler = sampler
        streams = np.random.SeedSequence([_STREAM, seed]).spawn(2)
        self._drafting, self._settling = map(np.random.default_rng, streams)

    def draw(self, result: HasLogits, row: int) -> Pick:
        """Draw a draft token to follow a row of a pass, see ``DraftLimit.draw``."""
        q = self._sampler.distribution_of(result.logits_of(row))
        likeliest = int(q.argmax())
        return Pick(draw(q, self._drafting.random()), float(q[likeliest]), likeliest, q)

    def decide(self, token: int, q: Distribution, p: Distribution) -> int:
        """Return the text's token for the target's distribution p, where ``token`` was drafted and
        drawn from q. It equals ``token`` if and only if that is accepted."""
        if self._settling.random() < acceptance(p, q, token):
            return token
        return draw(remainder(p, q), self._settling.random())
