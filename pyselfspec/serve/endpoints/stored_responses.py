"""/v1/responses/ID: responses that later requests read, delete, go on from and refer to."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from ..protocol.auth import owner_of
from ..protocol.errors import ApiError, invalid, json_response
from ..service import Service
from ..store.response_store import Stored
from .responses_request import N_ID, REFERENCE, Item, ResponsesRequest, resolved
from .routers import Writing, router

ROUTER = router()

PATH = "/v1/responses"
N_LISTED = 100  # items of a list


def not_found(name: str) -> str:
    """Return the message for an id that no stored response has."""
    return f"there is no response {name[:N_ID]!r} of this API key; the server keeps the latest ones"


def conversation(service: Service, body: ResponsesRequest, request: Request) -> list[Item]:
    """Return the items that a request is about, with stored ones that it names. Raises ApiError for
    names of others."""
    owner, name = owner_of(request), body.previous_response_id
    items, before = body.items, []
    if any(item.get("type") == REFERENCE for item in items):
        items = resolved(items, service.stored.outputs(owner))
    if name is not None:
        found = service.stored.get(owner, name)
        if found is None:
            raise ApiError(
                400,
                f"{not_found(name)}; send the whole conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        before = [*found.items, *found.body["output"]]
    return [*before, *items]


@ROUTER.get(f"{PATH}/{{name}}")
async def get_response(service: Writing, name: str, request: Request) -> Response:
    """Return a response that this key has made."""
    return json_response(_stored(service, name, request).body)


@ROUTER.get(f"{PATH}/{{name}}/input_items")
async def get_input_items(
    service: Writing,
    name: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=N_LISTED)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """Return the items of the conversation that a response answers. after: the id of an item."""
    items = _stored(service, name, request).items[:: 1 if order == "asc" else -1]
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise invalid(
                "after", f"after is {after[:N_ID]!r}; give the id of an item of this response"
            )
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
    body = {"object": "list", "data": page, "has_more": len(items) > limit}
    return json_response(body | ends)


@ROUTER.delete(f"{PATH}/{{name}}")
async def delete_response(service: Writing, name: str, request: Request) -> Response:
    """Remove a response that this key has made."""
    if service.stored.pop(owner_of(request), name) is None:
        raise ApiError(404, not_found(name))
    return json_response({"id": name, "object": "response.deleted", "deleted": True})


def _stored(service: Service, name: str, request: Request) -> Stored:
    found = service.stored.get(owner_of(request), name)
    if found is None:
        raise ApiError(404, not_found(name))
    return found
