"""The check for machines with a GPU: what it runs, what it reports, what it leaves out."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_line import strict_json

from tools.gpu import check as gpu_check
from tools.gpu import cuda_build, cuda_toolkit
from tools.gpu import pack as gpu_pack

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def runner(tmp_path: Path) -> gpu_check.Runner:
    return gpu_check.Runner(tmp_path, threads=1)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# running


def test_the_end_of_a_failure_is_reported(runner: gpu_check.Runner) -> None:
    went = runner.run("bad", python("print('one'); print('two'); raise SystemExit('three')"))
    assert went["status"] == "failed"
    assert went["log"][1:] == ["one", "two", "three"]  # behind the command


def test_what_takes_too_long_is_cut_off_with_its_children(
    runner: gpu_check.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "LEFT_OUT_S", 0.0)
    fifo = runner.folder / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    child = f"file = open({str(fifo)!r}, 'w'); print('here', file=file, flush=True); input()"
    code = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {child!r}], stdin=subprocess.PIPE).wait()"""
    runner.end = time.monotonic() + 3
    assert runner.run("endless", python(code))["status"] == "cut off"
    said = []
    while not said or said[-1]:  # to the end, which comes when nobody is left to write
        assert select.select([reader], [], [], 60)[0], "the child lives on"
        said.append(os.read(reader, 100))
    os.close(reader)
    assert said[0] == b"here\n"


def test_nothing_starts_without_time(runner: gpu_check.Runner) -> None:
    runner.end = time.monotonic() + gpu_check.LEFT_OUT_S / 2
    assert runner.run("late", python("raise SystemExit(1)")) == {"status": "left out"}


def test_counts_of_a_test_run(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.fixture\ndef broken(): 1 / 0\ndef test_c(broken): pass\n"
        "def test_d(): pytest.skip('no')\n"
    )
    junit = tmp_path / "junit.xml"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    subprocess.run([sys.executable, *command, str(tmp_path)], capture_output=True, cwd=tmp_path)
    assert gpu_check.counts(junit) == {
        "tests": 4,
        "failures": 1,
        "errors": 1,
        "skipped": 1,
        "failed": ["test_b", "test_c"],
    }


# the whole


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing in it but what tests put there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, output: str) -> Path:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nprint({output!r})\n")
    path.chmod(0o755)
    return path


def check(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(gpu_check.main, ["--folder", str(folder), *options])


@dataclass
class Commands:
    """Records the commands in order instead of running them, and fails the chosen ones."""

    names: list[str] = field(default_factory=list)
    words: dict[str, list[str]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    known = Commands()

    def run(self: Any, name: str, command: Any, **env: str) -> gpu_check.Report:
        known.names.append(name)
        known.words[name] = command
        return {"status": "failed" if name in known.failing else "ok", "s": 0.0}

    monkeypatch.setattr(gpu_check.Runner, "run", run)
    return known


def test_without_a_gpu_everything_is_done_on_the_cpu(
    tmp_path: Path, programs: Path, commands: Commands
) -> None:
    outcome = check(tmp_path)
    assert outcome.exit_code == 0, outcome.output
    report = strict_json(outcome.stdout)
    assert report == strict_json((tmp_path / "result.json").read_text())
    assert report["device"] is None and report["cpu"] is True
    assert report["stages"]["build"]["cmake_args"] == ""
    assert {"make-random-q4_k_m", "make-random-f16", "build", "make-wide-q4_k_m"} <= set(
        commands.names
    )
    for stage in ("divergence", "speed", "switch", "overhead"):
        assert f"{stage} random-q4_k_m" in report["stages"]
    assert all(f"tests {name}" in report["stages"] for name in gpu_check.TESTS)
    assert {
        "build",
        "machine",
        "system",
        "gpus",
    } <= report.keys()  # what the library says of itself


def test_a_build_that_fails_ends_it(tmp_path: Path, programs: Path, commands: Commands) -> None:
    commands.failing.add("build")
    outcome = check(tmp_path)
    assert outcome.exit_code == 1
    assert list(strict_json(outcome.stdout)["stages"]) == ["build"]


def test_the_clock_may_end_measurements_but_not_tests() -> None:
    stages = {"tests kv": {"status": "cut off"}, "speed x": {"status": "cut off"}}
    assert gpu_check.failed(stages) == ["tests kv"]
    stages["speed x"]["status"] = "failed"
    assert gpu_check.failed(stages) == ["speed x", "tests kv"]
    assert gpu_check.failed({"speed x": {"status": "left out"}}) == []


def test_with_a_gpu_the_build_is_for_it(tmp_path: Path, programs: Path, commands: Commands) -> None:
    program(programs, "nvidia-smi", "NVIDIA H200, 580.1, 143771 MiB, 9.0")
    nvcc = program(programs, "nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    cublas = tmp_path / "nvidia" / "cu13"
    (cublas / "include").mkdir(parents=True)
    (cublas / "include" / "cublas_v2.h").touch()
    sanitizer = program(programs, "compute-sanitizer", "")
    report = strict_json(check(tmp_path, "--cublas", str(cublas), "--arch", "90").stdout)
    assert report["device"]["name"] == "NVIDIA H200" and report["cpu"] is False
    arguments = report["stages"]["build"]["cmake_args"].split()
    assert arguments == [
        "-DGGML_CUDA=ON",
        f"-DCMAKE_CUDA_COMPILER={nvcc}",
        f"-DPYSELFSPEC_CUBLAS_DIR={cublas}",
        "-DCMAKE_CUDA_ARCHITECTURES=90",
    ]
    assert commands.names[-1] == "sanitized-gpu"
    assert commands.words["sanitized-gpu"][0] == str(sanitizer)
    assert list(report["stages"])[-1] == "sanitized gpu"


def test_vulkan_without_a_card_runs_in_software(
    tmp_path: Path, programs: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "")
    monkeypatch.setattr(gpu_check, "NODES", tmp_path / "none")
    report = strict_json(check(tmp_path, "--backend", "vulkan").stdout)
    assert report["device"] == {"name": "software"} and report["cpu"] is False
    assert report["stages"]["build"]["cmake_args"] == "-DGGML_VULKAN=ON"
    assert os.environ["GGML_VK_VISIBLE_DEVICES"] == "0"


def test_vulkan_with_a_card_of_any_maker(
    tmp_path: Path, programs: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vulkan chooses among the cards, and large models are measured."""
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "")
    monkeypatch.setattr(gpu_check, "NODES", tmp_path)
    (tmp_path / "renderD128").touch()
    report = strict_json(check(tmp_path, "--backend", "vulkan").stdout)
    assert report["device"] == {"name": "renderD128"} and report["cpu"] is False
    assert os.environ["GGML_VK_VISIBLE_DEVICES"] == ""
    assert "8B" in commands.words["make-random-q4_k_m"]


def test_all_test_files_exist() -> None:
    rooms = gpu_check.TESTS.items()
    assert all((ROOT / "tests" / room / f"test_{name}.py").exists() for name, room in rooms)


# the toolkit


@pytest.mark.parametrize(
    ("release", "wheel", "inside"),
    [("12.8", "nvidia-cublas-cu12", "cublas"), ("13.0", "nvidia-cublas ", "cu13")],
)
def test_cublas_comes_from_the_wheel_of_the_same_release(
    release: str, wheel: str, inside: str, tmp_path: Path, programs: Path
) -> None:
    program(programs, "nvcc", f"release {release}, V{release}.1")
    with pytest.raises(cuda_toolkit.ToolkitError, match=f"no {wheel}.*pip install {wheel.strip()}"):
        cuda_toolkit.find(places=[str(tmp_path)])
    header = tmp_path / "nvidia" / inside / "include" / "cublas_v2.h"
    header.parent.mkdir(parents=True)
    header.touch()
    found = cuda_toolkit.find(places=[str(tmp_path)])
    assert (found.version, found.cublas) == (release, header.parents[1])


def test_the_toolkits_own_cublas_goes_first(tmp_path: Path, programs: Path) -> None:
    program(programs, "nvcc", "release 12.4, V12.4.1")
    (programs.parent / "include").mkdir()
    (programs.parent / "include" / "cublas_v2.h").touch()
    assert cuda_toolkit.find(places=[]).cublas is None


def test_without_a_compiler(programs: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cuda_toolkit, "USUAL_PLACE", str(tmp_path))
    outcome = CliRunner().invoke(cuda_build.main, [str(tmp_path / "build")])
    assert outcome.exit_code == 1
    assert outcome.output.startswith("Error: there is no nvcc")
    assert not (tmp_path / "build").exists()


# the pack


def test_the_pack_has_what_the_package_names() -> None:
    needed = gpu_pack.requirements(ROOT)
    assert "pip" not in needed and "pytest" in needed
    assert {"scikit-build-core>=1.0", "patch-ng", "numpy", "click", "gguf"} <= set(needed)


PYTHON = """#!/bin/sh
case "$*" in
-m\\ venv*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
-m\\ pip*) exit 1 ;;
-c*) exec {python} "$@" ;;
esac
"""


def test_without_a_pack_and_a_network_the_script_says_what_to_do(tmp_path: Path) -> None:
    script = ROOT / "tools" / "gpu" / "first_hour.sh"
    python = tmp_path / "python3"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    places = {"GPU_PACK": str(tmp_path / "pack"), "GPU_CHECK": str(tmp_path / "check")}
    env = os.environ | places | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "run python tools/gpu/pack.py where" in done.stderr
    asked = (tmp_path / "check" / "requirements.txt").read_text().splitlines()
    assert {*gpu_pack.requirements(ROOT)} <= {*asked}
    assert done.stdout == ""
