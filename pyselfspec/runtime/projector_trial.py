"""Load a projector in a process of its own first: libmtmd trusts the shapes in the file, and for a
broken one it ends the process that reads a picture.

The other process prepares the computation for a picture and computes nothing. Run as a program:
``python -m pyselfspec.runtime.projector_trial MODEL MMPROJ``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ..errors import ModelFileError, SelfSpecError
from ..gguf.header import BROKEN
from .ffi import pictures as ffi
from .ffi.load import llama

FAILED = re.compile(r"GGML_ASSERT\(.{1,200}\)")


def require_sound(model: Path, projector: Path) -> None:
    """Raise ModelFileError for a projector that ends the process which prepares a picture. Any
    other fault is left to those who load it."""
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__, model, projector],
        env={**os.environ, "PYTHONPATH": paths, "GGML_NO_BACKTRACE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode:
        found = FAILED.search(done.stderr.decode(errors="replace"))
        reason = f" ({found[0]})" if found else ""
        raise ModelFileError(
            f"{projector}: libmtmd cannot prepare a picture with this projector{reason}; {BROKEN}"
        )


def _prepare(model: str, projector: str) -> None:
    params = llama.llama_model_default_params()
    params.vocab_only = True
    handle = llama.llama_model_load_from_file(os.fsencode(model), params)
    if handle:
        ffi.open_projector(Path(projector), handle, 1, on_gpu=False, prepares=True)


if __name__ == "__main__":
    with suppress(SelfSpecError):
        _prepare(*sys.argv[1:])
