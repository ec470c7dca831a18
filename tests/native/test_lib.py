"""Loading the library, its log, and its errors, each in a fresh interpreter."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import pyselfspec
from pyselfspec import BUILD_ID
from pyselfspec.errors import DecodeError, ModelFileError, out_of_memory
from pyselfspec.runtime.ffi import load
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.util import build

BUILD = build._build()  # the module that the build wrote; it is not in the source folder


@pytest.fixture(scope="module")
def other_lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the library into another folder, so that it counts as foreign."""
    return Path(shutil.copytree(build.LIB_DIR, tmp_path_factory.mktemp("lib") / "lib"))


def error_of(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 1, f"exit status {run.returncode}: {run.stdout}{run.stderr}"
    return run.stderr.strip().splitlines()[-1].removeprefix("pyselfspec.errors.")


def test_build_id() -> None:
    assert BUILD.BUILD_ID == BUILD_ID


def test_stock_bindings_use_our_library() -> None:
    assert Path(llama._lib._name).resolve().parent == build.LIB_DIR.resolve()
    assert llama._lib.selfspec_build_id is not None


# What loads the library: importing the package alone does not.
USE = "pyselfspec.runtime.ffi.load.llama.llama_max_devices()"


@pytest.mark.parametrize("before", [None, "", "/elsewhere"])
def test_environment_names_our_library_unless_it_names_another(
    before: str | None, run_python: Any
) -> None:
    code = (
        "import os, pyselfspec.runtime.ffi.load\n"
        "show = lambda: print(repr(os.environ.get('LLAMA_CPP_LIB_PATH')))\n"
        f"show(); {USE}; show()"
    )
    env = {} if before is None else {"LLAMA_CPP_LIB_PATH": before}
    run = run_python(code, **env)
    want = str(build.LIB_DIR) if before is None else before
    assert run.stdout.splitlines() == [repr(want)] * 2, run.stderr


def test_importing_loads_no_library(run_python: Any) -> None:
    code = (
        "import sys, pyselfspec\n"
        "from pyselfspec import *\n"
        "import pyselfspec.runtime.ffi.load as load\n"
        "loaded = [line for line in open('/proc/self/maps') if 'libllama' in line]\n"
        "print(loaded, 'llama_cpp' in sys.modules)\n"
    )
    run = run_python(code)
    assert run.stdout == "[] False\n", run.stderr


def test_another_library_was_first(other_lib: Path, run_python: Any) -> None:
    run = run_python(
        f"import llama_cpp, pyselfspec.runtime.ffi.load; {USE}", LLAMA_CPP_LIB_PATH=str(other_lib)
    )
    error = error_of(run)
    assert error.startswith("LibraryError: ") and error.endswith("import pyselfspec first")
    assert str(other_lib) in error


def test_another_llama_cpp_was_loaded(other_lib: Path, run_python: Any) -> None:
    """A package with bindings of its own loaded it: ours would be linked with its libraries."""
    [base] = other_lib.glob("libggml-base.*")
    code = f"import ctypes; ctypes.CDLL({str(base)!r}); import pyselfspec.runtime.ffi.load; {USE}"
    error = error_of(run_python(code))
    assert error.startswith(f"LibraryError: another llama.cpp is in this process ({base}); use ")


def test_llama_cpp_afterwards_gets_our_library(run_python: Any) -> None:
    code = "import pyselfspec, llama_cpp; print(llama_cpp.llama_cpp._lib._name)"
    run = run_python(code)
    assert Path(run.stdout.strip()).resolve().parent == build.LIB_DIR.resolve(), run.stderr


def test_build_id_mismatch(run_python: Any) -> None:
    run = run_python(
        "import sys, importlib.util as u\n"
        f"spec = u.spec_from_file_location('pyselfspec._build', {BUILD.__file__!r})\n"
        "build = u.module_from_spec(spec); spec.loader.exec_module(build)\n"
        "build.BUILD_ID = '0.0.0-other'\n"
        "sys.modules['pyselfspec._build'] = build\n"
        f"import pyselfspec.runtime.ffi.load; {USE}"
    )
    error = error_of(run)
    assert error.startswith("LibraryError: ")
    assert f"build {BUILD_ID}, this package needs 0.0.0-other" in error
    assert "install pyselfspec again" in error


def test_missing_library(tmp_path: Path, run_python: Any) -> None:
    """A package whose lib folder is empty, beside the real one."""
    package = tmp_path / "pyselfspec"
    source = Path(pyselfspec.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    shutil.copy(BUILD.__file__, package)  # which lies elsewhere where an install is editable
    (package / "lib").mkdir()
    run = run_python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "finders = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
        "sys.meta_path[:] = finders\n"
        f"import pyselfspec.runtime.ffi.load; {USE}"
    )
    error = error_of(run)
    assert error.startswith("LibraryError: ") and str(package / "lib") in error


LOAD = """
import sys
from pyselfspec import *
from pyselfspec.runtime.ffi.load import set_verbose
set_verbose("-v" in sys.argv)
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1) as context:
    context.decode([5], mask=LayerMask.skipping(4, attn=[1]))
"""


def test_silent_by_default(tiny_path: Any, run_python: Any) -> None:
    run = run_python(LOAD, tiny_path())
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_log_when_verbose(tiny_path: Any, run_python: Any) -> None:
    run = run_python(LOAD, tiny_path(), "-v")
    assert (run.returncode, run.stdout) == (0, "")
    assert re.search(r"n_ctx +=", run.stderr)
    assert "llama_model_loader" in run.stderr


def log(level: int, text: bytes) -> None:
    """Log as llama.cpp does."""
    llama._lib.ggml_log_internal(level, b"%s", text)


def test_first_error_of_the_log() -> None:
    for logged, want in (
        ("llama_model_load: error loading model: no such tensor\n", "no such tensor"),
        ("f: g: something broke\n", "something broke"),
    ):
        load.clear_log_error()
        assert not load.log_error()
        log(2, b"f: a warning is no error\n")
        log(4, b"\n")
        assert not load.log_error()
        log(4, logged.encode())
        log(4, b"f: what follows from it\n")
        assert load.log_error().endswith(want)
        assert str(load.failure(DecodeError, "this")) == f"this: {load.log_error()}"
    load.clear_log_error()
    assert str(load.failure(DecodeError, "this")) == "this: it gives no reason; see its log (-v)"


def test_an_abort_of_ggml_ends_the_process_with_one_line(run_python: Any) -> None:
    run = run_python(
        "from pyselfspec.runtime.ffi.load import llama\n"
        "llama.llama_max_devices()\n"
        "llama._lib.ggml_abort(b'ops.cpp', 7, b'GGML_ASSERT(%s) failed', b'n > 0')"
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "Error: llama.cpp cannot go on: ops.cpp:7: GGML_ASSERT(n > 0) failed\n"


def test_a_lack_of_memory_has_an_error_of_its_own() -> None:
    load.clear_log_error()
    log(4, b"llama_init_from_model: failed to initialize the context: std::bad_alloc\n")
    assert str(load.failure(ModelFileError, "this")) == str(out_of_memory())
    load.clear_log_error()


CTRL_C = """
import signal, sys, time
from pyselfspec import Model
Model(sys.argv[1]).close()
before = time.perf_counter()
Model(sys.argv[1]).close()
duration = time.perf_counter() - before
signal.signal(signal.SIGALRM, signal.default_int_handler)
raised = 0
for i in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, duration * (i + 1) / 100)
        Model(sys.argv[1])
        while True:
            pass
    except KeyboardInterrupt:
        raised += 1
print(raised)
"""


def test_ctrl_c_while_a_model_loads(tiny_path: Any, run_python: Any) -> None:
    """It is never lost, wherever in the native code it arrives."""
    run = run_python(CTRL_C, tiny_path())
    assert (run.stdout, run.stderr) == ("100\n", "")


FIRST_USE = """
import sys, threading
from pyselfspec import Model
start, tokens = threading.Barrier(8), []
def work():
    start.wait()
    with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1) as context:
        context.decode([5])
        tokens.append(context.argmax(0))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(tokens), len(set(tokens)))
"""


def test_many_threads_are_first(tiny_path: Any, run_python: Any) -> None:
    """The library is loaded once."""
    run = run_python(FIRST_USE, tiny_path())
    assert run.stdout == "8 1\n", run.stderr
