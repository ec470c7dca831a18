"""GET and POST /lora-adapters: the adapters of the server and their scales, in the format of
llama-server."""

from __future__ import annotations

from starlette.responses import Response

from ..protocol.adapters import AdapterScale
from ..protocol.errors import json_response
from .routers import Writing, router

ROUTER = router()

PATH = "/lora-adapters"


@ROUTER.get(PATH)
async def get_adapters(service: Writing) -> Response:
    """Return the list of adapters."""
    return json_response(service.requests.adapters.cards())


@ROUTER.post(PATH)
async def post_adapters(service: Writing, body: list[AdapterScale]) -> Response:
    """Set other scales; those left out become 0. Texts that have begun keep theirs."""
    adapters = service.requests.adapters
    adapters.defaults = adapters.chosen(body)
    return json_response({"success": True})
