"""GET /v1/models, /props, /metrics and /health: the model, and the state of the server."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...util.paths import on_one_line
from .. import model_card
from ..metrics import CONTENT_TYPE
from ..protocol.errors import ApiError, json_response
from . import messages
from .routers import Serving, router

N_PATH = 200  # characters of a path that an error repeats
ROUTER, HEALTH = router(), router(is_open=True)


def _card(service: Serving) -> dict[str, Any]:
    return model_card.card(service.settings.name, service.created_at, service.file_card())


@ROUTER.get("/models", include_in_schema=False)
@ROUTER.get("/v1/models")
async def get_models(service: Serving, request: Request) -> Response:
    """Return the list of models."""
    card = _card(service)
    if messages.is_for(request):
        return json_response(messages.model_list([card]))
    return json_response({"object": "list", "data": [card]})


@ROUTER.get("/v1/models/{name:path}")
async def get_model(service: Serving, name: str, request: Request) -> Response:
    """Return the entry of a model in the list."""
    own = service.settings.name
    if name != own:
        raise ApiError(
            404,
            f"this server has one model, {own!r}, not {on_one_line(name[:N_PATH])!r}",
            param="model",
        )
    card = _card(service)
    return json_response(messages.model_card(card) if messages.is_for(request) else card)


@ROUTER.get("/props")
async def get_props(service: Serving) -> Response:
    """Return a description of model and server."""
    return json_response(service.props())


@ROUTER.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(service: Serving) -> Response:
    """Return counts for Prometheus."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


@HEALTH.get("/v1/health", include_in_schema=False)
@HEALTH.get("/health")
async def get_health(service: Serving) -> Response:
    """Return whether the engine runs."""
    if not service.engine.is_alive:
        raise ApiError(503, "the engine has stopped; restart the server")
    return json_response({"status": "ok"})
