"""Buffers are marked for huge pages, where the system has them."""

import subprocess
import sys
from pathlib import Path

import pytest

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = r"""
import re
from pyselfspec import DEMO, Model
def marked():
    areas = re.split("(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read())
    marked = (area for area in areas if re.search("(?m)^VmFlags:.* hg", area))
    return sum(int(re.search("Size: +([0-9]+) kB", area)[1]) for area in marked)
with Model(DEMO) as model:
    before = marked()
    with model.context(n_ctx=16384):
        print(marked() - before)
"""


@pytest.mark.skipif(not SWITCH.exists(), reason="this system has no transparent huge pages")
def test_keys_and_values_are_marked_for_huge_pages():
    """By what the kernel says of the process; 16,384 tokens take 96 MB."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 90_000
