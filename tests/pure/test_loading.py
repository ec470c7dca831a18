"""Which files are copied into memory, and which are mapped."""

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.runtime import loading
from pyselfspec.util import memory

ENABLED = "sys/kernel/mm/transparent_hugepage/enabled"
GIB = 1 << 30


def system(folder, enabled):
    if enabled is not None:
        path = folder / ENABLED
        path.parent.mkdir(parents=True)
        path.write_text(enabled)
    return folder


@pytest.mark.parametrize(
    ("enabled", "has"),
    [
        ("always [madvise] never\n", True),
        ("[always] madvise never\n", True),
        ("always madvise [never]\n", False),
        (None, False),
    ],
)
def test_huge_pages_are_those_that_the_system_gives(tmp_path, enabled, has):
    assert memory.has_huge_pages(system(tmp_path, enabled)) is has


@pytest.mark.parametrize(
    ("free", "has_pages", "share", "chosen"),
    [
        (2 * GIB, True, 0.1, loading.COPY),
        (2 * GIB - 1, True, 0.1, loading.MAP),
        (None, True, 0.1, loading.MAP),
        (8 * GIB, False, 0.1, loading.MAP),
        (8 * GIB, True, 0.09, loading.MAP),
    ],
)
def test_a_file_is_copied_where_that_gains_and_memory_allows(
    monkeypatch, free, has_pages, share, chosen
):
    monkeypatch.setattr(memory, "has_huge_pages", lambda: has_pages)
    assert loading.chosen(GIB, free, share) == chosen


def test_other_ways_are_refused():
    for load in loading.LOADS:
        loading.require(load)
    with pytest.raises(ArgumentError, match="load is one of auto, copy, map, got 'mmap'"):
        loading.require("mmap")
