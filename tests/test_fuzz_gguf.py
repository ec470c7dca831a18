"""Broken model files, some of each kind: one short line, no signal, no hang."""

from __future__ import annotations

from pathlib import Path

from pyselfspec.util.paths import DEMO
from tools import fuzz_gguf


def test_broken_files_end_in_one_line(tmp_path: Path) -> None:
    models = [DEMO, *fuzz_gguf.tiny_models(tmp_path)]
    assert fuzz_gguf.fuzz(models, 50, 20261121, tmp_path) == []
