"""Records of measurements: JSON lines with what is needed to repeat them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from pyselfspec import BUILD_ID, __version__
from pyselfspec.costs.calibration import machine

FORMAT = 1
KERNELS_OFF = "PYSELFSPEC_KERNELS=off "  # before a command: with upstream's kernels

Record = dict[str, Any]


def provenance(
    bench: str, model: Path, threads: int, options: str = "", program: str = ""
) -> Record:
    """What every record begins with. program: what was run, default: bench.py's command."""
    program = program or f"bench.py {bench}"
    environment = KERNELS_OFF if os.environ.get("PYSELFSPEC_KERNELS") == "off" else ""
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "bench": bench,
        "format": FORMAT,
        "version": __version__,
        "build": BUILD_ID,
        "model": model.name,
        "model_sha256": digest,
        "machine": machine(),
        "threads": threads,
        "command": f"{environment}python tools/{program} {model.name} --threads {threads}{options}",
        "date": time.strftime("%Y-%m-%d"),
    }


def rounded(us: list[float]) -> list[int]:
    return [round(value) for value in us]


def append(record: Record, out: Path | None) -> None:
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
