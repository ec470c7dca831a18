"""Workflow files call what exists, ask for no more rights than they use, and build all wheels."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Group
from packaging.requirements import Requirement

from pyselfspec.cli import main as program
from tools import cross_build, exports

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.y*ml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOOLS = ("tools/wheels.py", "tools/cross_build.py")
MADE = {"dist", "$RUNNER_TEMP", "python", "bare", "user"}  # by the steps themselves
MACHINES = {  # each wheel is made on
    "linux-x86_64": "ubuntu-latest",
    "linux-aarch64": "ubuntu-24.04-arm",
    "macos-arm64": "macos-latest",
    "windows-x86_64": "windows-latest",
}


def read(name: str) -> dict[str, Any]:
    workflow = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    workflow["on"] = workflow.pop(True)  # YAML 1.1 takes the key "on" for a truth value
    return dict(workflow)


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def commands(workflow: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the words of each line that is run, with those of the matrix."""
    for step in steps(workflow):
        for line in step.get("run", "").splitlines():
            if "${{" not in line and "$(" not in line:
                yield shlex.split(line)
    for job in workflow["jobs"].values():
        for each in job.get("strategy", {}).get("matrix", {}).get("include", ()):
            yield shlex.split(each["make"])


def every_command() -> list[list[str]]:
    return [words for file in FILES for words in commands(read(file.name))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_rights_are_the_least(file: Path) -> None:
    workflow = read(file.name)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert "secrets." not in file.read_text(encoding="utf-8")


def test_paths_exist() -> None:
    found = [
        word
        for words in every_command()
        for word in words
        if "/" in word and not word.startswith(("-", "$")) and word.split("/")[0] not in MADE
    ]
    assert {"tools/wheels.py", "tools/cross_build.py", ".ci/run", "tests/pure"} <= {*found}
    for word in found:
        assert (ROOT / word).exists(), word
    for pattern in read("wheels.yml")["on"]["pull_request"]["paths"]:
        assert [*ROOT.glob(pattern)], pattern


def test_a_change_to_what_wheels_are_made_of_builds_them() -> None:
    """Files that the tools run or compile, and the files that they import from this checkout."""
    patterns = read("wheels.yml")["on"]["pull_request"]["paths"]
    covered = {file.resolve() for pattern in patterns for file in ROOT.glob(pattern)}
    covered |= {file for folder in covered if folder.is_dir() for file in folder.rglob("*")}
    made_of = [FOLDER / "wheels.yml", ROOT / "pyproject.toml", *(ROOT / tool for tool in TOOLS)]
    for folder in ("patches", "pyselfspec/native", "tools/wheels", "vendor/toolchains"):
        made_of += [file for file in (ROOT / folder).rglob("*") if file.suffix != ".pyc"]
    made_of += [Path(str(module.__file__)) for module in (cross_build, exports)]
    made_of += [ROOT / "pyselfspec/runtime/processor.py", ROOT / "vendor/build_backend.py"]
    assert [str(file) for file in made_of if file.is_file() and file not in covered] == []


def test_tools_have_these_commands() -> None:
    called = [words[1:] for words in every_command() if words[:1] == ["python"]]
    called = [words for words in called if words[0] in TOOLS]
    assert len(called) == 4
    for words in called:
        command = [sys.executable, ROOT / words[0], *words[1:], "--help"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr  # 2 for an option that it does not have
        assert f" {words[1]} [OPTIONS]" in done.stdout


def test_commands_of_the_program_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    called = [words[1:] for words in every_command() if words[:1] == ["pyselfspec"]]
    assert len(called) == 3
    for words in called:
        if words[0] == "--version":
            continue
        group: Any = program
        while isinstance(group, Group):
            context = group.make_context(group.name, [], resilient_parsing=True)
            name = words.pop(0)
            group = group.get_command(context, name)
            assert group is not None, name
        group.make_context(name, words)


def test_what_the_tools_need_is_installed() -> None:
    [words] = [
        words
        for words in commands(read("wheels.yml"))
        if words[:4] == ["python", "-m", "pip", "install"] and "click" in words
    ]
    installed = {Requirement(word).name for word in words[4:]}
    extra = PROJECT["project"]["optional-dependencies"]["wheels"]
    assert {Requirement(each).name for each in extra} <= installed
    assert {"click", "ziglang"} <= installed


def test_the_compiler_is_one_version() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    wanted = [
        str(Requirement(each).specifier)
        for each in PROJECT["build-system"]["requires"]
        if Requirement(each).name == "ziglang"
    ]
    [word] = {w for words in every_command() for w in words if w.startswith("ziglang")}
    assert wanted == [word.removeprefix("ziglang")]
    assert word in script.split()


def test_each_wheel_is_made_on_its_own_kind_of_machine() -> None:
    build = read("wheels.yml")["jobs"]["build"]
    made = {each["platform"]: each["machine"] for each in build["strategy"]["matrix"]["include"]}
    assert made == MACHINES
    oldest = build["env"]["MACOSX_DEPLOYMENT_TARGET"]
    assert oldest.replace(".", "_") in cross_build.TARGETS["macos"].tag
    toolchain = (ROOT / "vendor" / "toolchains" / "macos.cmake").read_text(encoding="utf-8")
    assert f"macos.{build['env']['MACOSX_DEPLOYMENT_TARGET']}" in toolchain


def test_only_a_tag_publishes_and_only_after_all_were_tried() -> None:
    workflow = read("wheels.yml")
    publish = workflow["jobs"]["publish"]
    assert workflow["on"]["push"] == {"tags": ["v*"]}
    assert publish["needs"] == "build" and publish["environment"] == "pypi"
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert str(len(MACHINES)) in publish["steps"][1]["run"]
    names = [step["uses"].split("@")[0] for step in workflow["jobs"]["build"]["steps"][-1:]]
    assert names == ["actions/upload-artifact"]


def test_linux_runs_what_ci_runs() -> None:
    assert ["bash", ".ci/run"] in [*commands(read("tests.yml"))]


def test_every_night_all_tests_run_at_their_full_breadth() -> None:
    workflow = read("nightly.yml")
    assert {*workflow["on"]} == {"schedule", "workflow_dispatch"}
    assert ["bash", ".ci/run", "--full"] in [*commands(workflow)]
