"""The wider copy of the bundled model that ``pyselfspec demo`` uses, and the race of "
"completions."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from filelock import FileLock

from ..convert.stream import read_model
from ..convert.widen import widen
from ..errors import ModelFileError
from ..gguf.file import check
from ..speculate.completion import Completion
from ..util import paths
from ..util.paths import DEMO

# Factor of the width by the approximate number of parameters of the result. Powers of two keep the
# widened weights exact in the type of the model.
FACTORS = {"40M": 2, "160M": 4, "0.6B": 8, "2.4B": 16}
DIGEST_CHARS = 12  # of the bundled model's SHA-256; enough to tell versions apart


def wide_path(factor: int) -> Path:
    """Return the path of the copy of this width, whether it exists or not."""
    digest = hashlib.sha256(DEMO.read_bytes()).hexdigest()[:DIGEST_CHARS]
    return paths.cache(f"demo-{digest}-{factor}x.gguf")


def make_wide(path: Path, factor: int) -> Generator[tuple[int, int], None, None]:
    """Write the copy unless it exists, yielding bytes done and bytes in total.

    A second process waits for the first. Raises OSError if the copy cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if _is_whole(path):
            return
        copy = widen(read_model(DEMO), factor)
        done = 0
        with closing(copy.write_steps(path)) as steps:
            for n_bytes in steps:
                done += n_bytes
                yield done, copy.n_bytes


def _is_whole(path: Path) -> bool:
    """Tell whether a complete copy exists."""
    try:
        check(path)
    except ModelFileError:
        return False
    return True


def race(completions: Sequence[Completion]) -> Iterator[Completion]:
    """Advance the completion that has used the least time, and yield it, until all are complete.

    So all completions show their text after about the same time.
    """
    running = [(completion, iter(completion)) for completion in completions]
    while running:
        behind = min(running, key=lambda pair: pair[0].stats.total_us)
        if next(behind[1], None) is None:
            running.remove(behind)
        else:
            yield behind[0]
