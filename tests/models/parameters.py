"""Parameters of tests: seeds in one case, and products of axes of which each run tries a part."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pytest

Test = Callable[..., None]


def for_seeds(n: int) -> Callable[[Test], Test]:
    """Call a test with the seeds from 0 to n - 1, in one case that prints the seed at work."""

    def decorator(test: Test) -> Test:
        @functools.wraps(test)
        def loop(**given: Any) -> None:
            for seed in range(n):
                print(f"seed {seed}")
                test(seed=seed, **given)

        signature = inspect.signature(test)
        others = [param for name, param in signature.parameters.items() if name != "seed"]
        loop.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return loop

    return decorator


def in_turn(first: Iterable[Any], *others: Iterable[Any]) -> set[tuple[Any, ...]]:
    """Return each value of the first axis with one of each other axis, which take turns.

    >>> sorted(in_turn("abc", [1, 2]))
    [('a', 1), ('b', 2), ('c', 1)]
    """
    return set(zip(first, *map(itertools.cycle, others), strict=False))


def crossed(names: str, *axes: Iterable[Any], always: Collection[tuple[Any, ...]]) -> Any:
    """Parametrize a test with a product: ``always`` for every run, the others for the nightly one.

    Every value of every axis must be among the former. An axis of several parameters has their
    names joined by commas, and tuples as values.
    """
    groups = [group.split(",") for group in names.split()]
    axes = tuple(map(tuple, axes))
    for i, axis in enumerate(axes):
        assert {case[i] for case in always} == {*axis}, f"values of axis {i} are missing"
    cases = [
        pytest.param(*flat(groups, case), marks=() if case in always else pytest.mark.nightly)
        for case in itertools.product(*axes)
    ]
    assert sum(not case.marks for case in cases) == len(always)
    return pytest.mark.parametrize(list(itertools.chain(*groups)), cases)


def flat(groups: list[list[str]], case: tuple[Any, ...]) -> Iterator[Any]:
    for names, value in zip(groups, case, strict=True):
        yield from value if len(names) > 1 else (value,)


def nightly_unless(names: Collection[str], every: Iterable[str]) -> list[Any]:
    """Return all values of an axis; values that are not named are for the nightly run."""
    values = list(every)
    assert {*names} <= {*values}
    return [v if v in names else pytest.param(v, marks=pytest.mark.nightly) for v in values]
