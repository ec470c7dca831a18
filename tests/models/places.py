"""Folders of the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def llama_cpp() -> Path:
    trees = [ROOT / "vendor" / name for name in ("llama.cpp", "work")]
    found = [tree for tree in trees if (tree / "ggml" / "include").exists()]
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("llama.cpp is not unpacked here")
    return found[0]
