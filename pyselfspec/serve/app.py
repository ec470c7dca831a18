"""The web application: routes, access checks and error handlers."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..util.paths import on_one_line
from .embeddings.embedding_service import EmbeddingService
from .endpoints import (
    chat,
    completions,
    embeddings,
    infill,
    input_tokens,
    lora,
    messages,
    models,
    ollama,
    rerank,
    responses,
    slots,
    stored_responses,
    tokens,
)
from .endpoints.api_forms import handle_errors
from .endpoints.models import N_PATH
from .endpoints.routers import router
from .metrics import Metrics
from .protocol.middleware import BodyLimit, HeadAsGet, allow_origins
from .service import Service
from .static_files import Page

AnyService = Service | EmbeddingService
# Endpoints of models that generate text, of embedding models, and of all models.
WRITING = (
    completions.ROUTER,
    infill.ROUTER,
    chat.ROUTER,
    messages.ROUTER,
    responses.ROUTER,
    stored_responses.ROUTER,
    input_tokens.ROUTER,
    ollama.WRITING,
)
SLOTS = (slots.ROUTER, lora.ROUTER)
EMBEDDING = (embeddings.ROUTER, rerank.ROUTER, ollama.EMBEDDING)
ALWAYS = (tokens.ROUTER, models.ROUTER, ollama.ROUTER)


def make(service: AnyService) -> FastAPI:
    """Return the application, for uvicorn or another ASGI server."""
    settings = service.settings
    app = FastAPI(
        title="pyselfspec",
        version=__version__,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.service = service
    is_writing = isinstance(service, Service)
    own, others = ((*WRITING, *SLOTS), EMBEDDING) if is_writing else (EMBEDDING, WRITING)
    # one by one, since fastapi may keep an included router as one route without a path
    for each in (*own, *ALWAYS):
        app.router.routes += each.routes
    app.router.routes += _refusals(service, others).routes + models.HEALTH.routes

    methods: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route):
            methods.setdefault(route.path, set()).update(route.methods or ())
    fallback = _PageOrError(methods)
    app.mount("/", fallback, name="page")
    app.router.default = fallback  # no mount matches a path with a newline
    handle_errors(app)
    app.add_middleware(BodyLimit, n_bytes=settings.n_bytes)
    allow_origins(app, settings.origins)
    app.add_middleware(HeadAsGet)
    paths = tuple(path for route in app.routes if (path := getattr(route, "path", "")))
    app.add_middleware(_RequestCounter, metrics=service.metrics, paths=paths)
    return app


def _refusals(service: AnyService, routers: Sequence[APIRouter]) -> APIRouter:
    """Return a router that refuses requests to endpoints which this model cannot answer."""
    refusing = router()

    async def refuse() -> Response:
        raise service.refusal()

    for each in routers:
        for route in each.routes:
            if isinstance(route, Route) and "POST" in (route.methods or ()):
                refusing.post(route.path, include_in_schema=False)(refuse)
    return refusing


class _PageOrError:
    """ASGI app for requests without a route: serves the page's files, or an error that lists the
    routes. methods: those of the routes, by path."""

    def __init__(self, methods: dict[str, set[str]]) -> None:
        self._methods = methods
        self._page = Page()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        is_file = path in self._page.paths
        allowed = self._methods.get(path, {"GET", "HEAD"} if is_file else set())
        if is_file and method in allowed:
            await self._page(scope, receive, send)
        elif allowed:
            names = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
            raise HTTPException(405, f"{path} is for {names}, not {method}", {"Allow": names})
        else:
            raise HTTPException(
                404,
                f"{on_one_line(path[:N_PATH])} is not served; use /v1/chat/completions, "
                "/v1/completions or /v1/models",
            )


class _RequestCounter:
    """ASGI middleware that counts requests. Unknown paths share one label, so that clients cannot
    fill the memory with labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: tuple[str, ...]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)
