"""Drafts for tests, from sequences of equal length."""

from collections.abc import Sequence
from typing import Any

from pyselfspec.speculate.types import Draft, DraftOrigin, DraftToken, Step


def draft_of(
    tokens: Sequence[int] = (),
    probs: Sequence[float | None] | None = None,
    *,
    parents: Sequence[int] | None = None,
    sources: Sequence[str] = (),
    n_copied: int = 0,
    dropped: tuple[int, float | None] | None = None,
    **options: Any,
) -> Draft:
    """Return a draft whose first n_copied tokens are copied."""
    n = len(tokens)
    kinds = [DraftOrigin.COPIED] * n_copied + [DraftOrigin.PASSED] * (n - n_copied)
    given = zip(
        tokens,
        probs if probs is not None else [None] * n,
        parents if parents is not None else range(-1, n - 1),
        sources or [""] * n,
        [None] * n,
        kinds,
        strict=True,
    )
    last = None if dropped is None else DraftToken(*dropped, parent=n - 1)
    return Draft(tuple(DraftToken(*each) for each in given), dropped=last, **options)


def parents_of(draft: Draft) -> tuple[int, ...]:
    return tuple(each.parent for each in draft.tokens)


def sources_of(draft: Draft) -> tuple[str, ...]:
    return tuple(each.source for each in draft.tokens)


def outcomes_of(step: Step) -> list[tuple[float | None, bool]]:
    """Return the probability of each token that was decided on, and whether it was right."""
    return [(each.p, right) for each, right in step.outcomes]
