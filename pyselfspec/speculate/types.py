"""The data of the generation loop: draft tokens, drafts, verdicts and steps.

Pure and frozen. Times are integers in microseconds; probabilities are 0..1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple, Self

from ..errors import ArgumentError
from ..runtime.pass_result import SINGLE, BatchLoad, Distribution
from ..runtime.passes import FULL, Pass


class DraftOrigin(Enum):
    """How a draft token was found."""

    COPIED = "copied"  # looked up, without a pass
    PASSED = "passed"  # by a draft pass


class DraftToken(NamedTuple):
    """One token of a draft.

    p: probability that it is accepted if all tokens before it are; None: the drafter states none.
        Of a drawn token, the probability of the most likely token, see ``limits.Pick``.
    parent: index in the draft of the token that it follows; -1: the last token of the text.
    source: name of its drafter; empty: the loop fills in the name of the drafter in use.
    distribution: the distribution that it was drawn from; None: it was not drawn. Equality and hash
        ignore it: arrays have neither.
    origin: how it was found.
    """

    token: int
    p: float | None = None
    parent: int = -1
    source: str = ""
    distribution: Distribution | None = None
    origin: DraftOrigin = DraftOrigin.PASSED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DraftToken) and self._compared == other._compared

    def __ne__(self, other: object) -> bool:  # that of tuples compares all fields
        return not self == other

    def __hash__(self) -> int:
        return hash(self._compared)

    @property
    def _compared(self) -> tuple[object, ...]:
        return (*self[:4], self.origin)


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed to follow the text.

    tokens: in the order of their rows in the verification pass; parents come before children. If a
        pass has less room, only the first tokens are verified, so the best branch comes first. All
        have a probability or none has; those of a draft with branches have no distribution.
    verification: the pass that verifies it. If it enters after shared blocks, the sequence already
        holds its rows (the last token of the text and all draft tokens), with the K/V of a full
        pass in those blocks.
    is_offer: whether a pass that several texts share may verify fewer of its tokens.
    dropped: the last token that was drafted but is not worth verifying. The target's own token
        tells whether it would have been accepted.
    draft_us: time spent drafting; 0: the loop measures it.
    catch_up_us: time spent reading skipped tokens before this draft; not part of the draft's cost.
    is_chain: whether each token follows the one before it.
    n_copied, n_passed: tokens by how they were found.
    """

    tokens: tuple[DraftToken, ...] = ()
    verification: Pass = field(default=FULL, compare=False)
    dropped: DraftToken | None = None
    draft_us: int = field(default=0, compare=False)
    catch_up_us: int = field(default=0, compare=False)
    is_offer: bool = field(default=False, compare=False)
    is_chain: bool = field(init=False, repr=False, compare=False)
    n_copied: int = field(init=False, repr=False, compare=False)
    n_passed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        n_copied = [each.origin for each in self.tokens].count(DraftOrigin.COPIED)
        object.__setattr__(self, "n_copied", n_copied)
        object.__setattr__(self, "n_passed", len(self.tokens) - n_copied)
        parents = [each.parent for each in self.tokens]
        if len(self.probs) not in (0, len(parents)):
            raise ArgumentError(
                f"a draft states a probability for each token or for none, got {len(self.probs)} "
                f"for {len(parents)} tokens"
            )
        is_chain = parents == list(range(-1, len(parents) - 1))
        object.__setattr__(self, "is_chain", is_chain)
        if is_chain:
            return
        for i, parent in enumerate(parents):
            if not -1 <= parent < i:
                raise ArgumentError(f"draft token {i} cannot follow draft token {parent}")
        if self.verification != FULL:
            raise ArgumentError("a draft with branches must be verified by a pass of all blocks")
        if any(each.distribution is not None for each in self.tokens):
            raise ArgumentError("a draft with branches holds no tokens drawn from a distribution")

    @classmethod
    def chain(
        cls,
        tokens: Iterable[int],
        probs: Sequence[float] | None = None,
        *,
        source: str = "",
        origin: DraftOrigin = DraftOrigin.PASSED,
    ) -> Self:
        """Return a draft without branches.

        probs: one for each token; None: the drafter states none.
        """
        try:
            pairs = zip(tokens, repeat(None) if probs is None else probs, strict=probs is not None)
            # a list, which is made in less time than a generator
            each = [
                DraftToken(token, p, i, source, None, origin)
                for i, (token, p) in enumerate(pairs, -1)
            ]
            return cls(tuple(each))
        except ValueError as error:
            raise ArgumentError("a draft needs one probability for each token") from error

    @classmethod
    def copied(
        cls, tokens: Iterable[int], probs: Sequence[float] | None = None, *, source: str = ""
    ) -> Self:
        """Return a chain of tokens that were looked up without a pass."""
        return cls.chain(tokens, probs, source=source, origin=DraftOrigin.COPIED)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple([each.token for each in self.tokens])

    @property
    def probs(self) -> tuple[float, ...]:
        """The probabilities of all tokens; () if the drafter states none."""
        return tuple([each.p for each in self.tokens if each.p is not None])

    @property
    def n_passed_or_dropped(self) -> int:
        """The number of tokens that draft passes found, the dropped one included."""
        return self.n_passed + (
            self.dropped is not None and self.dropped.origin is DraftOrigin.PASSED
        )

    @property
    def n_proposed(self) -> int:
        """The number of tokens, the dropped one included."""
        return len(self.tokens) + (self.dropped is not None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was drafted, not even a token that was dropped."""
        return not self.tokens and self.dropped is None

    @property
    def survival(self) -> tuple[float, ...]:
        """The probabilities that the first 1, 2, ... tokens of a chain are all accepted."""
        return tuple(accumulate(self.probs, mul))

    @property
    def n_expected(self) -> float:
        """The expected number of accepted tokens of a chain."""
        return float(sum(self.survival))

    @property
    def depths(self) -> Sequence[int]:
        """The number of draft tokens before each token on its branch."""
        if self.is_chain:
            return range(len(self.tokens))
        depths: list[int] = []
        for each in self.tokens:
            depths.append(0 if each.parent < 0 else depths[each.parent] + 1)
        return depths

    def first(self, n: int) -> Self:
        """Return the draft without the tokens after the first n."""
        if n >= len(self.tokens):
            return self
        return replace(self, tokens=self.tokens[:n], dropped=None)

    def with_source(self, source: str) -> Self:
        """Return the draft with this source for all tokens that have none."""
        if "" not in [each.source for each in self.tokens]:
            return self
        tokens = (t if t.source else t._replace(source=source) for t in self.tokens)
        return replace(self, tokens=tuple(tokens))

    def children(self, node: int) -> Sequence[int]:
        """Return the indices of the tokens that follow draft token ``node``; -1: the text."""
        after = range(node + 1, len(self.tokens))
        return after[:1] if self.is_chain else [i for i in after if self.tokens[i].parent == node]

    def child(self, node: int, token: int) -> int | None:
        """Return the index of this token among the tokens that follow draft token ``node``."""
        return next((i for i in self.children(node) if self.tokens[i].token == token), None)


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification pass.

    path: indices of the accepted draft tokens, each following the one before.
    next_token: the target's own token after them; None if the text ends with an accepted token.
    ended: whether the last of these tokens ends the text.
    """

    path: tuple[int, ...]
    next_token: int | None
    ended: bool

    @classmethod
    def of_chain(cls, n_accepted: int, next_token: int | None, ended: bool) -> Self:
        """Return the verdict that accepts the first n_accepted tokens of a chain."""
        return cls(tuple(range(n_accepted)), next_token, ended)

    @property
    def n_accepted(self) -> int:
        return len(self.path)


@dataclass(frozen=True, slots=True)
class Step:
    """One draft and its verdict.

    batch_load: of the verification pass.
    removal_us: time to remove rejected draft tokens from the sequence; 0 without any.
    tokens: the tokens that this step adds to the text, at least one.
    """

    draft: Draft
    verdict: Verdict
    verify_us: int
    batch_load: BatchLoad = SINGLE
    removal_us: int = 0
    tokens: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        tokens = [self.draft.tokens[i].token for i in self.verdict.path]
        if self.verdict.next_token is not None:
            tokens.append(self.verdict.next_token)
        object.__setattr__(self, "tokens", tuple(tokens))

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The drafter of each of these tokens; None for the target's own token."""
        accepted = tuple(self.draft.tokens[i].source or None for i in self.verdict.path)
        return accepted if self.verdict.next_token is None else (*accepted, None)

    @property
    def us(self) -> int:
        return self.draft.draft_us + self.draft.catch_up_us + self.verify_us + self.removal_us

    @property
    def is_plain(self) -> bool:
        """Whether its pass was one of plain decoding: all blocks, for the last token alone."""
        return not self.draft.tokens and self.draft.verification.enter is None

    @property
    def n_drafted(self) -> int:
        return len(self.draft.tokens)

    @property
    def n_accepted(self) -> int:
        return self.verdict.n_accepted

    @property
    def outcomes(self) -> list[tuple[DraftToken, bool]]:
        """The draft tokens that the target has decided on, oldest first, and whether it drew each.

        Of tokens with the same parent only the first counts: if another one was accepted, nothing
        is known of what was drafted after the first.
        """
        tokens = self.draft.tokens
        decided: list[tuple[DraftToken, bool]] = []
        node = -1
        for i in self.verdict.path:
            first = self.draft.children(node)[0]
            decided.append((tokens[first], i == first))
            if i != first:
                return decided
            node = i
        own = self.verdict.next_token
        if own is None:
            return decided
        if rejected := self.draft.children(node):
            decided.append((tokens[rejected[0]], False))
        elif self.draft.dropped is not None:
            decided.append((self.draft.dropped, self.draft.dropped.token == own))
        return decided
