"""GET and POST /lora-adapters: the adapters of the server and their scales, in the format of
llama-server."""

from __future__ import annotations

from starlette.responses import Response

from ..protocol.adapters import AdapterScale
from ..protocol.errors import json_response
from ..service import Service

PATH = "/lora-adapters"


async def show(service: Service) -> Response:
    """Handle a request for the list of adapters."""
    return json_response(service.requests.adapters.cards())


async def change(service: Service, scales: list[AdapterScale]) -> Response:
    """Handle a request for other scales; adapters that it leaves out have scale 0. Texts that have
    begun keep theirs. Raises ArgumentError for ids that no adapter has."""
    adapters = service.requests.adapters
    adapters.defaults = adapters.chosen(scales)
    return json_response({"success": True})
