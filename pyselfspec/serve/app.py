"""The web application: which path is answered by what, and who may ask."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..errors import SelfSpecError
from ..util.paths import on_one_line
from . import chat, completions
from .answers import SSE
from .auth import require_host, require_key
from .errors import ApiError, ErrorBody, handle, json_response, unsupported
from .limits import BodyLimit
from .metrics import CONTENT_TYPE, Metrics
from .page import Page
from .schemas import ChatRequest, CompletionRequest, EmbeddingRequest
from .service import ClientGone, Service

GONE = 499  # nobody reads it
N_PATH = 200  # characters of a path that an error repeats
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "What is wrong with the request."},
    "5XX": {"model": ErrorBody, "description": "What the server could not do."},
}
# Where errors of requests are answered; what else there is, is logged as well.
KNOWN = (ApiError, SelfSpecError, HTTPException, RequestValidationError, RecursionError)
STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {SSE: {}}}}


def make(service: Service) -> FastAPI:
    """The application for uvicorn or any other ASGI server."""
    settings = service.settings

    async def may_ask(request: Request) -> None:
        require_host(request, settings.hosts)
        require_key(request, settings.key)

    async def is_here(request: Request) -> None:
        require_host(request, settings.hosts)

    app = FastAPI(
        title="pyselfspec",
        version=__version__,
        docs_url=None,  # they would load scripts of foreign hosts
        redoc_url=None,
        responses=ERRORS,
    )
    guarded = [Depends(may_ask)]

    @app.post("/v1/completions", dependencies=guarded, responses=STREAMS)
    async def post_completions(asked: CompletionRequest, request: Request) -> Response:
        return await completions.complete(service, asked, request)

    @app.post("/v1/chat/completions", dependencies=guarded, responses=STREAMS)
    async def post_chat(asked: ChatRequest, request: Request) -> Response:
        return await chat.answer(service, asked, request)

    @app.post("/v1/embeddings", dependencies=guarded)
    async def post_embeddings(asked: EmbeddingRequest) -> Response:
        raise unsupported("model", f"{settings.name} writes text; this server has no embeddings")

    @app.get("/v1/models", dependencies=guarded)
    async def get_models() -> Response:
        return json_response({"object": "list", "data": [service.card()]})

    @app.get("/v1/models/{name:path}", dependencies=guarded)
    async def get_model(name: str) -> Response:
        if name != settings.name:
            raise ApiError(404, f"this server has one model, {settings.name}", param="model")
        return json_response(service.card())

    @app.get("/props", dependencies=guarded)
    async def get_props() -> Response:
        return json_response(service.props())

    @app.get("/metrics", dependencies=guarded, response_class=PlainTextResponse)
    async def get_metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/health", dependencies=[Depends(is_here)])
    async def get_health() -> Response:
        if not service.engine.is_alive:
            raise ApiError(503, "the engine has ended")
        return json_response({"status": "ok"})

    elsewhere = _Elsewhere(_methods(app))
    app.mount("/", elsewhere, name="page")
    app.router.default = elsewhere  # no mount matches a path with a newline
    for kind in (*KNOWN, Exception):
        app.add_exception_handler(kind, handle)
    app.add_exception_handler(ClientGone, _nobody)
    app.add_middleware(BodyLimit, n_bytes=settings.n_bytes)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    app.add_middleware(_Counted, metrics=service.metrics, paths=tuple(_paths(app)))
    return app


async def _nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=GONE)


def _methods(app: FastAPI) -> dict[str, set[str]]:
    """The methods of every path that is served."""
    found: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route):
            found.setdefault(route.path, set()).update(route.methods or ())
    return found


class _Elsewhere:
    """ASGI app for requests that no route answers: the page's files, or an error that says what is
    served. methods: of the routes, by path."""

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
            names = ", ".join(sorted(allowed))
            raise HTTPException(405, f"{path} is for {names}, not {method}", {"Allow": names})
        else:
            raise HTTPException(
                404,
                f"{on_one_line(path[:N_PATH])} is not served; use /v1/chat/completions, "
                "/v1/completions or /v1/models",
            )


def _paths(app: FastAPI) -> list[str]:
    return [path for route in app.routes if (path := getattr(route, "path", ""))]


class _Counted:
    """ASGI middleware: counts requests. Paths that there are not share one name, so that nobody can
    fill the memory with them."""

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
