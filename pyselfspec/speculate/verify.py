"""Which drafted tokens the full model accepts. Pure: knows neither model nor sampler, only a way to
draw.

Sample and match, for a deterministic draft: at each position the target's own sampler draws its
token, and a drafted token is accepted when it equals that draw. The emitted tokens are exactly the
target's draws, so any sampler chain stays exact, penalties and grammars included, and one draw is
made per emitted token. For a draft that is a point mass this accepts as often as speculative
sampling does, min(1, p/1) = p (Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", section 2.3, https://arxiv.org/abs/2211.17192).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .types import Verdict


def verify(
    draft: Sequence[int], sample: Callable[[int], int], ends: Callable[[int], bool]
) -> Verdict:
    """Compare a draft with the target's draws.

    draft: proposed token ids.
    sample: ``sample(i)`` draws the target's token after ``draft[:i]``; called for i = 0, 1, ...
    without gaps.
    ends: told every emitted token once, in order; True when the text ends with it. Nothing is drawn
    after that.
    """
    for i, drafted in enumerate(draft):
        token = sample(i)
        ended = ends(token)
        if token != drafted:
            return Verdict(i, token, ended)
        if ended:
            return Verdict(i + 1, None, ended)
    token = sample(len(draft))
    return Verdict(len(draft), token, ends(token))
