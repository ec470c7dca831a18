"""Draft the tokens that the full model itself found most likely after rejected tokens.

Jacobi decoding: Santilli et al., "Accelerating Transformer Inference for Translation via Parallel
Decoding", algorithm 1, https://arxiv.org/abs/2305.10427; Song et al., "Accelerating Feedforward
Computation via Parallel Nonlinear Equation Solving", https://arxiv.org/abs/2002.03629. All tokens
of a draft are chosen at once. The verification pass also gives the most likely token after each of
them; those after the first rejected token are the next draft, one position on. So every pass
verifies and refines. Tokens that no longer change are often accepted.

The first draft, and positions without refined tokens, repeat the last token. If combined with a
drafter that looks tokens up, its drafts are refined as well.

SmolLM2 135M on nine kinds of everyday tasks, 3 or 7 tokens drafted in every step: alone 1.04 tokens
per pass, 1.08 at temperature 0.7; combined with ngram 0.2 to 0.7 % more than ngram alone, 2 to 4 %
at temperature 0.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...speculate.drafters import LookupDrafter
from ...speculate.types import Draft, Verdict

N_PRIOR = 4.0  # weight of the prior acceptance rates, in outcomes
FORGET = 0.98  # weight of an outcome when the next one of its kind comes


class Kind(Enum):
    """Origin of a draft token, with its prior acceptance rate."""

    REPEATED = 0.1  # repeats the token before it
    CHANGED = 0.2  # most likely after the token before it, but another one was drafted
    SAME = 0.6  # most likely after the token before it, and drafted


class Candidate(NamedTuple):
    token: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Options:
    """The drafter has no options."""


def make(context: Context, options: Options) -> JacobiDrafter:
    return JacobiDrafter(context)


class JacobiDrafter(LookupDrafter):
    """Drafts refined tokens, then repetitions of the last one."""

    name = "jacobi"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._refined: list[Candidate] = []
        self._begin = 0  # length of the text that the first of them follows
        self._offered: list[Candidate] = []
        self._n_seen = 0  # tokens of the text
        self._right = {kind: N_PRIOR * kind.value for kind in Kind}
        self._all = dict.fromkeys(Kind, N_PRIOR)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._refined, self._offered = [], []
        self._begin = self._n_seen = len(history)

    def look_up(self, history: Sequence[int], n_max: int, chance_min: float = 0.0) -> Draft:
        self._learn(history)
        found = self._refined[len(history) - self._begin :][:n_max]
        last = found[-1].token if found else history[-1]
        if not self._context.model.is_eog(last):
            found += [Candidate(last, Kind.REPEATED)] * (n_max - len(found))
        self._offered = found
        return Draft.copied(
            [each.token for each in found],
            [self._right[each.kind] / self._all[each.kind] for each in found],
            source=self.name,
        )

    def _learn(self, history: Sequence[int]) -> None:
        """Learn from new tokens of the text, up to the first that was drafted wrong."""
        came = history[self._n_seen :]
        self._n_seen = len(history)
        for (drafted, kind), token in zip(self._offered, came, strict=False):
            self._right[kind] = FORGET * self._right[kind] + (drafted == token)
            self._all[kind] = FORGET * self._all[kind] + 1
            if drafted != token:
                break

    def on_verified(self, draft: Draft, verdict: Verdict, best: Callable[[int], int]) -> None:
        n = verdict.n_accepted
        self._begin = self._n_seen + n + 1
        self._refined = []
        for row in range(n + 1, len(draft.tokens) + 1) if draft.is_chain else ():
            token = best(row)
            same = draft.token_ids[row : row + 1] == (token,)
            self._refined.append(Candidate(token, Kind.SAME if same else Kind.CHANGED))
            if self._context.model.is_eog(token):
                break
