"""Bindings of llama-cpp-python: the copy in the package, and those that are installed beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_types import RunPython

from pyselfspec.util import build
from source import Project

ROOT = Path(__file__).resolve().parents[2]
PIN = Project(ROOT).pin
BINDINGS = build.LIB_DIR.parent / "bindings"


def install(folder: Path, version: str) -> Path:
    """Write a package with the bindings to the folder, as pip would install this version of it."""
    shutil.copytree(BINDINGS / "llama_cpp", folder / "llama_cpp")
    info = folder / f"llama_cpp_python-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n"
    (info / "METADATA").write_text(text)
    return folder


def test_the_copy_is_that_of_the_pin_and_brings_its_licence() -> None:
    assert build.UPSTREAM == PIN.requirement
    text = (BINDINGS / "llama_cpp" / "__init__.py").read_text()
    assert f'__version__ = "{PIN.version}"' in text
    assert "MIT License" in (BINDINGS / "LICENSE.md").read_text()
    assert not (BINDINGS / "llama_cpp" / "server").exists()


def test_the_copy_is_imported_where_nothing_is_installed(run_python: RunPython) -> None:
    """Also submodules, under the name that other programs import."""
    code = """
import importlib.machinery, sys

class Hidden(importlib.machinery.PathFinder):  # no llama_cpp in any folder of sys.path
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname == "llama_cpp":
            return None
        return super().find_spec(fullname, path, target)

at = sys.meta_path.index(importlib.machinery.PathFinder)
sys.meta_path[at] = Hidden
try:
    import llama_cpp
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("found without pyselfspec")
import pyselfspec
from pathlib import Path
import llama_cpp.llama_grammar
from llama_cpp import Llama
assert Path(llama_cpp.__file__).parent == Path(sys.argv[1])
assert issubclass(pyselfspec.Llama, Llama)
print(pyselfspec.Llama(pyselfspec.DEMO, n_ctx=64, verbose=False)("Once", max_tokens=2)["usage"])
"""
    run = run_python(code, BINDINGS / "llama_cpp")
    assert run.returncode == 0, run.stderr
    assert "'completion_tokens': 2" in run.stdout


LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import pyselfspec
from pyselfspec.errors import LibraryError
from pyselfspec.runtime.ffi import load
try:
    print(load.loaded().__file__)
except LibraryError as error:
    print(error)
"""


def test_an_installed_package_of_the_same_version_comes_first(
    tmp_path: Path, run_python: RunPython
) -> None:
    run = run_python(LOAD, install(tmp_path, PIN.version))
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()) == tmp_path / "llama_cpp" / "llama_cpp.py"


@pytest.mark.parametrize("version", ["0.3.1", "9.0"])
def test_another_version_is_refused(version: str, tmp_path: Path, run_python: RunPython) -> None:
    run = run_python(LOAD, install(tmp_path, version))
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == (
        f"llama-cpp-python {version} is installed, and this pyselfspec works with {PIN.version} "
        f"only; uninstall it (pyselfspec has its own copy), or install {PIN.requirement}"
    )
