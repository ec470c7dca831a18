"""Buffers are marked for huge pages, where the system has them."""

import subprocess
import sys
from pathlib import Path

import pytest

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import re
from pyselfspec import DEMO, Model
def marked():
    smaps = open("/proc/self/smaps").read()
    kinds = re.findall(r"^Size: +([0-9]+) kB(?:\\n[A-Z].*?)*?\\nVmFlags:(.*)", smaps, re.M)
    return sum(int(kb) for kb, flags in kinds if " hg" in flags)
with Model(DEMO) as model:
    before = marked()
    with model.context(n_ctx=16384) as context:
        print(before, marked(), context.kv_bytes // 1024)
"""


@pytest.mark.skipif(not SWITCH.exists(), reason="this system has no transparent huge pages")
def test_buffers_are_marked_for_huge_pages():
    """By what the kernel says of the process: weights that were rearranged, and K/V."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    weights, all_of_them, kv = map(int, run.stdout.split())
    assert weights > 0
    assert all_of_them - weights > 0.9 * kv
