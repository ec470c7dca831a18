"""The web application: routes, access checks and error handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request, params
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..errors import SelfSpecError
from ..util.paths import on_one_line
from .embeddings.embedding_service import EmbeddingService
from .endpoints import (
    chat,
    completions,
    embeddings,
    infill,
    lora,
    messages,
    rerank,
    responses,
    slots,
    tokens,
)
from .endpoints.embeddings import EmbeddingRequest
from .endpoints.infill import InfillRequest
from .endpoints.messages_request import CountRequest, MessagesRequest
from .endpoints.rerank import RerankRequest
from .endpoints.responses_request import ResponsesRequest
from .endpoints.slots import SlotRequest
from .endpoints.tokens import DetokenizeRequest, TokenizeRequest
from .metrics import CONTENT_TYPE, Metrics
from .protocol.adapters import AdapterScale
from .protocol.auth import require_host, require_key
from .protocol.body_limit import BodyLimit
from .protocol.browsers import allow_origins
from .protocol.errors import ApiError, ErrorBody, error_response, json_response, unsupported
from .protocol.events import ClientGone, no_response
from .protocol.head import HeadAsGet
from .protocol.schemas import ChatRequest, CompletionRequest
from .protocol.writers import SSE
from .service import Service
from .static_files import Page

N_PATH = 200  # characters of a path that an error repeats


def _errors(body: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {
        "4XX": {"model": body, "description": "The request is invalid or refused."},
        "5XX": {"model": body, "description": "The server failed."},
    }


# Exceptions that requests cause. All others are logged too.
EXPECTED = (ApiError, SelfSpecError, HTTPException, RequestValidationError, RecursionError)
MESSAGE_ERRORS = _errors(messages.MessageError)
STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {SSE: {}}}}


AnyService = Service | EmbeddingService
# The endpoints of models that write text.
WRITING = (
    "/v1/completions", "/infill", "/v1/chat/completions", messages.PATH,
    f"{messages.PATH}/count_tokens", responses.PATH, "/apply-template",
)  # fmt: skip


def make(service: AnyService) -> FastAPI:
    """Return the application, for uvicorn or another ASGI server."""
    settings = service.settings

    async def check_access(request: Request) -> None:
        require_host(request, settings.hosts)
        require_key(request, settings.keys)

    async def check_host(request: Request) -> None:
        require_host(request, settings.hosts)

    app = FastAPI(
        title="pyselfspec",
        version=__version__,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        responses=_errors(ErrorBody),
    )
    guarded = [Depends(check_access)]
    if isinstance(service, EmbeddingService):
        _add_embeddings(app, service, guarded)
    else:
        for add in (
            _add_completions, _add_chats, _add_template, _add_slots, _refuse_embeddings,
        ):  # fmt: skip
            add(app, service, guarded)
    _add_tokens(app, service, guarded)
    _add_models(app, service, guarded)

    @app.get("/health", dependencies=[Depends(check_host)])
    async def get_health() -> Response:
        if not service.engine.is_alive:
            raise ApiError(503, "the engine has stopped; restart the server")
        return json_response({"status": "ok"})

    fallback = _PageOrError(_methods(app))
    app.mount("/", fallback, name="page")
    app.router.default = fallback  # no mount matches a path with a newline
    for kind in (*EXPECTED, Exception):
        app.add_exception_handler(kind, _error)
    app.add_exception_handler(ClientGone, no_response)
    app.add_middleware(BodyLimit, n_bytes=settings.n_bytes)
    allow_origins(app, settings.origins)
    app.add_middleware(HeadAsGet)
    app.add_middleware(_RequestCounter, metrics=service.metrics, paths=tuple(_paths(app)))
    return app


def _add_completions(app: FastAPI, service: Service, guarded: Sequence[params.Depends]) -> None:
    """Add the routes of completions of texts."""

    @app.post("/v1/completions", dependencies=guarded, responses=STREAMS)
    async def post_completions(body: CompletionRequest, request: Request) -> Response:
        return await completions.complete(service, body, request)

    @app.post("/infill", dependencies=guarded, responses=STREAMS)
    async def post_infill(body: InfillRequest, request: Request) -> Response:
        return await infill.infill(service, body, request)


def _add_chats(app: FastAPI, service: Service, guarded: Sequence[params.Depends]) -> None:
    """Add the routes of chats."""

    @app.post("/v1/chat/completions", dependencies=guarded, responses=STREAMS)
    async def post_chat(body: ChatRequest, request: Request) -> Response:
        return await chat.answer(service, body, request)

    @app.post(messages.PATH, dependencies=guarded, responses=STREAMS | MESSAGE_ERRORS)
    async def post_messages(body: MessagesRequest, request: Request) -> Response:
        return await messages.answer(service, body, request)

    @app.post(f"{messages.PATH}/count_tokens", dependencies=guarded, responses=MESSAGE_ERRORS)
    async def post_count_tokens(body: CountRequest) -> Response:
        return await messages.count(service, body)

    @app.post(responses.PATH, dependencies=guarded, responses=STREAMS)
    async def post_responses(body: ResponsesRequest, request: Request) -> Response:
        return await responses.answer(service, body, request)

    @app.get(f"{responses.PATH}/{{name}}", dependencies=guarded)
    async def get_response(name: str, request: Request) -> Response:
        return responses.get(service, name, request)

    @app.delete(f"{responses.PATH}/{{name}}", dependencies=guarded)
    async def delete_response(name: str, request: Request) -> Response:
        return responses.delete(service, name, request)


def _add_embeddings(
    app: FastAPI, service: EmbeddingService, guarded: Sequence[params.Depends]
) -> None:
    """Add the routes of embeddings and scores, and refusals of requests for text."""

    @app.post("/v1/embeddings", dependencies=guarded)
    async def post_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        return await embeddings.embed(service, body, request)

    async def post_rerank(body: RerankRequest, request: Request) -> Response:
        return await rerank.rerank(service, body, request)

    for path in rerank.PATHS:
        app.post(path, dependencies=guarded)(post_rerank)

    async def refuse() -> Response:
        raise service.refusal()

    for path in WRITING:
        app.post(path, dependencies=guarded, include_in_schema=False)(refuse)


def _refuse_embeddings(app: FastAPI, service: Service, guarded: Sequence[params.Depends]) -> None:
    """Add refusals in place of the routes of embeddings and scores."""

    async def refuse() -> Response:
        raise unsupported(
            "model",
            f"{service.settings.name} generates text; start a server with a model made for "
            "embeddings or scores",
        )

    for path in ("/v1/embeddings", *rerank.PATHS):
        app.post(path, dependencies=guarded, include_in_schema=False)(refuse)


def _add_tokens(app: FastAPI, service: AnyService, guarded: Sequence[params.Depends]) -> None:
    """Add the routes of tokens."""

    @app.post("/tokenize", dependencies=guarded)
    async def post_tokenize(body: TokenizeRequest) -> Response:
        return await tokens.tokenize(service.model, body)

    @app.post("/detokenize", dependencies=guarded)
    async def post_detokenize(body: DetokenizeRequest) -> Response:
        return await tokens.detokenize(service.model, body)


def _add_template(app: FastAPI, service: Service, guarded: Sequence[params.Depends]) -> None:
    """Add the route of prompts of chats."""

    @app.post("/apply-template", dependencies=guarded)
    async def post_apply_template(body: ChatRequest) -> Response:
        return await tokens.apply_template(service, body)


def _add_slots(app: FastAPI, service: Service, guarded: Sequence[params.Depends]) -> None:
    """Add the routes of slots, and of the LoRA adapters of their texts."""

    @app.get(lora.PATH, dependencies=guarded)
    async def get_adapters() -> Response:
        return await lora.show(service)

    @app.post(lora.PATH, dependencies=guarded)
    async def post_adapters(body: list[AdapterScale]) -> Response:
        return await lora.change(service, body)

    @app.get("/slots", dependencies=guarded)
    async def get_slots() -> Response:
        return await slots.show(service)

    @app.post("/slots/{number}", dependencies=guarded)
    async def post_slot(
        number: int, action: slots.Action, request: Request, body: SlotRequest | None = None
    ) -> Response:
        return await slots.act(service, number, action, body, request)


def _add_models(app: FastAPI, service: AnyService, guarded: Sequence[params.Depends]) -> None:
    """Add the routes of the model and the server."""

    @app.get("/v1/models", dependencies=guarded)
    async def get_models(request: Request) -> Response:
        card = service.card()
        if messages.is_for(request):
            return json_response(messages.model_list([card]))
        return json_response({"object": "list", "data": [card]})

    @app.get("/v1/models/{name:path}", dependencies=guarded)
    async def get_model(name: str, request: Request) -> Response:
        own = service.settings.name
        if name != own:
            raise ApiError(
                404,
                f"this server has one model, {own!r}, not {on_one_line(name[:N_PATH])!r}",
                param="model",
            )
        card = service.card()
        return json_response(messages.model_card(card) if messages.is_for(request) else card)

    @app.get("/props", dependencies=guarded)
    async def get_props() -> Response:
        return json_response(service.props())

    @app.get("/metrics", response_class=PlainTextResponse, dependencies=guarded)
    async def get_metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


async def _error(request: Request, error: Exception) -> Response:
    """Handle any exception of an endpoint."""
    return error_response(error, messages.error_form(request))


def _methods(app: FastAPI) -> dict[str, set[str]]:
    """Return the methods of every route, by path."""
    found: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route):
            found.setdefault(route.path, set()).update(route.methods or ())
    return found


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


def _paths(app: FastAPI) -> list[str]:
    return [path for route in app.routes if (path := getattr(route, "path", ""))]


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
