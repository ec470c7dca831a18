"""Files appear whole or not at all, whatever ends the process; one process at a time."""

from __future__ import annotations

import errno
import io
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from pyselfspec.errors import ArgumentError
from pyselfspec.util import files
from pyselfspec.util.files import locked, replacing

WRITER = """
import sys, time
from pathlib import Path
from pyselfspec.util.files import replacing
with replacing(Path(sys.argv[1])) as unfinished:
    unfinished.write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(100)
"""


def write(target: Path) -> None:
    with replacing(target) as unfinished:
        unfinished.write_text("all of it")


def age(folder: Path) -> None:
    old = time.time() - 2 * files.YOUNG_S
    os.utime(folder / files.LOCK, (old, old))


def test_what_a_killed_process_left_goes_with_the_next_file(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, target], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    (folder,) = tmp_path.iterdir()
    age(folder)
    write(tmp_path / "other")  # while it is still being written
    assert folder.is_dir() and (folder / target.name).stat().st_size == 1000
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert folder.is_dir() and not target.exists()
    write(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_what_may_be_anothers_stays(tmp_path: Path) -> None:
    foreign, young = tmp_path / ".unfinished-foreign", tmp_path / ".unfinished-young"
    for folder in (foreign, young):
        folder.mkdir()
        (folder / "file").touch()
    (young / files.LOCK).touch()  # as it is before it is held
    write(tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {foreign.name, young.name, "new"}


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """Python names none when writing fails, only when opening does."""
    with pytest.raises(OSError, match=r"new\.json") as full, replacing(tmp_path / "new.json"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert full.value.filename == str(tmp_path / "new.json")
    with pytest.raises(OSError, match="elsewhere"), replacing(tmp_path / "new.json"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "elsewhere")


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with locked(path, "take another"):
        with pytest.raises(ArgumentError, match=r"in use by another process; .* take another"):
            with locked(path, "take another"):
                pass
    with locked(path, "take another"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_found_later", [False, True])
def test_a_lock_that_cannot_be_made_is_not_anothers(
    is_found_later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems have no locks. Where a folder takes no files, such as /proc, filelock waits
    as for another process."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def waited(lock: FileLock) -> None:
        raise Timeout(lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", waited if is_found_later else refused)
    monkeypatch.setattr(files, "TemporaryFile", refused)
    message = rf"x cannot be locked \({os.strerror(errno.ENOLCK)}\); take another$"
    with pytest.raises(ArgumentError, match=message), locked(tmp_path / "x", "take another"):
        pass


def test_locks_make_no_folders(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="make it first"), locked(tmp_path / "no" / "x", ""):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_held_is_not_waited_for(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "x.lock")
    with lock, pytest.raises(ArgumentError), locked(tmp_path / "x", ""):
        pass
    assert (tmp_path / "x.lock").exists()  # the owner's


class Blocks(io.BytesIO):
    """Remembers the largest block that was asked for."""

    largest = 0

    def read(self, n: int | None = -1, /) -> bytes:
        self.largest = max(self.largest, math.inf if n is None or n < 0 else n)  # type: ignore[assignment]
        return super().read(n)


@pytest.mark.parametrize("n", [0, 1, files.READ_BYTES, 3 * files.READ_BYTES + 7])
def test_a_file_is_read_in_blocks_up_to_its_limit(n: int) -> None:
    data = os.urandom(n)
    assert files.read_limited(whole := Blocks(data), 1 << 30) == data
    assert files.read_limited(Blocks(data), n) == data
    assert whole.largest <= files.READ_BYTES
    with pytest.raises(ArgumentError, match=rf"more than {n >> 20} MiB"):
        files.read_limited(Blocks(data + b"x"), n)
