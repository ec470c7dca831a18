"""GET /slots and POST /slots/{id}?action=save, restore or erase, in llama-server's format.

Texts are not shown: a slot may hold a conversation of another client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ..engine.slots import Slots
from ..protocol.auth import owner_of
from ..protocol.errors import ApiError, invalid, json_response, unsupported
from ..service import Service
from ..store.slot_files import copy_of, require_own, restore
from .routers import Writing, router

ROUTER = router()

T = TypeVar("T")
Action = Literal["save", "restore", "erase"]


class SlotRequest(BaseModel):
    """POST /slots/{id}. filename: for save and restore."""

    filename: str | None = None


@ROUTER.get("/slots")
async def get_slots(service: Writing) -> Response:
    """Return the state of every slot."""
    n_ctx = service.requests.n_ctx
    drafts = service.requests.default_drafting.draft is not None

    def states(slots: Slots) -> list[dict[str, Any]]:
        return [
            {
                "id": i,
                "id_task": slot.used_at if slot.used_at else -1,
                "n_ctx": n_ctx,
                "speculative": drafts,
                "is_processing": not slot.is_idle,
                "n_tokens": slot.seq.n_past,
            }
            for i, slot in enumerate(slots.slots)
        ]

    return json_response(await _between_passes(service, states))


@ROUTER.post("/slots/{id_slot}")
async def post_slot(
    service: Writing,
    id_slot: int,
    action: Action,
    request: Request,
    body: SlotRequest | None = None,
) -> Response:
    """Save, restore or erase the contents of a slot."""
    n_slots = service.engine.n_slots
    if not 0 <= id_slot < n_slots:
        raise ApiError(404, f"there is no slot {id_slot}; this server has 0 to {n_slots - 1}")
    owner, name, start = owner_of(request), body.filename if body else None, time.monotonic()
    if action == "erase":

        def erase(slots: Slots) -> int:
            require_own(slots.slots[id_slot], owner)
            return slots.erase(slots.slots[id_slot])

        n = await _between_passes(service, erase)
        return json_response({"id_slot": id_slot, "n_erased": n})
    files = service.slot_files
    if files is None:
        raise unsupported(
            "action", f"{action} needs a folder; start the server with --slot-save-path"
        )
    if name is None:
        raise invalid("filename", f"{action} needs a filename")

    if action == "save":
        saved = await _between_passes(service, lambda slots: copy_of(slots.slots[id_slot], owner))
        n_bytes = await asyncio.to_thread(files.write, name, saved, owner)
    else:
        read, n_bytes = await asyncio.to_thread(files.read, name, owner)
        saved = read
        await _between_passes(
            service, lambda slots: restore(slots, slots.slots[id_slot], read, owner)
        )
    verb, done = ("saved", "written") if action == "save" else ("restored", "read")
    fields: dict[str, Any] = {"id_slot": id_slot, "filename": name}
    fields |= {f"n_{verb}": len(saved.tokens), f"n_{done}": n_bytes}
    ms = 1000 * (time.monotonic() - start)
    return json_response(fields | {"timings": {f"{action}_ms": ms}})


async def _between_passes(service: Service, function: Callable[[Slots], T]) -> T:
    return await asyncio.wrap_future(service.engine.call(function))
