"""Broken model files, some of each kind: one short line, no signal, no hang."""

from __future__ import annotations

import random
from pathlib import Path

from pyselfspec.util.paths import DEMO
from tools import fuzz_gguf


def test_broken_files_end_in_one_line(tmp_path: Path) -> None:
    for model in (DEMO, *fuzz_gguf.tiny_models(tmp_path)):
        faults, ends = fuzz_gguf.fuzz(model, 3, 20261121, tmp_path)
        assert faults == [] and ends


def test_a_broken_copy_is_put_right_again(tmp_path: Path) -> None:
    model = fuzz_gguf.tiny_models(tmp_path)[0]
    sound = model.read_bytes()
    seen = set()
    with fuzz_gguf.Copy(model, tmp_path) as copy:
        for seed in range(60):
            with copy.broken(random.Random(seed)) as path:
                seen.add(path.read_bytes())
            assert path.read_bytes() == sound, f"seed {seed}"
    assert len(seen - {sound}) > 40


def test_a_signal_is_a_fault(tmp_path: Path, monkeypatch) -> None:
    """Whatever ends the process of a file is told, and the next file is tried all the same."""
    monkeypatch.setattr(
        fuzz_gguf, "WORKER", fuzz_gguf.WORKER.replace("json.loads(line)", "[os.abort()]")
    )
    faults, ends = fuzz_gguf.fuzz(fuzz_gguf.tiny_models(tmp_path)[0], 2, 1, tmp_path)
    assert ends == {"ended -6": 2} and len(faults) == 2
