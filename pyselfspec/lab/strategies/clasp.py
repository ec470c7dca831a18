"""Sets of whole blocks whose removal turns the hidden state of a token the least.

Dynamic programming over blocks: of all ways to skip j of the first i blocks one state is kept, the
one with the largest cosine similarity to the full model's at that depth. Chen et al., "CLaSp:
In-Context Layer Skip for Self-Speculative Decoding", section 3, https://arxiv.org/abs/2505.24196.
Here at several tokens of the text; each gives one set for each number of blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...selection.chunks import first_scored
from ...selection.rounds import Round
from ...selection.strategies import Rounds, Setting, from_rounds

READS_STATES = True
N_TOKENS = 4  # positions in the text whose states are compared
State = NDArray[np.float32]  # [1, n_embd]
Sets = dict[int, tuple[State, tuple[int, ...]]]  # by blocks skipped: the state, and which blocks


@from_rounds
def make(setting: Setting) -> Rounds:
    if setting.context is None or not setting.chunk:
        raise ArgumentError("the strategy clasp needs a context and text")
    if not skippable(setting):
        raise ArgumentError("the strategy clasp needs blocks that can be skipped whole")
    n_layer, chunk = setting.space.n_layer, setting.chunk
    for pos in np.linspace(first_scored(len(chunk)), len(chunk) - 1, N_TOKENS, dtype=int):
        sets = sets_at(setting, setting.context, chunk[: int(pos) + 1])
        for _state, blocks in sorted(sets.values(), key=lambda found: -len(found[1])):
            if blocks:
                yield Round.of_one(LayerMask.skipping(n_layer, attn=blocks, ffn=blocks))


def skippable(setting: Setting) -> frozenset[int]:
    """Return the blocks after the first that can be skipped whole."""
    space = setting.space
    blocks = (LayerMask.skipping(space.n_layer, attn=[i], ffn=[i]) for i in range(1, space.n_layer))
    return frozenset(m.first_skipped for m in blocks if space.mask(space.inside(m)) == m)


def sets_at(setting: Setting, context: Context, tokens: tuple[int, ...]) -> Sets:
    """The best sets for the last of these tokens. Uses the last sequence of the context."""
    space, may_skip = setting.space, skippable(setting)
    n_max = min(len(may_skip), setting.n_max * space.n_layer // max(len(space.units), 1))
    seq = context.sequence(context.n_seq_max - 1)
    seq.drop()
    context.prefill(tokens[:-1], seq)
    one = Blocks(context, seq, tokens[-1])
    full = one.entering_second()
    sets: Sets = {0: (full, ())}
    for il in range(1, space.n_layer):
        ran = {n: (one.through(il, state), blocks) for n, (state, blocks) in sets.items()}
        full = ran[0][0]  # the set that skips nothing is the full model
        for n, (state, blocks) in sets.items() if il in may_skip else ():
            other = ran.get(n + 1)
            if n < n_max and (other is None or cosine(state, full) > cosine(other[0], full)):
                ran[n + 1] = (state, (*blocks, il))
        sets = ran
    seq.drop()
    return sets


class Blocks:
    """Single blocks run for one token after the full model's K/V."""

    def __init__(self, context: Context, seq: KVSequence, token: int) -> None:
        self._context = context
        self._seq = seq
        self._token = token
        self._n_past = seq.n_past

    def entering_second(self) -> State:
        """Return the state after block 0."""
        mask = LayerMask.early_exit(self._context.model.n_layer, 1)
        return self._decode(mask, None, 1)

    def through(self, il: int, state: State) -> State:
        """Return the state after block il when this one enters it."""
        n = self._context.model.n_layer
        others = frozenset(range(n)) - {il}
        return self._decode(LayerMask(n, others, others), state, il + 1)

    def _decode(self, mask: LayerMask, state: State | None, hidden_at: int) -> State:
        decoded = self._context.decode(
            [self._token], seq=self._seq, mask=mask, hidden=state, hidden_at=hidden_at
        )
        self._seq.rollback(self._n_past)
        assert decoded.hidden is not None
        return decoded.hidden.numpy()


def cosine(a: State, b: State) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))
