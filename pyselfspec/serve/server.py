"""Everything together: a model, an engine, an application, and uvicorn to run it."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import uvicorn

from ..chat.template import ChatTemplate
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime import vocabulary
from ..runtime.context import N_CTX, N_CTX_UNIT, Context
from ..runtime.model import Model
from ..speculate.prepared import prepared
from . import app
from .auth import LOOPBACK
from .engine import Engine
from .jobs import Drafting
from .service import Service
from .settings import GRACE_S, Room, Settings
from .sources import usable

N_BATCH = 512  # rows of a pass where no width is exact
SWITCH_S = 0.0005  # Python's threads take turns as often as a pass over a small model takes
BACKLOG = 128
CUT_S = 2  # to tell clients that their answers were cut


@contextmanager
def serving(
    model: Model,
    settings: Settings,
    *,
    room: Room,
    drafting: Drafting,
    template: str | None = None,
    **options: Any,
) -> Iterator[Service]:
    """A service on a model; options of its Context.

    template: of chats, or the name of a fallback; None: the model's own, if it has one.

    Raises what Context, ChatTemplate and preparing drafts do.
    """
    chat = None
    if template is not None or (model.has_vocab and vocabulary.chat_template(model)):
        chat = ChatTemplate.of(model, template)
    with context_for(model, room, **options) as context:
        n_cells = room.n_ctx or _default_n_ctx(model, room)
        mask, sources = _default_mask(context, drafting), usable(context, drafting)
        with Engine(context, n_slots=room.n_slots, n_queue=room.n_queue, n_cells=n_cells) as engine:
            yield Service(engine, settings, chat, drafting, mask, sources)


def context_for(model: Model, room: Room, **options: Any) -> Context:
    """A context with room for drafts besides that for texts: each text may have a sequence and a
    pass for them."""
    n_seq_max = 2 * room.n_slots + 2
    with model.context(n_ctx=N_CTX_UNIT, n_batch=n_seq_max, n_seq_max=n_seq_max, **options) as one:
        width = one.exact_width
    n_ctx = (room.n_ctx or _default_n_ctx(model, room)) + room.n_slots * (width or N_CTX_UNIT)
    n_batch = max(width or N_BATCH, n_seq_max)
    return model.context(n_ctx=n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, **options)


def _default_n_ctx(model: Model, room: Room) -> int:
    return room.n_slots * min(N_CTX, model.n_ctx_train or N_CTX)


def _default_mask(context: Context, drafting: Drafting) -> LayerMask | None:
    found = prepared(
        context,
        drafting.draft,
        options=drafting.options,
        mask=drafting.mask,
        profile=drafting.profile,
    )
    return None if found is None else found.mask


def listening(host: str, port: int) -> socket.socket:
    """Raises ArgumentError where nothing can listen there."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where the protocol is named
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as error:
        reason = error.strerror or error
        raise ArgumentError(f"cannot listen on {host}, port {port}: {reason}") from None


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


def run(
    service: Service,
    listener: socket.socket,
    *,
    grace_s: float = GRACE_S,
    ready: Callable[[], None] = lambda: None,
    log_requests: bool = False,
) -> None:
    """Answer requests until a signal ends it: then no more are taken, and those that there are have
    a time of grace. ready: called when the first request can come. log_requests: one line on stderr
    for each answer."""
    sys.setswitchinterval(SWITCH_S)
    with suppress(KeyboardInterrupt):  # uvicorn passes the signal on when it has ended
        server = web(service, listener, grace_s=grace_s, ready=ready, log_requests=log_requests)
        server.run(sockets=[listener])


def web(
    service: Service,
    listener: socket.socket,
    *,
    grace_s: float = GRACE_S,
    ready: Callable[[], None] = lambda: None,
    log_requests: bool = False,
) -> uvicorn.Server:
    """The server that `run` runs, for those who end it in another way."""
    host = listener.getsockname()[0]
    if is_loopback(host):
        names = {*LOOPBACK, host}
        service.settings = replace(service.settings, hosts=tuple(sorted(names)))
    config = uvicorn.Config(
        app.make(service),
        log_level="info" if log_requests else "warning",
        log_config=_log_config(),
        access_log=log_requests,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=ceil(grace_s) + CUT_S,
    )
    return _Server(config, ready, partial(service.engine.end, grace_s))


def _log_config() -> dict[str, Any]:
    """Uvicorn's, with requests on stderr: stdout is for what other programs read."""
    config = deepcopy(uvicorn.config.LOGGING_CONFIG)
    config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return config


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], end: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._end = end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("uvicorn.error").addFilter(_in_one_line)
        self._end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A closed terminal ends the server as SIGTERM does, which uvicorn handles."""
        with super().capture_signals():
            closed = getattr(signal, "SIGHUP", None)
            is_main = threading.current_thread() is threading.main_thread()
            if closed is None or not is_main or signal.getsignal(closed) is signal.SIG_IGN:
                yield
                return
            former = signal.signal(closed, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(closed, former)


def _in_one_line(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log when the server ends: how many requests were cut off, without a
    traceback for each of them."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, CancelledError | KeyboardInterrupt):
        return False
    if str(record.msg).startswith("Cancel %s running task(s)"):
        record.msg = "the server has ended; requests that were cut off: %s"
    return True
