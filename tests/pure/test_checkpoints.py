"""Which checkpoints are kept, and which one a text goes back to."""

import numpy as np
import pytest

from pyselfspec.runtime.checkpoints import Checkpoint, Checkpoints


def checkpoint(n_tokens: int, n_bytes: int = 1) -> Checkpoint:
    return Checkpoint(n_tokens, np.zeros(n_bytes, np.uint8))


def held(kept: Checkpoints, seq_id: int, n: int = 1000) -> int | None:
    found = kept.longest(seq_id, n)
    return None if found is None else found.n_tokens


def test_the_longest_checkpoint_that_fits_is_found() -> None:
    kept = Checkpoints()
    for n in (5, 20, 10):
        kept.add(0, checkpoint(n))
    kept.add(1, checkpoint(12))
    assert [held(kept, 0, n) for n in (4, 5, 9, 10, 19, 99)] == [None, 5, 5, 10, 10, 20]
    assert held(kept, 2) is None


def test_the_oldest_make_room_whatever_their_sequence() -> None:
    kept = Checkpoints(n_max=3)
    for seq_id, n in ((0, 5), (1, 5), (0, 6), (0, 7)):
        kept.add(seq_id, checkpoint(n))
    assert len(kept) == 3 and held(kept, 0, 5) is None and held(kept, 1) == 5


def test_a_new_checkpoint_of_as_many_tokens_counts_as_the_youngest() -> None:
    kept = Checkpoints(n_max=2)
    for n in (5, 6, 5, 7):
        kept.add(0, checkpoint(n))
    assert held(kept, 0, 5) == 5 and held(kept, 0, 6) == 5


@pytest.mark.parametrize(("n_bytes", "expected"), [(40, 2), (60, 1), (500, 1)])
def test_bytes_are_bounded_and_one_always_fits(n_bytes: int, expected: int) -> None:
    kept = Checkpoints(max_bytes=100)
    for n in range(1, 5):
        kept.add(0, checkpoint(n, n_bytes))
    assert len(kept) == expected and kept.n_bytes == expected * n_bytes and held(kept, 0) == 4


def test_a_shorter_sequence_loses_the_longer_checkpoints() -> None:
    kept = Checkpoints()
    for n in (5, 10):
        kept.add(0, checkpoint(n))
        kept.add(1, checkpoint(n))
    kept.truncate(0, 9)
    assert held(kept, 0) == 5 and held(kept, 1) == 10


def test_a_fork_has_its_own_copies() -> None:
    kept = Checkpoints()
    kept.add(1, checkpoint(99))
    kept.add(0, checkpoint(5))
    kept.copy(0, 1)
    kept.truncate(0, 0)
    assert held(kept, 0) is None and held(kept, 1) == 5


def test_only_the_given_checkpoint_is_removed() -> None:
    kept = Checkpoints()
    first, second = checkpoint(5), checkpoint(5)
    kept.add(0, first)
    kept.add(0, second)
    kept.remove(0, first)
    assert held(kept, 0) == 5
    kept.remove(0, second)
    assert held(kept, 0) is None
