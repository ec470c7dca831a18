"""GET and POST /lora-adapters: the adapters of the server and their scales, in the format of
llama-server."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from ..protocol.errors import json_response
from ..protocol.schemas import AdapterScale
from .routers import Writing, router

ROUTER = router()

PATH = "/lora-adapters"


@ROUTER.get(PATH)
async def get_adapters(service: Writing) -> Response:
    """Return the list of adapters."""
    scales = {adapter.id: scale for adapter, scale in service.requests.adapters}
    return json_response(
        [
            {"id": each.id, "path": each.path.name, "scale": scales.get(each.id, 0.0)}
            for each in service.model.adapters
        ]
    )


@ROUTER.post(PATH)
async def post_adapters(service: Writing, body: list[AdapterScale]) -> Response:
    """Set other scales; those left out become 0. Texts that have begun keep theirs."""
    adapters = service.requests.chosen_adapters(body)
    service.requests = replace(service.requests, adapters=adapters)
    return json_response({"success": True})
