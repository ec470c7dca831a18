"""The checks of a decode's arguments, in C++ and without a model, under AddressSanitizer and
UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from places import ROOT

NATIVE = ROOT / "pyselfspec" / "native"


def test_each_check_refuses_what_it_should(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler
    program = tmp_path / "arguments"
    sources = (ROOT / "tests" / "native" / "arguments.cpp", NATIVE / "session" / "arguments.cpp")
    checked = (
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-g",
        "-Wall",
        "-Werror",
    )
    command = [compiler, "-std=c++17", *checked, f"-I{NATIVE}", *sources, "-o", program]
    subprocess.run([*map(str, command)], check=True)
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    run = subprocess.run([program], capture_output=True, text=True, env=env)
    assert (run.stdout, run.returncode) == ("as expected\n", 0), run.stderr
