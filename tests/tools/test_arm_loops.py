"""Counting instructions of inner loops in a disassembly, tools/arm_loops.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import arm_loops

LISTING = """
0000000000000000 <rows_times_tokens<selfspec::(anonymous namespace)::Q8_0, 2>(int)>:
   0:\tmov\tx0, #0x0
   4:\tprfm\tpldl2keep, [x0]
   8:\tsdot\tv0.4s, v1.16b, v2.16b
   c:\tsdot\tv3.4s, v1.16b, v2.16b
  10:\tb.ne\t4 <rows_times_tokens+0x4>  // b.any
  14:\tsub\tx1, x1, #0x1
  18:\tcbnz\tx1, 0 <rows_times_tokens>
  1c:\tret

0000000000000020 <no_loop>:
  20:\tsmull\tv0.8h, v1.8b, v2.8b
  24:\tret
"""


def test_the_innermost_loop_with_the_products() -> None:
    code = arm_loops.functions(LISTING)
    [multiplies, none] = code.values()
    loop = arm_loops.inner_loop(multiplies, "dotprod", 2)
    assert loop == arm_loops.Loop(n_instructions=4, n_weights=16)
    assert arm_loops.inner_loop(none, "baseline", 1) is None
    assert [*arm_loops.ours("Q8_0", 2, code)] == [next(iter(code))]
    assert not [*arm_loops.ours("Q8_0", 1, code)]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-g++"), reason="no cross compiler for ARM")
def test_every_type_has_a_loop_at_every_width() -> None:
    tool = Path(arm_loops.__file__)
    run = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=True)
    [_, _, *rows] = run.stdout.splitlines()
    assert len(rows) == len(arm_loops.BLOCKS)
    for row in rows:
        [_, _, upstream, *ours, _] = [cell.strip() for cell in row.split("|")]
        assert len(ours) == len(arm_loops.WIDTHS)
        one, *wider = [float(cell) for cell in ours]
        assert wider[2] < 3 * one, "four tokens share what is unpacked"
        assert float(upstream) > 0
