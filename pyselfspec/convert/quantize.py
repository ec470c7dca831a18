"""Writes a GGUF model with its weights in another type, with llama.cpp's quantizer.

The quantizer runs in a child process (this file as a program), since it cannot be interrupted.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from gguf import LlamaFileType

from ..errors import ArgumentError, ModelFileError
from ..gguf import file as gguf_file
from ..runtime.ffi import load, model_calls
from ..util.files import replacing
from ..util.machine import usable_cores
from ..util.progress import Progress
from . import subprogram
from .stream import require_other

# Names as people type them, such as q4_k_m, with llama.cpp's numbers.
TYPES: dict[str, int] = {
    re.sub("^(ALL|MOSTLY)_", "", each.name).lower(): each.value
    for each in LlamaFileType
    if each is not LlamaFileType.GUESSED
} | {"q2_0": 41}  # newer than the gguf package
_TENSOR = re.compile(r"\[ *(\d+)/ *(\d+)\]")
_IS_QUANTIZED = re.compile(r"requantizing from type (\w+) is disabled")
# Messages of C++ streams, NumPy and the operating system.
_NOT_WRITTEN = re.compile(
    r"iostream error|requested and \d+ written|No space left|File too large|quota exceeded"
)


Steps = Generator[Progress, None, None]


def require_type(name: str) -> str:
    """Return a type's name in lower case. Raises ArgumentError for a name that is not in TYPES."""
    if name.lower() not in TYPES:
        raise ArgumentError(f"unknown type {name!r}: choose from {', '.join(TYPES)}")
    return name.lower()


def require_written(reason: str, target: Path) -> None:
    """Raise OSError when a program failed because it could not write."""
    if _NOT_WRITTEN.search(reason):
        raise OSError(
            errno.ENOSPC, f"cannot write all of it, is the disk full? ({reason})", str(target)
        )


def quantize(source: Path, target: Path, type_name: str, *, n_threads: int | None = None) -> None:
    """Write `source` to `target` with weights of a type in TYPES; metadata stay as they are.

    The source must have float weights: llama.cpp's quantizer is not made to start from rounded
    ones. Blocks whose sizes do not suit the type get llama.cpp's substitute for it.
    n_threads: default: the cores this process may use.

    Raises ArgumentError, ModelFileError (a source that cannot be read or quantized), OSError.
    """
    for _progress in quantize_steps(source, target, type_name, n_threads=n_threads):
        pass


def quantize_steps(
    source: Path, target: Path, type_name: str, *, n_threads: int | None = None
) -> Steps:
    """Quantize like ``quantize``; yield the progress after each tensor. Closed early, it leaves no
    target."""
    type_name = require_type(type_name)
    gguf_file.check(source)
    require_other(source, target)
    with replacing(target) as unfinished:
        yield from run_quantizer(
            source, unfinished, type_name, n_threads, origin=source, target=target
        )


def run_quantizer(
    source: Path,
    written: Path,
    type_name: str,
    n_threads: int | None,
    *,
    pure: bool = False,
    origin: Path,
    target: Path,
) -> Steps:
    """Quantize the file `source` into `written`; messages call them `origin` and `target`.

    pure: all weights whose sizes suit it get the type; by default llama.cpp gives a finer one to
        some, like the output.
    """
    n_threads = usable_cores() if n_threads is None else n_threads
    numbers = (str(TYPES[type_name]), str(n_threads), str(int(pure)))
    with closing(subprogram.run("-P", "-m", __name__, source, written, *numbers)) as lines:
        try:
            for line in lines:
                if match := _TENSOR.match(line):
                    yield Progress("quantizing", int(match[1]), int(match[2]))
        except subprogram.Failed as failure:
            require_written(failure.reason, target)
            raise ModelFileError(_explain(origin, failure.reason)) from None


def _explain(source: Path, reason: str) -> str:
    if quantized := _IS_QUANTIZED.search(reason):
        return (
            f"{source} has {quantized[1].upper()} weights already: "
            "start from a file with F32, F16 or BF16 weights"
        )
    return f"{source}: llama.cpp cannot quantize this model: {reason}"


def _main(source: str, target: str, *numbers: str) -> int:
    load.set_verbose(True)
    type_number, n_threads, pure = map(int, numbers)
    files = os.fsencode(source), os.fsencode(target)
    return model_calls.quantize(*files, type_number, n_threads, bool(pure))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
