"""Distributions of a toy model, drafts for it, and the tokens that verification draws."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from drafts import draft_of

from pyselfspec import SamplingParams
from pyselfspec.speculate.types import Draft, Step
from pyselfspec.speculate.verify import verify

N_VOCAB = 5


Prefix = tuple[int, ...]


def p_law(prefix: Prefix) -> np.ndarray:
    """The toy model: five tokens, a law that depends on every token of the prefix."""
    weights = [3.0, 3.5, 4.0, 5.0, 6.0] if sum(prefix) % 2 else [1.0, 2.0, 3.0, 4.0, 6.0]
    shuffled = np.random.default_rng([11, *prefix]).permutation(weights)
    return shuffled / shuffled.sum()


LAWS = {
    prefix: p_law(prefix)
    for n in range(3)
    for prefix in map(tuple, np.ndindex(*[N_VOCAB] * n))
}  # fmt: skip


DRAFTS: dict[str, Callable[[Prefix], int]] = {
    "likeliest": lambda prefix: int(p_law(prefix).argmax()),
    "unlikeliest": lambda prefix: int(p_law(prefix).argmin()),
    "constant": lambda prefix: 2,
    "arbitrary": lambda prefix: (3 * sum(prefix) + len(prefix)) % N_VOCAB,
}


def chi_square_limit(n_free: int) -> float:
    """Return the value that chi-square of n_free degrees of freedom exceeds once in 10 000.

    The approximation of Wilson and Hilferty, at most 5 % too lenient.
    """
    z = 3.719016  # of the normal law
    return n_free * (1 - 2 / (9 * n_free) + z * (2 / (9 * n_free)) ** 0.5) ** 3


def assert_follows(texts: list[Prefix], laws: dict[Prefix, np.ndarray]) -> None:
    """Every position's tokens, given what came before, follow the distribution of that prefix."""
    for n in range(3):
        n_seen = Counter(text[:n] for text in texts)
        counts = Counter(text[: n + 1] for text in texts)
        statistic, n_free = 0.0, 0
        for prefix, n_texts in n_seen.items():
            observed = np.array([counts[*prefix, token] for token in range(N_VOCAB)])
            law = laws[prefix]
            assert not observed[law == 0].any()
            expected = n_texts * law[law > 0]
            statistic += float(((observed[law > 0] - expected) ** 2 / expected).sum())
            n_free += len(expected) - 1
        assert statistic < chi_square_limit(n_free), f"token {n + 1}: {statistic:.1f} of {n_free}"


def prefix_of(draft: Draft, row: int) -> Prefix:
    """The draft tokens up to the one of a row."""
    node, tokens = row - 1, []
    while node >= 0:
        tokens.append(draft.tokens[node].token)
        node = draft.tokens[node].parent
    return tuple(reversed(tokens))


def generate(propose, draw, accept=verify) -> Prefix:
    """Three tokens or more, drafted and verified until there are enough."""
    text: Prefix = ()
    while len(text) < 3:
        draft = propose(text)
        verdict = accept(draft, lambda row: draw((*text, *prefix_of(draft, row))), lambda _: False)  # noqa: B023
        text = (*text, *Step(draft, verdict, 0).tokens)
    return text


def chains(draft_next: Callable[[Prefix], int], n_draft: int) -> Callable[[Prefix], Draft]:
    """Drafts of n tokens, each made from those before it."""

    @cache
    def propose(text: Prefix) -> Draft:
        tokens: list[int] = []
        while len(tokens) < min(n_draft, 2 - len(text)):
            tokens.append(draft_next((*text, *tokens)))
        return Draft.chain(tokens)

    return propose


def trees(drafters: Sequence[Callable[[Prefix], int]]) -> Callable[[Prefix], Draft]:
    """Drafts of two levels that branch by drafter, where these do not agree."""

    @cache
    def propose(text: Prefix) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        level: list[tuple[int, Prefix]] = [(-1, ())]
        for _ in range(2 - len(text)):
            above, level = level, []
            for parent, prefix in above:
                for token in dict.fromkeys(draft((*text, *prefix)) for draft in drafters):
                    level.append((len(tokens), (*prefix, token)))
                    tokens.append(token)
                    parents.append(parent)
        return draft_of(tokens, parents=parents)

    return propose


TREES = {
    "two": trees([DRAFTS["likeliest"], DRAFTS["arbitrary"]]),
    "all": trees(list(DRAFTS.values())),
}


PARAMS = SamplingParams(temperature=0.7, top_k=4, top_p=1.0, min_p=0.4, seed=7)


def chain_law(p: np.ndarray) -> np.ndarray:
    """top_k, then min_p on the untempered probabilities, then temperature."""
    kept = (p >= np.sort(p)[-PARAMS.top_k]) & (p >= PARAMS.min_p * p.max())
    tempered = np.where(kept, p ** (1 / PARAMS.temperature), 0.0)
    return tempered / tempered.sum()


CHAIN_LAWS = {prefix: chain_law(law) for prefix, law in LAWS.items()}
