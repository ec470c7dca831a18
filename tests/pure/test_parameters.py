"""The helpers for parameters of tests leave nothing out by accident."""

import pytest
from parameters import crossed, for_seeds, in_turn


def test_a_seed_that_fails_is_printed(capsys):
    @for_seeds(9)
    def check(seed):
        assert seed < 4

    with pytest.raises(AssertionError):
        check()
    assert capsys.readouterr().out.splitlines()[-1] == "seed 4"


def test_a_product_holds_every_case_and_marks_those_of_the_nightly_run():
    always = {(pair, way) for pair, way in in_turn([("a", 1), ("b", 2), ("c", 3)], "xy")}
    names, cases = crossed("one,two way", [("a", 1), ("b", 2), ("c", 3)], "xy", always=always).args
    assert names == ["one", "two", "way"]
    assert len(cases) == 6
    every_run = [case.values for case in cases if not case.marks]
    assert every_run == [("a", 1, "x"), ("b", 2, "y"), ("c", 3, "x")]
    assert {mark.name for case in cases for mark in case.marks} == {"nightly"}


@pytest.mark.parametrize("always", [{("a", 1)}, {("a", 1), ("b", 1)}, {("a", 1), ("b", 3)}])
def test_a_value_that_no_run_but_the_nightly_one_tries_is_an_error(always):
    with pytest.raises(AssertionError, match="values of axis"):
        crossed("name number", "ab", (1, 2), always=always)
