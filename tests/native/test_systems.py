"""The package on a system that lacks what POSIX has: modules, signals, functions of libraries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyselfspec.cli import _signals
from pyselfspec.cli._chat import typed_ahead
from pyselfspec.convert import subprogram
from pyselfspec.errors import LibraryError
from pyselfspec.runtime import processor
from pyselfspec.runtime.ffi import load
from pyselfspec.util import build, files
from pyselfspec.util.files import LOCK, UNFINISHED, YOUNG_S, replacing

# Packages of others have branches of their own, so they are imported while everything exists.
EVERY_MODULE = """
import importlib, os, pkgutil, signal, sys
import pyselfspec

def names():
    return sorted(m.name for m in pkgutil.walk_packages(pyselfspec.__path__, "pyselfspec.")
                  if not m.name.startswith(("pyselfspec.converter", "pyselfspec.bindings"))
                  and not m.name.endswith("__main__"))

def imported():
    failed = {}
    for name in names():
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = repr(error)
    return failed

before = imported()
for name in [n for n in sys.modules if n == "pyselfspec" or n.startswith("pyselfspec.")]:
    if name != "pyselfspec":
        del sys.modules[name]
for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "sched_getaffinity", "getloadavg", "sysconf", "getuid",
             "geteuid", "getpgrp", "tcgetpgrp", "killpg", "setsid", "uname"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGCONT", "SIGKILL", "SIGPIPE", "SIGUSR1", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
after = imported()
print(len(names()), sorted(set(after.items()) - set(before.items())))
print(pyselfspec.util.machine.usable_cores() > 0, pyselfspec.util.memory.address_space())
"""


def test_every_module_imports_without_what_posix_has() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", EVERY_MODULE], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[-2:]
    n_modules, failed = first.split(" ", 1)
    assert failed == "[]" and int(n_modules) > 150
    assert second == "True None"


# --- the library ----------------------------------------------------------------------------------


class Part:
    def __init__(self, name: str, *functions: str) -> None:
        self._name = name
        for each in functions:
            setattr(self, each, f"{each} of {name}")


def test_functions_are_looked_up_in_every_library() -> None:
    together = load.Together(Part("llama", "a", "b"), Part("ggml", "b", "c"))
    assert (together.a, together.b, together.c) == ("a of llama", "b of llama", "c of ggml")
    assert together._name == "llama" and not hasattr(together, "d")


def test_windows_gets_the_libraries_of_ggml_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("libllama.dll", "ggml.dll", "ggml-base.dll"):
        (tmp_path / name).touch()
    monkeypatch.setattr(build, "LIB_DIR", tmp_path, raising=False)
    opened = []

    def cdll(path: str) -> Part:
        opened.append(Path(path).name)
        return Part(path, f"of_{Path(path).stem.replace('-', '_')}")

    monkeypatch.setattr(load.ctypes, "CDLL", cdll)
    module: Any = Part("module")
    module._lib = Part("libllama.dll", "selfspec_build_id")
    assert load._library(module, "linux") is module._lib and not opened
    library = load._library(module, "win32")
    assert opened == ["ggml.dll", "ggml-base.dll"]
    assert library.selfspec_build_id and library.of_ggml and library.of_ggml_base


def test_functions_of_ggml_are_found_without_the_bindings_library(tiny_path: Any) -> None:
    """Windows needs this; the test uses this system's libraries."""
    parts = [load.libraries.find(build.LIB_DIR, name) for name in load.PARTS]
    together = load.Together(*(load.ctypes.CDLL(str(part)) for part in parts))
    assert load.declared(together, "ggml_backend_dev_count")() > 0
    with pytest.raises(LibraryError, match="has no selfspec_build_id"):
        load.declared(together, "selfspec_build_id")


def test_libraries_of_another_system_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "LIB_DIR", tmp_path, raising=False)
    foreign = "dylib" if sys.platform == "win32" else "dll"
    (tmp_path / f"libselfspec-processor.{foreign}").touch()
    with pytest.raises(LibraryError, match=r"the library in .* is for (Windows|macOS), and this"):
        processor._offered([])
    (tmp_path / f"libselfspec-processor.{foreign}").unlink()
    with pytest.raises(LibraryError, match=r"has no library for .*; install pyselfspec again"):
        processor._offered([])


# --- terminals and signals ------------------------------------------------------------------------


def test_a_chat_without_termios_leaves_keys_to_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "termios", None)
    with typed_ahead.typing_waits() as typed:
        assert typed == ""


def test_signals_that_the_system_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    with pytest.raises(_signals.Ended), _signals.as_ctrl_c():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(5)
    assert _signals.exit_status() == 128 + signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "no reason"),
        (-signal.SIGTERM, "SIGTERM ended it, no reason"),
        (-99, "signal 99 ended it, no reason"),
        (0xC0000005, "error 0xC0000005 of Windows ended it, no reason"),
    ],
)
def test_why_a_program_ended(status: int, said: str) -> None:
    assert str(subprogram.Failed(status, ["no reason"])).endswith(said)


# --- files ----------------------------------------------------------------------------------------


def test_an_abandoned_folder_goes_where_open_files_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to remove the lock while it is held."""
    abandoned = tmp_path / f"{UNFINISHED}x"
    (abandoned / "folder").mkdir(parents=True)
    for path in (abandoned / LOCK, abandoned / "half", abandoned / "folder" / "wheel"):
        path.touch()
    old = time.time() - 2 * YOUNG_S
    os.utime(abandoned / LOCK, (old, old))
    held: list[Path] = []
    import filelock

    class Held(filelock.FileLock):  # type: ignore[misc]
        def _acquire(self) -> None:
            super()._acquire()
            held.append(Path(self.lock_file))

        def _release(self) -> None:
            held.remove(Path(self.lock_file))
            super()._release()

    def rmtree(folder: Path) -> None:
        if any(each.is_relative_to(folder) for each in held):
            raise PermissionError(13, "in use", str(folder))
        real(folder)

    real = files.shutil.rmtree
    monkeypatch.setattr(filelock, "FileLock", Held)
    monkeypatch.setattr(files.shutil, "rmtree", rmtree)
    files._remove_abandoned(tmp_path)
    assert not abandoned.exists() and not held
    monkeypatch.undo()
    with replacing(tmp_path / "new") as unfinished:
        unfinished.write_text("x")
    assert [each.name for each in tmp_path.iterdir()] == ["new"]


def test_the_demo_is_generated_from_without_posix() -> None:
    """Modules are loaded late, too: a whole run without what Windows lacks."""
    code = (
        "import os, signal, sys\n"
        "import prompt_toolkit, filelock, subprocess, tempfile\n"
        "sys.modules.update(dict.fromkeys(('resource', 'termios', 'pwd', 'grp')))\n"
        "for name in ('register_at_fork', 'sched_getaffinity', 'getloadavg', 'sysconf'):\n"
        "    delattr(os, name)\n"
        "del signal.SIGHUP, signal.SIGCONT\n"
        "sys.argv = 'pyselfspec generate demo -p Once -n 4 -t 1 -c 64'.split()\n"
        "from pyselfspec.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
