"""Threads for requests that generate nothing, such as /tokenize: they take as long as their texts,
and requests for answers do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

N_THREADS = 2

P = ParamSpec("P")
T = TypeVar("T")
_threads = ThreadPoolExecutor(N_THREADS, "pyselfspec tokens")


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns in one of these threads."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, lambda: function(*args, **kwargs))
