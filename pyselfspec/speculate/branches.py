"""Drafts with branches: which tokens they hold, the rows of their verification pass, and the
sequences of their branches, of which the one that the full model accepts becomes the text.

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

Copies of answers to everyday tasks, replayed (SmolLM2 135M and Gemma 3 270M, greedy and at
temperature 0.7), two to eight branches against one: 7 draft tokens in every step bring 0.6 to 3 %
more tokens per pass. But with the number of tokens chosen by what passes cost on processors (Q4_0
with AVX-512 and with AVX2, Q4_K_M), drafts are short where copies are unsure, and the speed is the
same within 0.7 %. Where a row costs 2 % of a pass, branches would bring 1 to 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from ..runtime.kv import KVSequence
from ..runtime.passes import Rows
from .types import Draft, DraftOrigin, DraftToken, Verdict

Continuations = Callable[[tuple[int, ...]], Sequence[tuple[int, float]]]


def fitting(seq: KVSequence, draft: Draft, n_end: int) -> Draft:
    """Return the first tokens of a draft, as many as one pass can verify here.

    n_end: most tokens of the finished text.
    """
    context = seq.context
    draft = draft.first(context.abilities.pass_width - 1)
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
        if self.draft.is_chain:
            seq_id = self.sequences[0][0].seq_id
            return Rows.of(seq_id, first, (history[-1], *self.draft.token_ids))
        ids = [tuple(seq.seq_id for seq in row) for row in self.sequences]
        return Rows(
            tokens=(history[-1], *self.draft.token_ids),
            seq_ids=tuple(row[0] for row in ids),
            pos=(first, *(first + 1 + depth for depth in self.draft.depths)),
            outputs=(True,) * len(ids),
            shared=tuple(row[1:] for row in ids),
        )

    def adopt(self, seq: KVSequence, n_past: int, verdict: Verdict) -> None:
        """Make the text's sequence, which held n_past tokens, hold the accepted branch."""
        if not verdict.path:
            return
        last = verdict.path[-1]
        taken = self.sequences[last + 1]
        if seq not in taken:
            seq.take_over(taken[0], n_past)


def branched(seq: KVSequence, draft: Draft) -> AbstractContextManager[Branches]:
    """Provide sequences for the branches of a draft; they are empty again afterwards."""
    if draft.is_chain:
        return nullcontext(Branches(draft, ((seq,),) * (1 + len(draft.tokens))))
    return _forked(seq, draft)


@contextmanager
def _forked(seq: KVSequence, draft: Draft) -> Iterator[Branches]:
    inner = {each.parent for each in draft.tokens}
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
                node = draft.tokens[node].parent
        yield Branches(draft, tuple(map(tuple, rows)))


def likeliest(n: int, n_branches: int, continuations: Continuations) -> Draft:
    """Return a draft of at most n tokens in at most n_branches branches, the most likely branch
    first, with as many expected accepted tokens as possible.

    A token is accepted if it and all tokens before it on its branch are right, so the tokens before
    a token are at least as likely as the token, and the best tree is found by taking the most
    likely ones one by one. Wang et al., "OPT-Tree", https://arxiv.org/abs/2406.17276, and Li et
    al., "EAGLE-2", https://arxiv.org/abs/2406.16858, grow theirs like this. Branches are opened
    greedily, so a better tree may exist.

    continuations: returns different tokens that may follow these draft tokens, most likely first,
        each with the probability that it is accepted if those are.
    """
    nodes: list[tuple[int, float, int]] = []  # token, chance, parent
    children: dict[int, list[int]] = {-1: []}
    n_open = n_branches - 1  # branches that may still be opened
    order = count()
    heap: list[tuple[float, int, int, float, int, tuple[int, ...]]] = []

    def offer(parent: int, path: tuple[int, ...], all_right: float) -> None:
        for token, chance in continuations(path):
            heappush(heap, (-all_right * chance, next(order), token, chance, parent, path))

    offer(-1, (), 1.0)
    while heap and len(nodes) < n:
        negative, _, token, chance, parent, path = heappop(heap)
        if children[parent]:
            if n_open == 0:
                continue
            n_open -= 1
        here = len(nodes)
        nodes.append((token, chance, parent))
        children[parent].append(here)
        children[here] = []
        offer(here, (*path, token), -negative)
    return _draft(nodes, children)


def _draft(nodes: Sequence[tuple[int, float, int]], children: dict[int, list[int]]) -> Draft:
    """Return the nodes as a draft, branch by branch, the more likely of two first."""
    places = {-1: -1}
    waiting = children[-1][::-1]
    while waiting:
        node = waiting.pop()
        places[node] = len(places) - 1
        waiting += children[node][::-1]
    found = [nodes[i] for i in list(places)[1:]]
    return Draft(
        tuple(
            DraftToken(token, chance, places[parent], origin=DraftOrigin.COPIED)
            for token, chance, parent in found
        )
    )
