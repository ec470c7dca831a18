"""Choose the CPU backend for this processor, before anything is loaded that could end the process
on it, numpy included."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache

from ..errors import LibraryError
from ..util import build, libraries

VARIABLE = "PYSELFSPEC_CPU"  # names a variant, to compare it with the others
_PREFIX = "ggml-cpu"
_LIBRARY = "selfspec-processor"

# Both end the sentence about what the processor lacks.
_BUILT_ELSEWHERE = (
    "install it again on this machine (pip install --force-reinstall --no-cache-dir . in its "
    "source folder), or use the portable wheel"
)
_TOO_OLD = "it cannot run here"


def variant(backend: str) -> str:
    """Return the short name of a backend: "haswell" in the portable build, else "native"."""
    return backend.removeprefix(_PREFIX).removeprefix("-") or "native"


def choose(needs: Mapping[str, Sequence[str]], offered: Set[str], wanted: str = "") -> str:
    """Return the last backend whose instruction sets are all offered.

    needs: the instruction sets of each backend, the least demanding first.
    wanted: the only variant to consider; "" for all.

    Raises LibraryError if no variant fits, or if the given one does not exist.
    """
    by_variant = {variant(name): name for name in needs}
    if wanted and wanted not in by_variant:
        raise LibraryError(
            f"{VARIABLE} is {wanted!r}; this build of pyselfspec has {', '.join(by_variant)}"
        )
    candidates = [by_variant[wanted]] if wanted else list(needs)
    fitting = [name for name in candidates if offered >= {*needs[name]}]
    if fitting:
        return fitting[-1]
    missing = [name for name in needs[candidates[0]] if name not in offered]
    raise LibraryError(
        f"{f'{VARIABLE}={wanted}' if wanted else 'this build of pyselfspec'} needs a processor "
        f"with {_listed(missing)}, which this one lacks; "
        f"{_TOO_OLD if len(needs) > 1 else _BUILT_ELSEWHERE}"
    )


def require_target(target: str, system: str, machine: str) -> None:
    """Raise LibraryError where the library was built for another system or kind of processor.

    target: both, as CMake names them; system and machine: as Python does.
    """
    other_names = {"amd64": "x86_64", "arm64": "aarch64"}
    built, here = (
        tuple(other_names.get(word.lower(), word.lower()) for word in words)
        for words in (target.split(), (system, machine))
    )
    if built != here:
        raise LibraryError(
            f"this pyselfspec was built for {' on '.join(target.split())}, and this is {system} "
            f"on {machine}; install the wheel for it, or the source (pip install .)"
        )


def _listed(names: list[str], n_max: int = 4) -> str:
    more = len(names) - n_max
    return ", ".join(names[:n_max]) + (f" and {more} more instruction sets" if more > 0 else "")


@cache
def cpu_backend() -> str:
    """Return the name of the CPU backend's library for this processor. Raises LibraryError when
    there is none."""
    require_target(build.TARGET, platform.system(), platform.machine())
    needs = {name: sets.split() for name, sets in build.CPU_BACKENDS.items()}
    offered = _offered({name for sets in needs.values() for name in sets})
    return choose(needs, offered, os.environ.get(VARIABLE, ""))


def _offered(names: Iterable[str]) -> frozenset[str]:
    """Return the instruction sets that the processor has and the system allows."""
    file = libraries.find(build.LIB_DIR, _LIBRARY)
    if file is None:
        raise LibraryError(libraries.why_missing(build.LIB_DIR, _LIBRARY))
    try:
        has = ctypes.CDLL(str(file)).selfspec_processor_has
    except (OSError, AttributeError):
        raise LibraryError(
            f"the library in {build.LIB_DIR} is not pyselfspec's, or not for this kind of "
            "processor; install pyselfspec again"
        ) from None
    has.argtypes = [ctypes.c_char_p]
    return frozenset(name for name in names if has(name.encode()))
