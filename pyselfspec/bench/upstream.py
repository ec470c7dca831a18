"""Computes in another process with llama.cpp's own kernels: the native library reads once whether
to use ours.

Both processes take turns, so neither slows the other down. Run as a program, this is the other one:
it opens a model as a function says, and then yields what further functions compute with it. It
reads pickles from stdin, and answers each with one on stdout.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ..errors import SelfSpecError, UnsupportedError
from ..runtime.context import Context
from ..runtime.ffi.devices import system_info
from ..runtime.model import Model
from ..util import memory
from ..util.closable import Closing
from ..util.sizes import size_text

ENVIRONMENT = {"PYSELFSPEC_KERNELS": "off"}
REPACKS = "REPACK = 1"  # of llama.cpp's description of a build

Opener = Callable[[], AbstractContextManager[tuple[Model, Context]]]
T = TypeVar("T")


class UpstreamKernels(Closing):
    """The other process. It ends with this one, or when it is closed.

    model: what this process has opened. opener: opens the same there. Functions are sent there by
    name, so they are those of modules.

    Raises UnsupportedError where the kernels would not be used or not as fast as in llama.cpp, or
    the weights have no room, and SelfSpecError if the process cannot open the model.
    """

    def __init__(self, model: Model, opener: Opener) -> None:
        _require_use(model)
        package = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._ask(opener)
        except BaseException:
            self.close()
            raise

    def each(self, make: Callable[..., Iterable[T]], *arguments: object) -> Iterator[T]:
        """Yield what ``make(context, *arguments)`` yields in the other process, which computes an
        item when this one asks for it. Take all of them. Raises SelfSpecError if that process
        fails."""
        item = self._ask((make, arguments))
        while item is not None:
            yield item
            item = self._ask(None)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: object) -> Any:
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None
        try:
            pickle.dump(request, requests)
            requests.flush()
            answer = pickle.load(answers)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = self._process.wait()
            raise SelfSpecError(f"the process that uses them ended with status {status}") from None
        if isinstance(answer, SelfSpecError):
            raise answer
        return answer


def _require_use(model: Model) -> None:
    if ENVIRONMENT.items() <= os.environ.items():
        raise UnsupportedError("plain decoding uses them already (PYSELFSPEC_KERNELS=off)")
    if model.n_gpu_layers:
        raise UnsupportedError("they differ from ours on CPUs only; use -ngl 0 without --rpc")
    if REPACKS not in system_info():  # as on ARM, where our kernels read weights as in the file
        raise UnsupportedError("this build lacks the layout of weights that they are made for")
    n_free, n_bytes = memory.available(), model.file.n_bytes
    if n_free is not None and n_free < n_bytes:
        raise UnsupportedError(
            f"the model is loaded twice for that, which takes another {size_text(n_bytes)}, and "
            f"{size_text(n_free)} are free"
        )


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C, after which the other one ends this
    requests, answers = sys.stdin.buffer, sys.stdout.buffer

    def answer(item: object) -> Any:
        """Send an item; return the next request."""
        pickle.dump(item, answers)
        answers.flush()
        return pickle.load(requests)

    try:
        with pickle.load(requests)() as (_, context):
            while True:
                make, arguments = answer(None)
                for item in make(context, *arguments):
                    answer(item)
    except SelfSpecError as error:
        answer(SelfSpecError(str(error)))  # those of other classes may not survive pickling


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError):  # the other process has ended
        _serve()
