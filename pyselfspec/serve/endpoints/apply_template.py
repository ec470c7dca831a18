"""POST /apply-template: the prompt of a chat as text, in the format of llama-server."""

from __future__ import annotations

from starlette.responses import Response

from ..chat_requests.chats import chat_text, require_template
from ..chat_requests.tools import ToolUse
from ..engine.workers import aside
from ..protocol.errors import json_response
from ..protocol.schemas import ChatRequest
from .routers import Writing, router

ROUTER = router()


@ROUTER.post("/apply-template")
async def post_apply_template(service: Writing, body: ChatRequest) -> Response:
    """Return the prompt of a chat."""
    body.require_supported()
    template, use = require_template(service), ToolUse.of(body)
    return json_response({"prompt": await aside(chat_text, template, body, use)})
