"""Sets up a service from a model and runs it with uvicorn."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ..errors import ArgumentError
from ..runtime import vocabulary
from ..runtime.context import Context
from ..runtime.context_options import N_CTX, N_CTX_UNIT
from ..runtime.embedding import EmbeddingContext
from ..runtime.model import Model
from ..runtime.projector import Projector
from ..runtime.projector_trial import require_sound
from ..runtime.sampling import Sampler
from ..speculate.config import DraftConfig
from ..speculate.drafters import ngram
from ..speculate.resolve import resolve
from ..templates.rendering import Worker
from ..templates.template import ChatTemplate
from . import app
from .drafter_labels import corpus_of, usable_drafters
from .embeddings.embedding_engine import EmbeddingEngine
from .embeddings.embedding_service import EmbeddingService
from .engine.engine import Engine
from .protocol.auth import LOOPBACK
from .service import Service
from .settings import GRACE_S, Capacity, Settings
from .store.prefixes import Prefixes, PrefixFiles
from .store.slot_files import SlotFiles
from .store.snapshot_file import Compatibility

N_BATCH = 512  # rows of a pass where no width is exact
N_PICTURE_ROWS = 512  # of an image whose rows see each other
SWITCH_S = 0.0005  # Python's thread switch interval: about one pass of a small model
BACKLOG = 128
CUT_S = 2  # in which clients learn that their answers were cut off


@contextmanager
def open_service(
    model: Model,
    settings: Settings,
    *,
    capacity: Capacity,
    drafting: DraftConfig,
    template: str | None = None,
    mmproj: Path | None = None,
    **options: Any,
) -> Iterator[Service]:
    """Yield a service for a model. options: arguments of its Context.

    template: a chat template or the name of a fallback; None for the model's own, if it has one.
    mmproj: the projector file, for images; None: images are refused.

    Raises the errors of Context, Projector, ChatTemplate and `resolve`, and ArgumentError for a
    default grammar that is not valid.
    """
    if settings.sampling.grammar is not None:
        Sampler(model, settings.sampling).close()  # the first request would be too late
    with ExitStack() as stack:
        chat, renders = None, Worker()
        stack.callback(renders.end)
        if template is not None or (model.has_vocab and vocabulary.chat_template(model)):
            chat = ChatTemplate.of(model, template, worker=renders)
        projector = None
        if mmproj is not None:
            require_sound(model.path, mmproj)
            n_threads = options.get("n_threads")
            projector = stack.enter_context(Projector(model, mmproj, n_threads=n_threads))
        n_rows = 0 if projector is None else N_PICTURE_ROWS
        context = stack.enter_context(make_context(model, capacity, n_rows=n_rows, **options))
        n_cells = capacity.n_ctx or _default_n_ctx(model, capacity)
        if (folder := corpus_of(drafting)) is not None:
            ngram.open_corpus(context, folder)  # before the first request
        default, drafter_names = resolve(context, drafting), usable_drafters(context, drafting)
        mask = None if default is None else default.mask
        files = prefixes = None
        if capacity.cache_dir is not None:
            files = PrefixFiles(capacity.cache_dir, Compatibility.of(context))
        if files is not None or capacity.cache_bytes:
            prefixes = Prefixes(capacity.cache_bytes, files)
        with Engine(
            context,
            n_slots=capacity.n_slots,
            n_queue=capacity.n_queue,
            n_cells=n_cells,
            prefixes=prefixes,
        ) as engine:
            service = Service(engine, settings, chat, drafting, mask, drafter_names, projector)
            service.renders = renders
            service.slot_files = SlotFiles.of(context, capacity.slot_dir)
            yield service


@contextmanager
def open_embedding_service(
    model: Model, settings: Settings, *, capacity: Capacity, **options: Any
) -> Iterator[EmbeddingService]:
    """Yield a service of embeddings or scores. options: arguments of EmbeddingContext.

    Raises the errors of EmbeddingContext.
    """
    context = EmbeddingContext(model, n_ctx=capacity.n_ctx, **options)
    with EmbeddingEngine(context, capacity.n_queue) as engine:
        yield EmbeddingService(engine, settings)


def make_context(model: Model, capacity: Capacity, *, n_rows: int = 0, **options: Any) -> Context:
    """Return a context with a pass of cells per slot, and where the memory can have branches, a
    second sequence for drafts. n_rows: rows that a pass must have room for."""
    n_seq_max = 2 * capacity.n_slots + 2
    with model.context(n_ctx=N_CTX_UNIT, n_batch=n_seq_max, n_seq_max=n_seq_max, **options) as one:
        width = one.abilities.exact_width
        if one.abilities.has_states:  # which are large, and have no branches
            n_seq_max = capacity.n_slots
    n_ctx = (capacity.n_ctx or _default_n_ctx(model, capacity)) + capacity.n_slots * (
        width or N_CTX_UNIT
    )
    n_batch = max(width or N_BATCH, n_seq_max, n_rows)
    return model.context(n_ctx=n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, **options)


def _default_n_ctx(model: Model, capacity: Capacity) -> int:
    return capacity.n_slots * min(N_CTX, model.n_ctx_train or N_CTX)


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ArgumentError if the address cannot be used."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only if the protocol is given
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


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until a signal; then accept no more requests and finish the running ones."""
    sys.setswitchinterval(SWITCH_S)
    with suppress(KeyboardInterrupt):  # uvicorn passes the signal on when it has ended
        server.run(sockets=[listener])


def make_server(
    service: app.AnyService,
    listener: socket.socket,
    *,
    grace_s: float = GRACE_S,
    ready: Callable[[], None] = lambda: None,
    log_requests: bool = False,
) -> uvicorn.Server:
    """Return a server for `run`.

    grace_s: seconds to finish requests after a signal. ready: called when the server accepts
    requests. log_requests: write a line to stderr for each response.
    """
    service.settings = with_hosts(service.settings, listener)
    config = web_config(
        app.make(service),
        grace_s,
        log_level="info" if log_requests else "warning",
        access_log=log_requests,
        lifespan="off",
    )
    return GracefulServer(config, ready, partial(service.end, grace_s))


def with_hosts(settings: Settings, listener: socket.socket) -> Settings:
    """Return settings that allow only names of this machine as Host, where no other can connect."""
    host = listener.getsockname()[0]
    names = tuple(sorted({*LOOPBACK, host}))
    return replace(settings, hosts=names) if is_loopback(host) else settings


def web_config(app: ASGIApp, grace_s: float, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration. grace_s: as for `make_server`. options: others of its own."""
    logs = deepcopy(uvicorn.config.LOGGING_CONFIG)
    logs["handlers"]["access"]["stream"] = "ext://sys.stderr"  # stdout is for programs
    end_s = ceil(grace_s) + CUT_S
    return uvicorn.Config(
        app, log_config=logs, server_header=False, timeout_graceful_shutdown=end_s, **options
    )


class GracefulServer(uvicorn.Server):
    """A server that says when it is ready and, at shutdown, ends what it serves first."""

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
        def shorten(record: logging.LogRecord) -> bool:
            """Log the number of requests that are cut off, without tracebacks."""
            error = record.exc_info[1] if record.exc_info else None
            if str(record.msg).startswith("Cancel %s running task(s)"):
                record.msg = "the server has stopped; requests cut off: %s"
            return not isinstance(error, CancelledError | KeyboardInterrupt)

        logging.getLogger("uvicorn.error").addFilter(shorten)
        self._end()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves it out after a second Ctrl-C
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGHUP, sent when the terminal closes, end the server as SIGTERM does."""
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
