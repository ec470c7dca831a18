"""POST /v1/responses/input_tokens and /v1/chat/completions/input_tokens: the size of a prompt."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ..chat_requests.chats import chat_tokens
from ..chat_requests.tools import ToolUse
from ..protocol.errors import json_response
from ..protocol.schemas import ChatRequest
from ..service import Service
from .responses_request import ResponsesRequest, to_chat
from .routers import Writing, aside, router
from .stored_responses import PATH, conversation

ROUTER = router()


async def n_prompt(service: Service, body: ChatRequest) -> int:
    """Return the number of tokens of the prompt of a chat."""
    tokens, _ = await aside(chat_tokens, service, body, ToolUse.of(body))
    return len(tokens)


@ROUTER.post("/v1/chat/completions/input_tokens")
async def post_chat_tokens(service: Writing, body: ChatRequest) -> Response:
    """Return the number of tokens of the prompt of a chat."""
    return _counted(await n_prompt(service, body))


@ROUTER.post(f"{PATH}/input_tokens")
async def post_tokens(service: Writing, body: ResponsesRequest, request: Request) -> Response:
    """Return the number of tokens that a response would read."""
    chat = to_chat(body, conversation(service, body, request))
    return _counted(await n_prompt(service, chat))


def _counted(n: int) -> Response:
    return json_response({"object": "response.input_tokens", "input_tokens": n})
