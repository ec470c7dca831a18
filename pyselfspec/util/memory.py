"""Memory that this process may still use, from Linux's figures for the machine and its limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
KIB = 1024


class Cgroup(NamedTuple):
    """The files that hold the limits in one version of cgroups.

    file_pages: keys of memory.stat for pages of files, which the system frees on demand."""

    top: str
    limit: str
    used: str
    file_pages: tuple[str, ...]


V1 = Cgroup(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)
V2 = Cgroup("sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file"))


def available(root: Path = ROOT) -> int | None:
    """Bytes that are free or can be freed, within the limits of the container; None where the
    system does not say. root: where /proc and /sys are."""
    machine = _numbers(root / "proc/meminfo").get("MemAvailable:")
    if machine is None:
        return None
    return max(0, min([machine * KIB, *_left_in_cgroups(root)]))


def total(root: Path = ROOT) -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    n_kib = _numbers(root / "proc/meminfo").get("MemTotal:")
    return None if n_kib is None else n_kib * KIB


def has_huge_pages(root: Path = ROOT) -> bool:
    """Whether the system gives pages of 2 MB to memory that is marked for them."""
    found = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return found != "" and "[never]" not in found


def address_space(root: Path = ROOT) -> int | None:
    """Bytes that may still be mapped under a limit on address space (ulimit -v); None without."""
    limit = _limit()
    used = _numbers(root / "proc/self/status").get("VmSize:")
    return None if limit is None or used is None else max(0, limit - used * KIB)


def _limit() -> int | None:
    """Bytes of address space that the process may have in all; None without a limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _left_in_cgroups(root: Path) -> Iterator[int]:
    """Yield the bytes left in each cgroup with a limit that this process belongs to."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" or "memory" in controllers.split(","):
            version = V2 if hierarchy == "0" else V1
            top = root / version.top
            folder = top / path.strip("/")
            # Inside a container, the path may be the host's, and its own limit is at the top.
            for each in (folder, *folder.parents):
                if each.is_relative_to(top):
                    yield from _left_in(each, version)


def _left_in(folder: Path, version: Cgroup) -> Iterator[int]:
    limit, used = (_text(folder / name).strip() for name in (version.limit, version.used))
    if limit.isdigit() and used.isdigit():
        stat = _numbers(folder / "memory.stat")
        yield int(limit) - int(used) + sum(stat.get(key, 0) for key in version.file_pages)


def _numbers(file: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line."""
    words = (line.split() for line in _text(file).splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
