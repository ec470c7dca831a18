"""Runs a server of several models."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence

import uvicorn

from ..server import GracefulServer, web_config, with_hosts
from ..settings import Settings
from .app import RouterApp
from .models import Listed
from .pool import Pool
from .process import END_S, KILL_S, ModelProcess

LATE_S = 5.0  # after the time in which all processes have ended


def make_server(
    models: Sequence[Listed],
    options: Sequence[str],
    settings: Settings,
    listener: socket.socket,
    *,
    max_bytes: int | None,
    keep_s: float | None,
    grace_s: float,
    ready: Callable[[], None],
) -> uvicorn.Server:
    """Return the server. options: of the command line, for the processes of all models.

    The program ends within grace_s + END_S + KILL_S + LATE_S seconds after a signal, and the
    processes of models with it.
    """

    async def start(model: Listed) -> ModelProcess:
        return await ModelProcess.start(model, options, grace_s)

    def end() -> None:
        late = threading.Timer(grace_s + END_S + KILL_S + LATE_S, os._exit, [1])
        late.daemon = True
        late.start()
        pool.end()

    pool = Pool(models, start, max_bytes=max_bytes, keep_s=keep_s)
    config = web_config(
        RouterApp(pool, with_hosts(settings, listener)).make(),
        grace_s,
        log_level="warning",
        date_header=False,  # the models' servers write one
        lifespan="on",
    )
    return GracefulServer(config, ready, end)
