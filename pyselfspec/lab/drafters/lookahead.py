"""Draft n-grams that the full model has predicted in a window ahead of the text.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
https://arxiv.org/abs/2402.02057. A window of predicted tokens ahead of the text is refined with
every pass, as in jacobi.py, but its last n - 1 states are kept, so that each place of the window
has a path through them: a token, the most likely token after it, the most likely one after that.
Together with the most likely next token every path is an n-gram; all go into a pool by their first
token. A draft has the n-grams of the pool that begin with the last token of the text, each as a
branch, and the window: its oldest state as a chain, and after each of its tokens the later states
as a branch.

The window costs rows and only feeds the pool, so it pays only if rows cost next to nothing:
SmolLM2 135M writes 1.21 tokens per pass on everyday tasks, with 4.4 draft tokens in each, 1.23 with
7.6 (window=4, guesses=3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...costs.table import N_WIDTH
from ...errors import ArgumentError
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...speculate.drafters import Drafter
from ...speculate.limits import DraftLimit
from ...speculate.types import Draft, DraftOrigin, DraftToken, Verdict

N_PER_TOKEN = 16  # latest n-grams of the pool with the same first token that are kept
ACCEPTED, N_PRIOR = 0.5, 8.0  # tokens of a draft expected to be accepted, and drafts that it counts
FORGET = 0.98  # weight of a draft when the next one comes


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    window: length of the window in tokens. n: length of an n-gram. guesses: most n-grams of the
    pool in a draft.
    """

    window: int = 2
    n: int = 3
    guesses: int = 2

    def __post_init__(self) -> None:
        for name, low in (("window", 1), ("n", 2), ("guesses", 1)):
            if getattr(self, name) < low:
                raise ArgumentError(f"{name} is at least {low}, got {getattr(self, name)}")
        if self.n_tokens >= N_WIDTH:
            raise ArgumentError(
                f"window {self.window}, n {self.n} and guesses {self.guesses} make drafts of "
                f"{self.n_tokens} tokens, at most {N_WIDTH - 1} go through a pass"
            )

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the largest draft."""
        return (self.window + self.guesses) * (self.n - 1)


def make(context: Context, options: Options) -> LookaheadDrafter:
    """Return a drafter. Raises ArgumentError for more branches than the context has sequences."""
    context.abilities.require_rollback()
    n_branches = options.window + options.guesses
    if n_branches > context.n_seq_max:
        raise ArgumentError(
            f"a window of {options.window} and {options.guesses} guesses need {n_branches} "
            f"sequences, the context has n_seq_max {context.n_seq_max}"
        )
    return LookaheadDrafter(context, options)


class LookaheadDrafter(Drafter):
    """Drafts as many tokens as the options allow, or none if these exceed the limit, or do not pay
    at the acceptance rate so far."""

    name = "lookahead"

    def __init__(self, context: Context, options: Options) -> None:
        super().__init__(context)
        self._options = options
        self._states: list[list[int]] = []  # of the window, the oldest first
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}
        self._ends: list[int] = []  # rows after which the window goes on
        self._draft = Draft()
        self._n_accepted = N_PRIOR * ACCEPTED  # of recent drafts, weighted
        self._n_drafts = N_PRIOR

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        n = self._options.window
        self._states = [(list(history[-n:]) * n)[:n]]  # any tokens will do
        self._pool = {}
        self._draft = Draft()

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        self._draft = Draft()
        options = self._options
        has_room = self._context.n_branches >= options.window + options.guesses
        if has_room and self._is_allowed(limit):
            self._draft = self._tree(history[-1])
        return self._draft

    def _is_allowed(self, limit: DraftLimit) -> bool:
        n = self._options.n_tokens
        if limit.n_max >= n:
            return True
        # all tokens together are as likely as makes the expected number the mean accepted number
        chances = (min(1.0, self._n_accepted / self._n_drafts / n), *[1.0] * (n - 1))
        return limit.max_lookup >= n and bool(
            limit.truncate(Draft.copied(range(n), chances)).tokens
        )

    def _tree(self, last: int) -> Draft:
        tokens: list[DraftToken] = []

        def add(token: int, parent: int) -> int:
            tokens.append(DraftToken(token, None, parent, self.name, origin=DraftOrigin.COPIED))
            return len(tokens) - 1

        for ngram in list(self._pool.get(last, ()))[: -self._options.guesses - 1 : -1]:
            node = -1
            for token in ngram:
                same = (i for i, t in enumerate(tokens) if (t.parent, t.token) == (node, token))
                found = next(same, None)
                node = add(token, node) if found is None else found
        self._ends, trunk = [], -1
        for first, *later in zip(*self._states, strict=True):
            node = trunk = add(first, trunk)
            for token in later:
                node = add(token, node)
            self._ends.append(node + 1)
        return Draft(tuple(tokens))

    def on_verified(self, draft: Draft, verdict: Verdict, best: Callable[[int], int]) -> None:
        if not draft.tokens or draft.token_ids != self._draft.token_ids:
            return  # there was no room for the whole draft
        predicted = [best(row) for row in self._ends]
        if len(self._states) == self._options.n - 1:
            for path in zip(*self._states, predicted, strict=True):
                self._keep(*path)
            del self._states[0]
        self._states.append(predicted)

    def _keep(self, first: int, *others: int) -> None:
        """Add an n-gram to the pool, as the latest one with its first token."""
        pool = self._pool.setdefault(first, {})
        pool.pop(others, None)
        pool[others] = None
        if len(pool) > N_PER_TOKEN:
            del pool[next(iter(pool))]

    def accept(self, verdict: Verdict) -> None:
        if self._draft.tokens:
            self._n_accepted = FORGET * self._n_accepted + verdict.n_accepted
            self._n_drafts = FORGET * self._n_drafts + 1
            self._draft = Draft()  # the next one may be another drafter's
