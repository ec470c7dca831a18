"""Homes that are full, small or read-only: file systems of their own where the system lets a test
mount them, and a limit on the size of files everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# in namespaces of its own, so that nothing stays mounted
MOUNTED = """
mount -t tmpfs -o size=$1 none "$HOME" || exit 99
if [ "$2" = ro ]; then mount -o remount,ro "$HOME" || exit 99; fi
shift 2
exec "$@"
"""
GENERATE = ("generate", "demo", "-p", "Once", "-n", "8", "-t", "1", "-c", "64", "--temp", "0")
LARGER_DEMO = ("demo", "--size", "40M")


def variables(home: Path) -> dict[str, str]:
    dropped = ("XDG_CACHE_HOME", "XDG_DATA_HOME")
    return {n: v for n, v in os.environ.items() if n not in dropped} | {"HOME": str(home)}


def mounted(home: Path, size: str, mode: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the program with a file system of its own as a home; mode: rw or ro."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh", size, mode]
    try:
        done = subprocess.run(
            [*command, sys.executable, "-P", "-m", "pyselfspec", *args],
            env=variables(home),
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode == 99 or done.stderr.startswith("unshare:"):
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    return done


def limited(home: Path, size: int, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the program with a limit on the size of files, in bytes."""
    resource = pytest.importorskip("resource")
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}));"
        f"sys.argv = ['pyselfspec', *{args!r}];"
        "from pyselfspec.cli import main; main()"
    )
    assert resource.RLIMIT_FSIZE >= 0
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, env=variables(home), capture_output=True, text=True)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text with a home that has room."""
    command = [sys.executable, "-P", "-m", "pyselfspec", *GENERATE]
    home = tmp_path_factory.mktemp("roomy")
    done = subprocess.run(command, env=variables(home), capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    return done.stdout


@pytest.mark.parametrize(("size", "mode"), [("4k", "rw"), ("16k", "rw"), ("4k", "ro")])
def test_generation_goes_on(size: str, mode: str, wanted: str, tmp_path: Path) -> None:
    done = mounted(tmp_path, size, mode, *GENERATE)
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


def test_generation_goes_on_where_files_stay_empty(wanted: str, tmp_path: Path) -> None:
    done = limited(tmp_path, 0, *GENERATE)
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


def require_one_line(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and "Traceback" not in done.stderr
    assert said in errors[0] and "; set XDG_CACHE_HOME to a folder that can be" in errors[0]


@pytest.mark.parametrize(
    ("size", "mode", "said"),
    [
        ("16k", "rw", "bytes, but only 16384 are free on the disk"),
        ("4k", "ro", "/.cache: Read-only file system"),
    ],
)
def test_what_must_be_kept_is_one_line(size: str, mode: str, said: str, tmp_path: Path) -> None:
    require_one_line(mounted(tmp_path, size, mode, *LARGER_DEMO), said)


def test_a_file_that_is_cut_off_is_one_line_and_does_not_stay(tmp_path: Path) -> None:
    require_one_line(limited(tmp_path, 16, *LARGER_DEMO), "File too large")
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in left if path.stat().st_size] == []  # locks are empty
