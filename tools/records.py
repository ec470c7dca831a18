"""Records of measurements: JSON lines with what is needed to repeat them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyselfspec import BUILD_ID, __version__
from pyselfspec.costs.store import machine
from pyselfspec.gguf import fingerprint
from pyselfspec.gguf.file import check
from pyselfspec.runtime.ffi.devices import system_info

FORMAT = 1
KERNELS_OFF = "PYSELFSPEC_KERNELS=off "  # before a command: with upstream's kernels

Record = dict[str, Any]


def provenance(
    bench: str, model: Path, threads: int, options: str = "", *, command: str = ""
) -> Record:
    """Return the fields that every record begins with.

    command: of bench.py, and what it takes before the model; default: the name of the record.
    model_sha256: what sha256sum says of the file. fingerprint: what profiles and stored costs call
    the model.
    """
    environment = KERNELS_OFF if os.environ.get("PYSELFSPEC_KERNELS") == "off" else ""
    program = f"{environment}python tools/bench.py {command or bench}"
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "bench": bench,
        "format": FORMAT,
        "version": __version__,
        "build": BUILD_ID,
        "model": model.name,
        "model_sha256": digest,
        "fingerprint": fingerprint.of_model(check(model)),
        "machine": machine(),
        "system": system_info(),
        "threads": threads,
        "command": f"{program} {model.name} --threads {threads}{options}",
        "date": time.strftime("%Y-%m-%d"),
    }


def has_avx2_only(record: Record) -> bool:
    """Return whether the processor has AVX2 and no AVX-512; False where a record does not say."""
    system = record.get("system", "")
    return "AVX2 = 1" in system and "AVX512 = 1" not in system


def processor(record: Record) -> str:
    """Return the name of the processor, with its instructions where it has AVX2 only."""
    name = str(record["machine"]).split(",")[0]
    return f"{name}, AVX2" if has_avx2_only(record) else name


def rounded(us: Iterable[float]) -> list[int]:
    return [round(value) for value in us]


def append(record: Record, out: Path | None) -> None:
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
