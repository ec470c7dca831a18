"""Types of the fixtures in tests/conftest.py, and the settings of their contexts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyselfspec import Context, Model

# One thread: the models are so small that a second one only waits, and spins while it does.
CONTEXT = {"n_ctx": 256, "n_batch": 64, "n_threads": 1}

TinyPath = Callable[..., Path]
RealModel = Callable[..., Path]
TinyModel = Callable[..., "Model"]
NewContext = Callable[..., "Context"]
RunPython = Callable[..., subprocess.CompletedProcess[str]]
