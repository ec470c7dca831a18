"""Drafts with branches: one pass verifies them all, and the branch that the full model takes
becomes the text.

Each branch but the first has a sequence of its own for the time of the pass, a fork of the text's.
A token that several branches share is one row in all of their sequences, so a pass costs what its
rows cost, and every row sees the tokens before it on its branch alone, in the same order as in a
chain: its bits are the same. Then the sequence of the text takes over the cells of the branch; no
K/V moves. Miao et al., "SpecInfer", section 4, https://arxiv.org/abs/2305.09781, verify a tree in
one pass; what Zhang et al., "Draft & Verify", https://arxiv.org/abs/2309.08168, shuffle in memory
is metadata here.

Cells of other branches that lie between those of the text stay empty until cells are moved, since
their order is part of the text's bits. Without flash attention bits depend on where cells are as
well, so there are no branches, see Context.n_branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..runtime.kv import KVSequence
from ..runtime.passes import Rows
from .types import Draft, Verdict
from .verify import verify


def fitting(seq: KVSequence, draft: Draft, n_end: int) -> Draft:
    """As much of the beginning of a draft as can be verified in one pass here.

    n_end: tokens that the text may come to have.
    """
    context = seq.context
    draft = draft.beginning(context.pass_width - 1)
    has_room = n_end + len(draft.tokens) <= context.n_ctx
    return draft.beginning(n_within(draft, context.n_branches if has_room else 1))


def n_within(draft: Draft, n_branches: int) -> int:
    """The most tokens of the beginning of a draft that make so many branches at most."""
    n, inner = 1, set[int]()
    for i, parent in enumerate(draft.parents):
        n += parent in inner
        if n > n_branches:
            return i
        inner.add(parent)
    return len(draft.tokens)


@dataclass(frozen=True, slots=True)
class Branches:
    """A draft, and the sequences that its rows belong to: the last token of the text, then each
    token of the draft."""

    draft: Draft
    sequences: tuple[tuple[KVSequence, ...], ...]

    def rows(self, history: Sequence[int]) -> Rows:
        """What goes through the pass; the text's sequence holds all of history but the last."""
        first = len(history) - 1
        ids = [tuple(seq.seq_id for seq in row) for row in self.sequences]
        return Rows(
            tokens=(history[-1], *self.draft.tokens),
            seq_ids=tuple(row[0] for row in ids),
            pos=(first, *(first + 1 + depth for depth in self.draft.depths)),
            outputs=(True,) * len(ids),
            shared=tuple(row[1:] for row in ids),
        )

    def verdict(self, draw: Callable[[int], int], ends: Callable[[int], bool]) -> Verdict:
        """draw: the target's token after a row. ends: see ``verify``."""
        asking = verify(self.draft, ends)
        row = next(asking)
        while True:
            try:
                row = asking.send(draw(row))
            except StopIteration as found:
                verdict: Verdict = found.value
                return verdict

    def settle(self, seq: KVSequence, n_past: int, verdict: Verdict) -> None:
        """The text's sequence, which has held n_past tokens, is to hold what was accepted."""
        if not verdict.path:
            return
        last = verdict.path[-1]
        taken = self.sequences[last + 1]
        if seq not in taken:
            seq.take_over(taken[0], n_past)


@contextmanager
def branched(seq: KVSequence, draft: Draft) -> Iterator[Branches]:
    """Sequences for the branches of a draft, empty again afterwards."""
    inner = set(draft.parents)
    ends = [i for i in range(len(draft.tokens)) if i not in inner]
    rows: list[list[KVSequence]] = [[] for _ in range(len(draft.tokens) + 1)]
    with ExitStack() as stack:
        for i, node in enumerate(ends):
            branch = stack.enter_context(seq.context.spare_sequence()) if i else seq
            if i:
                seq.fork(branch.seq_id)
            rows[0].append(branch)
            while node >= 0:
                rows[node + 1].append(branch)
                node = draft.parents[node]
        yield Branches(draft, tuple(map(tuple, rows)))
