"""Our threads, which replace an OpenMP runtime on Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from places import ROOT

HERE = ROOT / "tests/native"
NATIVE = ROOT / "pyselfspec/native"
THREADS = NATIVE / "threads"
TEAM, CALLS = THREADS / "team.cpp", THREADS / "openmp.cpp"


def compiler(names: Sequence[str]) -> str:
    found = [path for name in names if (path := shutil.which(name))]
    assert found, f"none of {', '.join(names)} is on PATH"
    return found[0]


CXX = compiler([os.environ.get("CXX", "c++"), "g++", "clang++"])
CC = compiler([os.environ.get("CC", "cc"), "gcc", "clang"])


def compiled(command: Sequence[str | Path]) -> None:
    subprocess.run([str(word) for word in command], check=True)


def run(program: Path, **variables: str) -> None:
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    said = subprocess.run(
        [program], capture_output=True, text=True, env=env | variables, timeout=300
    )
    assert (said.stdout, said.returncode) == ("as expected\n", 0), said.stderr


@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
def test_a_team_runs_in_step(kind: str, tmp_path: Path) -> None:
    """Sanitizers find races, and helpers that use freed memory."""
    program = tmp_path / "team"
    flags = ("-std=c++17", "-O1", "-g", "-Wall", "-Werror", "-pthread", f"-fsanitize={kind}")
    compiled([CXX, *flags, f"-I{THREADS}", HERE / "team.cpp", TEAM, "-o", program])
    run(program)


def test_the_number_of_threads_follows_the_machine(tmp_path: Path) -> None:
    """A pass takes fewer threads beside other programs, and else as many as asked for."""
    program, source = tmp_path / "thread_count", THREADS / "thread_count.cpp"
    flags = ("-std=c++17", "-O1", "-g", "-Wall", "-Werror", "-fsanitize=address,undefined")
    compiled([CXX, *flags, f"-I{NATIVE}", HERE / "thread_count.cpp", source, "-o", program])
    run(program)


@pytest.mark.parametrize(
    "settings", [{}, {"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT": "300000"}]
)
def test_directives_of_openmp(settings: dict[str, str], tmp_path: Path) -> None:
    program, parts = tmp_path / "openmp", []
    for source in (HERE / "openmp.c", TEAM, CALLS):
        parts.append(tmp_path / f"{source.stem}-{len(parts)}.o")
        is_c = source.suffix == ".c"
        command = [CC, "-fopenmp"] if is_c else [CXX, "-std=c++17"]
        include = f"-I{THREADS / 'include'}"
        compiled([*command, "-O2", "-Wall", include, "-c", source, "-o", parts[-1]])
    compiled([CXX, *parts, "-pthread", "-o", program])  # without -fopenmp: no runtime
    run(program, **settings)
