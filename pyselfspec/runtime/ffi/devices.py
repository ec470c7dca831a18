"""Devices that a model can run on: GPUs of this machine, and devices of others through ggml's RPC
backend; and memory that this process gives back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from ...errors import UnsupportedError
from ...util import build, libraries
from .load import llama, native
from .prototypes import ADDRESS, SIZE, TEXT

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_CPU_TYPE = 0  # GGML_BACKEND_DEVICE_TYPE_CPU


def _devices(*types: int) -> list[int]:
    devices = [native.ggml_backend_dev_get(i) for i in range(native.ggml_backend_dev_count())]
    return [device for device in devices if native.ggml_backend_dev_type(device) in types]


def _descriptions(devices: Sequence[int]) -> tuple[str, ...]:
    descriptions = map(native.ggml_backend_dev_description, devices)
    return tuple(each.decode(errors="replace") for each in descriptions)


def gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that this library can use, in llama.cpp's order."""
    return _descriptions(_devices(*_GPU_TYPES))


def free_bytes(remote: Sequence[int] = ()) -> int:
    """Return the free memory of these remote devices and of the GPUs of this machine together, in
    bytes, as their drivers state it."""
    n_free, n_total = SIZE(), SIZE()
    found = 0
    for device in (*remote, *_devices(*_GPU_TYPES)):
        native.ggml_backend_dev_memory(device, ctypes.byref(n_free), ctypes.byref(n_total))
        found += n_free.value
    return found


def has_cuda() -> bool:
    """Return whether this library was built with CUDA; the machine may still have no GPU."""
    return libraries.find(build.LIB_DIR, "ggml-cuda") is not None


@cache
def has_vulkan() -> bool:
    """Return whether this library was built with Vulkan; the machine may still have no GPU."""
    return any(build.LIB_DIR.glob("*ggml-vulkan*"))


def system_info() -> str:
    """Return the processor features and backends that this library uses, in llama.cpp's words."""
    return str(llama.llama_print_system_info().decode(errors="replace")).strip()


def set_devices(params: Any, remote: Sequence[int]) -> object:
    """Let a model use these remote devices before the GPUs of this machine. Returns an object that
    must be kept as long as params."""
    devices = [*remote, *_devices(*_GPU_TYPES)]
    array = (ADDRESS * (len(devices) + 1))(*devices, None)
    params.devices = ctypes.addressof(array)
    return array


#
# RPC
#


def _rpc_function(name: str, restype: Any, *argtypes: Any) -> Any:
    """Return a function of ggml's RPC backend. Raises UnsupportedError where it was not built."""
    backend = native.ggml_backend_reg_by_name(b"RPC")
    if not backend:
        raise UnsupportedError("this library was built without RPC (GGML_RPC=OFF)")
    address = native.ggml_backend_reg_get_proc_address(backend, name.encode())
    return ctypes.CFUNCTYPE(restype, *argtypes)(address)


def remote_devices(server: str) -> list[int]:
    """Return the devices of an RPC server, which must be reachable: the process ends when it does
    not reply, now or later."""
    # ggml_backend_reg_t ggml_backend_rpc_add_server(const char * endpoint);
    add = _rpc_function("ggml_backend_rpc_add_server", ADDRESS, TEXT)
    backend = add(server.encode())
    if not backend:
        return []
    count = native.ggml_backend_reg_dev_count(backend)
    return [native.ggml_backend_reg_dev_get(backend, i) for i in range(count)]


def _offered() -> list[int]:
    return _devices(*_GPU_TYPES) or _devices(_CPU_TYPE)


def offered_devices() -> tuple[str, ...]:
    """Return the names of the devices that rpc_serve() offers: the GPUs, or the CPU where there are
    none."""
    return _descriptions(_offered())


def rpc_serve(endpoint: str, n_threads: int, cache: str | None) -> None:
    """Serve this machine's devices at an endpoint "host:port"; returns only when the port cannot be
    listened on."""
    # void ggml_backend_rpc_start_server(const char * endpoint, const char * cache_dir,
    #                                    size_t n_threads, size_t n_devices, devices);
    start = _rpc_function("ggml_backend_rpc_start_server", None, TEXT, TEXT, SIZE, SIZE, ADDRESS)
    devices = _offered()
    folder = None if cache is None else os.fsencode(cache)
    array = (ADDRESS * len(devices))(*devices)
    start(endpoint.encode(), folder, n_threads, len(devices), ctypes.addressof(array))


def release_memory() -> None:
    """Return freed memory to the system, which glibc keeps: many graphs of different sizes would
    fragment it more and more."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library
        return None
