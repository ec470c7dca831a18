"""The rows of a draft's verification pass, and the sequences of its branches, if it has some: the
branch that the full model accepts becomes the text.

During the pass each branch but the first has a sequence of its own, a fork of the text's sequence.
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

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ...runtime.kv import KVSequence
from ...runtime.passes import Rows
from ..types import Draft, Verdict


def fitting(seq: KVSequence, draft: Draft, n_end: int) -> Draft:
    """Return the first tokens of a draft, as many as one pass can verify here.

    n_end: most tokens of the finished text.
    """
    context = seq.context
    draft = draft.first(context.pass_width - 1)
    has_room = n_end + len(draft.tokens) <= context.n_ctx
    return draft.first(n_within(draft, context.n_branches if has_room else 1))


def n_within(draft: Draft, n_branches: int) -> int:
    """Return how many of a draft's first tokens make at most n_branches branches."""
    n, inner = 1, set[int]()
    for i, each in enumerate(draft.tokens):
        n += each.parent in inner
        if n > n_branches:
            return i
        inner.add(each.parent)
    return len(draft.tokens)


@dataclass(frozen=True, slots=True)
class Branches:
    """A draft and the sequences of each of its rows: the last token of the text, then each draft
    token."""

    draft: Draft
    sequences: tuple[tuple[KVSequence, ...], ...]

    def rows(self, history: Sequence[int]) -> Rows:
        """Return the rows of the pass. The text's sequence holds all of history but its last
        token."""
        first = len(history) - 1
        ids = [tuple(seq.seq_id for seq in row) for row in self.sequences]
        return Rows(
            tokens=(history[-1], *self.draft.token_ids),
            seq_ids=tuple(row[0] for row in ids),
            pos=(first, *(first + 1 + depth for depth in self.draft.depths)),
            outputs=(True,) * len(ids),
            shared=() if self.draft.is_chain else tuple(row[1:] for row in ids),
        )

    def settle(self, seq: KVSequence, n_past: int, verdict: Verdict) -> None:
        """Make the text's sequence, which held n_past tokens, hold the accepted branch."""
        if not verdict.path:
            return
        last = verdict.path[-1]
        taken = self.sequences[last + 1]
        if seq not in taken:
            seq.take_over(taken[0], n_past)


@contextmanager
def branched(seq: KVSequence, draft: Draft) -> Iterator[Branches]:
    """Provide sequences for the branches of a draft; they are empty again afterwards."""
    inner = {each.parent for each in draft.tokens}
    ends = [i for i in range(len(draft.tokens)) if i not in inner] or [-1]
    rows: list[list[KVSequence]] = [[] for _ in range(len(draft.tokens) + 1)]
    with ExitStack() as stack:
        for i, node in enumerate(ends):
            branch = stack.enter_context(seq.context.spare_sequence()) if i else seq
            if i:
                seq.fork(branch.seq_id)
            rows[0].append(branch)
            while node >= 0:
                rows[node + 1].append(branch)
                node = draft.tokens[node].parent
        yield Branches(draft, tuple(map(tuple, rows)))
