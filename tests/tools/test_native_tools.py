"""The tools for the native part parse the output of the programs that they run."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tools import sanitize, upstream_tests


def program(folder: Path, name: str, script: str) -> None:
    path = folder / f"test-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# script, passed, failed, good
RUNS = {
    "all pass": ('printf "a \\033[32mPASS\\033[0m  PASS\\n"', 2, 0, True),
    "one fails": ('echo "a PASS FAIL"; exit 1', 1, 1, False),
    "fails and says 0": ('echo "a PASS FAIL"', 1, 1, False),
    "dies": ('echo "a PASS"; kill -ABRT $$', 1, 0, False),
    "says nothing": ("true", 0, 0, False),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_a_program_of_upstream_says(name: str, tmp_path: Path) -> None:
    script, n_passed, n_failed, good = RUNS[name]
    program(tmp_path, "save-load-state", script)
    outcome = upstream_tests.run("save-load-state", tmp_path, tmp_path)
    assert (outcome.n_passed, outcome.n_failed, outcome.is_good) == (n_passed, n_failed, good)
    assert "\033" not in (tmp_path / "test-save-load-state.log").read_text()


SAYS = {
    "backend-ops": ("  MUL_MAT(n=1): OK\n  MUL_MAT(n=2): FAIL\n  12/13 tests passed\n", 12, 1),
    "batch-alloc": ("tests      : 40\nassertions : 300\nfailures   : 2\n", 300, 2),
    "llama-archs": ("| llama|CPU|Dense|  OK (0.00e+00)|  OK|\n| clip|CPU|Dense|SKIP|\n", 1, 0),
    "thread-safety": ("Creating context 1/4 for model 1/2\nCreating context 2/4\n", 2, 0),
}


@pytest.mark.parametrize("name", SAYS)
def test_counts(name: str) -> None:
    text, n_passed, n_failed = SAYS[name]
    test = upstream_tests.TESTS[name]
    assert upstream_tests.count(test.passed, text) == n_passed
    assert upstream_tests.count(test.failed, text) == n_failed


def test_toy_models_go_where_the_arguments_say(tmp_path: Path) -> None:
    program(tmp_path, "save-load-state", 'test "$2" = "$(dirname "$0")/models" && echo PASS')
    assert upstream_tests.run("save-load-state", tmp_path, tmp_path / "models").is_good


def test_a_sanitizer_that_the_compiler_lacks() -> None:
    assert Path(sanitize.runtime("libasan.so")).exists()
    with pytest.raises(click.ClickException, match=r"brings no libnone.so"):
        sanitize.runtime("libnone.so")


def test_the_quick_run_under_sanitizers_has_each_group_of_functions() -> None:
    folder = sanitize.ROOT / "tests" / "native"
    marked = {
        name
        for name in sanitize.NATIVE
        if "@pytest.mark.sanitized" in (folder / f"test_{name}.py").read_text()
    }
    assert marked >= {"masks", "kv", "rollback", "sampling", "threads", "head", "short_list"}
    assert marked >= {"failed_passes", "adapters", "context", "interleaved", "odd_models"}
