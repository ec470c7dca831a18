"""The accept rule for draft tokens. Pure: knows neither model nor sampler, only asks for draws.

The target is the full model, whose text drafts must not change.

Sample and match, for deterministic drafts: at each position the target's own sampler draws its
token, and a draft token is accepted when it equals that draw. The emitted tokens are exactly the
target's draws, so any sampler chain stays exact, penalties and grammars included, and one draw is
made per emitted token. For a draft that is a point mass this accepts as often as speculative
sampling does, min(1, p/1) = p (Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", section 2.3, https://arxiv.org/abs/2211.17192). In a tree the draw chooses the branch
(Miao et al., "SpecInfer", section 4, https://arxiv.org/abs/2305.09781, for point masses).
"""

from __future__ import annotations

from collections.abc import Callable

from .types import Draft, Verdict


def verify(draft: Draft, draw: Callable[[int], int], consume: Callable[[int], bool]) -> Verdict:
    """Compare a draft with the target's draws.

    draw: returns the token drawn after a row: 0 is the last token of the text, i + 1 is draft
        token i. In a chain the rows come in order, without gaps.
    consume: takes every emitted token once, in order; returns True if the token ends the text.
        Nothing is drawn after that.
    """
    path: list[int] = []
    node = -1
    while True:
        token = draw(node + 1)
        ended = consume(token)
        child = draft.child(node, token)
        if child is None:
            return Verdict(tuple(path), token, ended)
        path.append(child)
        if ended:
            return Verdict(tuple(path), None, ended)
        node = child
