"""A freed session leaves no memory allocated: a C++ program under LeakSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_types import TinyPath
from places import ROOT, llama_cpp

from pyselfspec.util.build import LIB_DIR

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="LeakSanitizer is Linux's")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler
    tree, out = llama_cpp(), tmp_path_factory.mktemp("leaks") / "session"
    include = (ROOT / "pyselfspec" / "native", tree / "include", tree / "ggml" / "include")
    command = [
        compiler,
        "-std=gnu++17",
        "-g",
        "-fsanitize=leak",
        *(f"-I{path}" for path in include),
    ]
    command += [ROOT / "tests" / "native" / "session.cpp", "-o", out]
    command += [f"-L{LIB_DIR}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{LIB_DIR}"]
    subprocess.run([*map(str, command)], check=True)
    return out


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen2moe"])
def test_a_life_leaves_nothing(arch: str, program: Path, tiny_path: TinyPath) -> None:
    model = tiny_path(arch, qtype="Q8_0")
    run = subprocess.run([program, model], capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("lived\n", 0), run.stderr


def test_what_is_left_is_found(program: Path, tiny_path: TinyPath) -> None:
    run = subprocess.run([program, tiny_path(), "forget"], capture_output=True, text=True)
    assert run.returncode != 0 and "selfspec_init" in run.stderr
