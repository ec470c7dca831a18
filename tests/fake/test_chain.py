"""A draft that grows by picks: how many of them are computed, which are verified, and that this
does not depend on what was drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from pyselfspec.runtime.pass_result import Distribution
from pyselfspec.speculate.drafters._chain import extended
from pyselfspec.speculate.limits import DraftLimit, Pick
from pyselfspec.speculate.types import Draft, DraftToken
from pyselfspec.testing.fake_model import EOG, FakeModel

SURE = np.array([0.05, 0.05, 0.9])  # of three tokens, the first of which ends the text
UNSURE = np.array([0.3, 0.3, 0.4])


def drawn(token: int, q: Distribution) -> Pick:
    return Pick(token, float(q.max()), int(q.argmax()), q)


def likeliest(token: int, p: float) -> Pick:
    return Pick(token, p, token)


def grown(
    picks: Sequence[Pick], limit: DraftLimit, start: Draft | None = None
) -> tuple[Draft, int]:
    """Return the draft, and how many picks it has looked at."""
    left = iter(picks)

    def computed() -> Iterator[Pick]:
        yield from left

    draft = extended(start or Draft(), computed(), limit, FakeModel().is_eog, "a drafter")
    return draft, len(picks) - len(list(left))


def test_no_more_picks_are_computed_than_the_limit_takes() -> None:
    draft, n = grown([likeliest(i, 0.9) for i in range(1, 9)], DraftLimit(3))
    assert (draft.token_ids, draft.probs, draft.dropped) == ((1, 2, 3), (0.9, 0.9, 0.9), None)
    assert n == 3


def test_picks_that_end_early_end_the_draft() -> None:
    draft, n = grown([likeliest(4, 0.9)], DraftLimit(3))
    assert (draft.token_ids, draft.dropped, n) == ((4,), None, 1)


def test_the_start_is_kept_and_does_not_count() -> None:
    """Neither against n_max, nor with its probabilities."""
    start = Draft.copied((7, 8), (0.1, 0.1))
    draft, _ = grown([likeliest(1, 0.9), drawn(2, SURE), likeliest(3, 0.9)], DraftLimit(2), start)
    assert draft.tokens == (
        *start.tokens,
        DraftToken(1, 0.9, 1, "a drafter"),
        DraftToken(2, 0.9, 2, "a drafter"),
    )
    assert [each.distribution is SURE for each in draft.tokens] == [False, False, False, True]


@pytest.mark.parametrize("token", [1, 2])
def test_a_drawn_token_is_dropped_by_the_likeliest_one(token: int) -> None:
    """The drawn token has no influence on that."""
    draft, n = grown([drawn(token, SURE), drawn(token, UNSURE)], DraftLimit(4, p_min=0.5))
    assert draft.token_ids == (token,)
    assert draft.dropped == DraftToken(2, 0.4, 0, "a drafter")
    assert n == 2


def test_the_end_of_the_text_is_verified_if_it_was_drawn() -> None:
    """No token comes after it."""
    draft, n = grown([drawn(1, SURE), drawn(EOG, SURE), drawn(2, SURE)], DraftLimit(4))
    assert (draft.token_ids, draft.dropped, n) == ((1, EOG), None, 2)
    draft, n = grown([likeliest(1, 0.9), likeliest(EOG, 0.8), likeliest(2, 0.9)], DraftLimit(4))
    assert (draft.token_ids, draft.dropped, n) == ((1,), DraftToken(EOG, 0.8, 0, "a drafter"), 2)


def test_an_end_that_was_drawn_is_dropped_like_any_other_token() -> None:
    draft, _ = grown([drawn(EOG, UNSURE)], DraftLimit(4, p_min=0.5))
    assert (draft.token_ids, draft.dropped) == ((), DraftToken(2, 0.4, -1, "a drafter"))
