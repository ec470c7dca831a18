"""The web application of several models: it chooses the model of a request and forwards it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...util.paths import on_one_line
from .. import model_card
from ..endpoints import messages, ollama, ollama_request, stored_responses
from ..endpoints.api_forms import handle_errors
from ..protocol.auth import require_host, require_key
from ..protocol.errors import ApiError, json_response
from ..protocol.events import until_disconnect
from ..protocol.middleware import BodyLimit, allow_origins
from ..settings import Settings
from ..static_files import Page
from .forwarding import Forwarding, respond, wants_stream
from .models import N_NAME
from .pool import Entry, Pool
from .process import Forwarded

PERIOD_S = 1.0  # between looks for models that have not been used
KEEP_S_MAX = 1e9  # more is for ever


class RouterApp:
    """Routes of the application. The first model is the one of requests that name none."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool = pool
        self.settings = settings
        self._created_at = int(time.time())

    def make(self) -> Starlette:
        """Return the application, for uvicorn."""
        methods = ["GET", "POST", "DELETE", "HEAD", "OPTIONS"]
        page = Page()  # for browsers, which have no key when they open it
        app = Starlette(
            routes=[
                *(Route(path, self._health) for path in ("/health", "/v1/health")),
                *(Route(path, self._models) for path in ("/models", "/v1/models")),
                Route("/v1/models/{name:path}", self._model),
                Route("/api/version", self._version),
                Route("/api/tags", self._tags),
                Route("/api/ps", self._loaded),
                *(Route(path, page) for path in sorted(page.paths)),
                Route("/{path:path}", self._forward, methods=methods),
            ],
            lifespan=self._lifespan,
        )
        handle_errors(app)
        app.add_middleware(BodyLimit, n_bytes=self.settings.n_bytes)
        allow_origins(app, self.settings.origins)
        return app

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async def unload_old() -> None:
            while True:
                await asyncio.sleep(PERIOD_S)
                await self._pool.unload_old()

        task = asyncio.create_task(unload_old())
        try:
            yield
        finally:
            task.cancel()
            await self._pool.close()

    def _check(self, request: Request) -> None:
        require_host(request, self.settings.hosts)
        require_key(request, self.settings.keys)

    async def _health(self, request: Request) -> Response:
        require_host(request, self.settings.hosts)
        return json_response({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        self._check(request)
        data = [self._card(each) for each in self._pool.entries.values()]
        if messages.is_for(request):
            return json_response(messages.model_list(data))
        return json_response({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        self._check(request)
        card = self._card(self._entry(request.path_params["name"]))
        return json_response(messages.model_card(card) if messages.is_for(request) else card)

    async def _version(self, request: Request) -> Response:
        self._check(request)
        return json_response(ollama.version())

    async def _tags(self, request: Request) -> Response:
        self._check(request)
        models = [each.model for each in self._pool.entries.values()]
        return json_response({"models": [ollama.entry(each.name, each.file) for each in models]})

    async def _loaded(self, request: Request) -> Response:
        self._check(request)
        found = [
            ollama.loaded_entry(each.model.name, each.model.file, self._pool.left_s(each))
            for each in self._pool.entries.values()
            if each.is_loaded
        ]
        return json_response({"models": found})

    def _card(self, entry: Entry) -> dict[str, Any]:
        card = model_card.card(entry.model.name, self._created_at, entry.model.file)
        return card | {"status": {"value": "loaded" if entry.is_loaded else "unloaded"}}

    def _entry(self, name: object) -> Entry:
        """Return the model of a name, the first without one. Raises ApiError for an unknown one."""
        entries = self._pool.entries
        if name in (None, ""):
            return next(iter(entries.values()))
        if not isinstance(name, str) or name not in entries:
            shown = on_one_line(str(name)[:N_NAME])
            raise ApiError(
                404,
                f"there is no model {shown!r}; this server has {', '.join(entries)}",
                param="model",
                code="model_not_found",
            )
        return entries[name]

    async def _forward(self, request: Request) -> Response:
        self._check(request)
        body = await request.body()
        fields: Any = {}
        with suppress(ValueError, RecursionError):  # the model's server refuses it
            fields = json.loads(body) if body else {}
        fields = fields if isinstance(fields, dict) else {}
        name = fields.get("model", request.query_params.get("model"))
        is_stored = request.scope["path"].startswith(f"{stored_responses.PATH}/")
        if name is None and is_stored and request.method != "POST":
            return await self._stored(request)
        if ollama_request.has_path(request):
            given = fields.get("name") if name is None else name  # as older clients call it
            name = ollama_request.served_name(given, self._pool.entries)
        entry = self._entry(name)
        keep_s = ollama_request.keep_seconds(fields.get("keep_alive"))
        if keep_s is None and fields.get("keep_alive") is not None:
            raise ApiError(400, 'keep_alive: give a number of seconds, or a text such as "5m"')
        if keep_s is not None:
            entry.keep_s = keep_s if keep_s < KEEP_S_MAX else float("inf")
        answer = self._answer(entry, request, body)
        if entry.is_loaded or not wants_stream(request, fields):
            return await answer
        return await respond(request, asyncio.create_task(answer))

    async def _stored(self, request: Request) -> Response:
        """Return the answer of the model that keeps a response. Models that are not loaded keep
        none."""
        for entry in [each for each in self._pool.entries.values() if each.is_loaded]:
            answer = await self._answer(entry, request, b"")
            if answer.status_code != 404:
                return answer
            await answer.close()
        rest = request.scope["path"].removeprefix(f"{stored_responses.PATH}/")
        raise ApiError(404, stored_responses.not_found(on_one_line(rest.partition("/")[0])))

    async def _answer(self, entry: Entry, request: Request, body: bytes) -> Forwarding:
        """Send a request to a model, which is loaded if it is not; return its answer."""
        stopped = ApiError(503, f"{entry.model.name} has stopped; try again")
        async with AsyncExitStack() as stack:
            work = stack.enter_async_context(
                self._pool.using(entry.model.name, self.settings.timeout_s)
            )
            running = await work
            answer = Forwarded(running.port)
            stack.callback(answer.close)
            try:
                head = await until_disconnect(request, answer.open(request, body))
            except ConnectionRefusedError:  # its process has ended a moment ago, and read nothing
                await running.end()
                return await self._answer(entry, request, body)
            except OSError:
                raise stopped from None
            kept = stack.pop_all()
        return Forwarding(answer, kept, request, head, stopped)
