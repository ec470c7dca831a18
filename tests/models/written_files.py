"""Written model files: their metadata, and a limit on their size that acts as a full disk."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# llama.cpp writes these keys anew.
REWRITTEN = {"general.file_type", "general.quantization_version"}


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """No process started here may write more into a file: as good as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def metadata(file: Path) -> dict[str, Any]:
    """Every key but those about the file itself."""
    from gguf import GGUFReader  # tests/pure runs without that package

    fields = GGUFReader(file).fields.items()
    return {k: f.contents() for k, f in fields if not k.startswith("GGUF.") and k not in REWRITTEN}
