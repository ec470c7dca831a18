"""Load the patched library on first use, start it, and control its log.

Stock functions and structs come from llama-cpp-python's ``llama_cpp.llama_cpp``, which is made to
load our library.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import LibraryError, SelfSpecError, device_full, device_lost, out_of_memory
from ...util import bindings, build, libraries
from ...util.paths import on_one_line
from ..processor import cpu_backend
from .prototypes import AbortCallback, declared

PARTS = ("ggml", "ggml-base")  # libraries that the library of llama.cpp needs

BAD_ALLOC = "std::bad_alloc"  # what C++ calls a lack of memory
_LOST = ("DeviceLost", "device lost", "DEVICE_LOST")  # what Vulkan and its backend call a lost GPU
NOT_ALLOCATED = "failed to allocate"  # what llama.cpp says of the memory of a device, and of others
_DEVICE_FULL = "ErrorOutOfDeviceMemory"  # what Vulkan calls a lack of memory
NO_REASON = "it gives no reason; see its log (-v)"

_loading = threading.Lock()
_is_forked = False  # since the library was loaded
_verbose = False


def _import_llama_cpp() -> Any:
    """Import ``llama_cpp.llama_cpp`` on top of our library. Raises LibraryError when it was already
    imported with another library."""
    cpu_backend()  # raises; a library for another processor would end the process
    bindings.require_version()
    if "llama_cpp.llama_cpp" not in sys.modules:
        _require_alone()
        before = os.environ.get("LLAMA_CPP_LIB_PATH")
        os.environ["LLAMA_CPP_LIB_PATH"] = str(build.LIB_DIR)
        try:
            importlib.import_module("llama_cpp.llama_cpp")
        except ModuleNotFoundError as error:
            raise LibraryError(
                f"llama-cpp-python's bindings are missing ({error}); install {build.UPSTREAM}"
            ) from None
        except (OSError, RuntimeError) as error:
            raise LibraryError(
                f"the patched llama.cpp library in {build.LIB_DIR} cannot be loaded ({error}); "
                "install what is missing, or pyselfspec again on this machine"
            ) from None
        finally:
            if before is None:
                del os.environ["LLAMA_CPP_LIB_PATH"]
            else:
                os.environ["LLAMA_CPP_LIB_PATH"] = before

    module = sys.modules["llama_cpp.llama_cpp"]
    loaded = Path(module._lib._name)
    if loaded.resolve().parent != build.LIB_DIR.resolve():
        raise LibraryError(
            f"llama_cpp was imported before with another library ({loaded}); "
            "import pyselfspec first"
        )
    return module


def _require_alone() -> None:
    """Raise LibraryError where another package's llama.cpp is loaded: its libraries have the names
    of ours, so the linker would use them in place of ours."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:  # another system than Linux
        return
    files = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}
    for file in sorted(files):
        is_llama_cpp = re.match(r"lib(llama|ggml(-base|-cpu.*)?)\.so", file.name)
        if is_llama_cpp and file.parent != build.LIB_DIR.resolve():
            raise LibraryError(
                f"another llama.cpp is in this process ({file}); use pyselfspec in a process of "
                "its own, or import pyselfspec and load a model with it first"
            )


class Together:
    """Several libraries as one: a function comes from the first library that has it."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts
        self._name = parts[0]._name

    def __getattr__(self, name: str) -> Any:
        for part in self._parts:
            if hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(f"{self._name} and its parts have no {name}")


def _library(module: Any, system: str = sys.platform) -> Any:
    """Return the library of the bindings, together with the libraries that it needs on Windows,
    which does not look for functions in these. system: as sys.platform."""
    if system != "win32":
        return module._lib
    parts = [libraries.find(build.LIB_DIR, name, system) for name in PARTS]
    return Together(module._lib, *(ctypes.CDLL(str(file)) for file in parts if file))


@cache
def _load() -> Any:
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # a hundred lines of gdb, on stdout
    module = _import_llama_cpp()
    library = _library(module)
    if not hasattr(library, "selfspec_build_id"):
        raise LibraryError(
            f"the library in {build.LIB_DIR} is not pyselfspec's; install pyselfspec again"
        )
    found = declared(library, "selfspec_build_id")().decode()
    if found != build.BUILD_ID:
        raise LibraryError(
            f"the library in {build.LIB_DIR} is build {found}, this package needs "
            f"{build.BUILD_ID}; install pyselfspec again"
        )
    declared(library, "selfspec_log_take")()
    declared(library, "selfspec_log_show")(_verbose)
    declared(library, "ggml_set_abort_callback")(_on_abort)
    if build.DYNAMIC:
        _load_backends(library)
    module.llama_backend_init()
    return module


def _end_process(message: bytes) -> None:
    """End the process with one line and status 1, where ggml would abort it."""
    if b"RPC server" in message:  # ggml has no other sign
        text = b"lost connection to an RPC server, or it sent an invalid reply"
    else:
        text = b"llama.cpp cannot go on: " + b" ".join(message.split())
    os.write(2, b"Error: " + text + b"\n")
    os._exit(1)


_on_abort = AbortCallback(_end_process)  # kept as long as the library


def _load_backends(library: Any) -> None:
    """Load every backend, and of those for CPUs the one for this processor.

    llama.cpp would search the folders of the interpreter and the working directory.
    """
    load_backend = declared(library, "ggml_backend_load")
    others = [name for name in build.BACKENDS if name not in build.CPU_BACKENDS]
    for name in [*others, cpu_backend()]:  # GPUs first, as llama.cpp does
        file = libraries.find(build.LIB_DIR, name)
        if file is None:
            raise LibraryError(libraries.why_missing(build.LIB_DIR, name))
        if not load_backend(os.fsencode(file)) and name in build.CPU_BACKENDS:
            raise LibraryError(f"{file} cannot be loaded: {log_error(library)}")


def loaded() -> Any:
    """Return ``llama_cpp.llama_cpp`` on top of our library, loaded and started by the first call.

    Raises LibraryError when the library is missing, foreign, or of another version.
    """
    with _loading:
        return _load()


def _after_fork() -> None:
    """Runs in the child, which has only the thread that forked."""
    global _loading, _is_forked
    _loading = threading.Lock()
    _is_forked = bool(_load.cache_info().currsize)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def require_not_forked() -> None:
    """Raise LibraryError in a process that was forked after the library was loaded: a computation
    would wait forever for threads that only the parent has."""
    if _is_forked:
        raise LibraryError(
            "this process was forked after its parent had loaded the library, whose threads it "
            "does not have; load models in the child only, or start it with the method 'spawn'"
        )


class _Stock:
    """The attributes of ``llama_cpp.llama_cpp``; the first access loads the library."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(loaded(), name)
        setattr(self, name, value)  # later accesses find it without a call
        return value


class _Native:
    """The functions that have a prototype, by their C names; the first access loads the library."""

    def __getattr__(self, name: str) -> Any:
        function = declared(_library(loaded()), name)
        setattr(self, name, function)
        return function


llama: Any = _Stock()
native: Any = _Native()


#
# log
#


def set_verbose(verbose: bool) -> None:
    """Show llama.cpp's log on stderr, or keep it silent (the default)."""
    global _verbose
    _verbose = verbose
    if _load.cache_info().currsize:
        native.selfspec_log_show(verbose)


def is_verbose() -> bool:
    """Return whether llama.cpp's log is shown on stderr."""
    return _verbose


def clear_log_error() -> None:
    """Forget the first error that llama.cpp logged in this thread."""
    native.selfspec_log_forget()


def log_error(library: Any = None) -> str:
    """Return the first error that llama.cpp logged in this thread since clear_log_error(), without
    function names; "" where it logged none."""
    read = declared(library, "selfspec_log_error") if library else native.selfspec_log_error
    return on_one_line(re.sub(r"^(\w+: )+", "", read().decode(errors="replace").strip()))


def known_cause(reason: str) -> SelfSpecError | None:
    """Return the error for a reason that llama.cpp or a backend gives, None for most reasons."""
    if BAD_ALLOC in reason:
        return out_of_memory()
    if _DEVICE_FULL in reason:
        return device_full()
    return device_lost(reason) if is_of_lost_device(reason) else None


def is_of_lost_device(reason: str) -> bool:
    """Tell whether a reason that llama.cpp or a backend gives is that a device is lost."""
    return any(word in reason for word in _LOST)


def failure(kind: type[SelfSpecError], what: str, advice: str = "") -> SelfSpecError:
    """Return the error for a failed call, with log_error() as its reason.

    what: what failed, the beginning of the message. advice: its end.
    """
    reason = log_error()
    return known_cause(reason) or kind(f"{what}: {reason or NO_REASON}{advice}")
