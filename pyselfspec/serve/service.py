"""What all endpoints share: the model, the engine, and how a request becomes jobs and their events
an answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from starlette.requests import Request

from .. import __version__
from ..chat.template import ChatTemplate
from ..errors import MaskError
from ..gguf.chat_template import tells_speakers_apart
from ..masks.layer_mask import LayerMask
from ..runtime.model import Model
from ..runtime.sampling import SEED_MAX, SamplingParams
from ..speculate import drafters
from ..speculate.draft_names import COLON, SIGN, Names, split
from ..speculate.prepared import AUTO
from ..speculate.types import GenerationStats
from ..util.build import BUILD_ID
from .engine import Engine
from .errors import ApiError, as_api_error
from .jobs import Drafting, Event, Failed, Finished, Grown, Job, Origin, Started, Ticket
from .metrics import Metrics
from .schemas import MaskSettings, TextRequest
from .settings import Settings
from .sources import described, given_files

OFF = "off"  # as on the command line
N_COMPLETION = 16  # tokens of a completion that says nothing of its length, as OpenAI's
REASONS = {"eog": "stop", "stop": "stop"}  # others are "length"


class Service:
    """template: None where the model cannot chat. drafting: where requests say nothing of it; its
    files are the only ones that are read. mask: what such drafts skip. sources: names of the
    drafters that can draft here."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        template: ChatTemplate | None,
        drafting: Drafting,
        mask: LayerMask | None,
        sources: tuple[str, ...],
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.template = template
        self.metrics = Metrics(engine)
        self.made_at = int(time.time())
        self._drafting = drafting
        self._mask = mask
        self._sources = sources
        self._files = given_files(drafting)

    @property
    def model(self) -> Model:
        return self.engine.context.model

    # what a request says

    def drafting(self, request: TextRequest) -> Drafting:
        """Raises ApiError for drafters that there are not, MaskError for what is no mask."""
        asked, drafting = request.pyselfspec, self._drafting
        if asked is None:
            return drafting
        if "draft" in asked.model_fields_set:
            drafting = drafting.by(self._draft(asked.draft))
        if asked.mask is not None:
            if drafting.draft is None:
                raise ApiError(
                    400, "plain decoding skips nothing; leave out the mask", param="mask"
                )
            drafting = replace(drafting, mask=_mask(asked.mask, self.model.n_layer), options=None)
        return drafting

    def _draft(self, asked: str | None) -> Names | None:
        if asked in (None, OFF):
            return None
        if asked == AUTO:
            return AUTO
        names = asked.split(SIGN)
        for name in names:
            if name not in self._sources:
                raise ApiError(400, self._why_not(name), param="pyselfspec.draft")
        files = (f"{COLON}{self._files[name]}" if name in self._files else "" for name in names)
        drafts = tuple(name + file for name, file in zip(names, files, strict=True))
        mine = self._drafting.draft
        if _shown(mine) == asked:
            return mine  # with its options
        return drafts

    def _why_not(self, name: str) -> str:
        """Why this drafter cannot be asked for."""
        known = f"this server has {', '.join((AUTO, OFF, *self._sources))}"
        if name not in drafters.names():
            return f"there is no drafter {name!r}; {known}"
        if drafters.takes_file(name) and name not in self._files:
            return (
                f"the drafter {name} needs a file, which the server is started with: "
                f"--draft {name}:FILE; {known}"
            )
        return f"the drafter {name} does not work with this model; {known}"

    def samplings(self, request: TextRequest, grammar: str | None) -> list[SamplingParams]:
        """Of each choice: seeds count up from the first one's."""
        asked = ((name, getattr(request, name)) for name in TextRequest.SAMPLING)
        fields = {name: value for name, value in asked if value is not None}
        if request.logit_bias is not None:
            fields["logit_bias"] = self._bias(request.logit_bias)
        common = replace(self.settings.sampling, **fields, grammar=grammar).with_seed()
        first = common.seed if request.seed is None else request.seed
        assert first is not None
        return [replace(common, seed=(first + i) % (SEED_MAX + 1)) for i in range(request.n)]

    def _bias(self, asked: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        """Raises ApiError for what is no token of the model."""
        n_vocab = self.model.n_vocab
        for name in asked:
            if not (
                name.isascii() and name.isdecimal() and len(name) <= 12 and int(name) < n_vocab
            ):
                raise ApiError(
                    400,
                    f"logit_bias: tokens are 0 to {n_vocab - 1} here, got {name[:40]!r}",
                    param="logit_bias",
                )
        return tuple((int(name), bias) for name, bias in asked.items())

    def n_predict(self, prompt: Sequence[int], asked: int | None, default: int | None) -> int:
        """Tokens to write at most. default: None for what a slot's share of the context leaves.

        Raises ApiError for a prompt that leaves no room.
        """
        n_room = self.n_ctx - len(prompt)
        if n_room < 1:
            raise self.too_long(str(len(prompt)))
        if asked is None and default is None:
            share = self.n_share
            asked = max(share - len(prompt), share // 2, 1)
        return min(asked or default or 1, n_room)

    def too_long(self, n_tokens: str) -> ApiError:
        """The error for a prompt that is too long, given its number of tokens."""
        return ApiError(
            400,
            f"the prompt has {n_tokens} tokens, the context {self.n_ctx}; give a larger -c or a "
            "shorter prompt",
            code="context_length_exceeded",
        )

    @property
    def n_ctx(self) -> int:
        """Tokens of a text at most."""
        n_train = self.model.n_ctx_train
        return min(self.engine.n_cells, n_train) if n_train > 0 else self.engine.n_cells

    @property
    def n_share(self) -> int:
        """Tokens of the context for each slot, where all are in use."""
        return self.engine.n_cells // self.engine.n_slots

    def now(self) -> int:
        return int(time.time())

    def write(self, jobs: Sequence[Job]) -> Writing:
        return Writing(self.engine, jobs, self.settings.timeout_s)

    # what the server is

    def card(self) -> dict[str, Any]:
        """As in the list of models."""
        card = {"id": self.settings.name, "object": "model", "created": self.made_at}
        return card | {"owned_by": "pyselfspec"}

    def props(self) -> dict[str, Any]:
        file = self.model.file
        return {
            "model": self.settings.name,
            "description": f"{file.architecture}, {self.model.n_layer} blocks",
            "architecture": file.architecture,
            "n_layer": self.model.n_layer,
            "n_embd": self.model.n_embd,
            "n_vocab": self.model.n_vocab,
            "n_params": file.n_params,
            "n_bytes": file.n_bytes,
            "type": file.file_type,
            "n_ctx": self.n_ctx,
            "n_ctx_train": self.model.n_ctx_train,
            "slots": self.engine.n_slots,
            "n_share": self.n_share,
            "draft": _shown(self._drafting.draft),
            "sources": list(self._sources),
            "drafters": described(self._sources),
            "mask": _mask_fields(self._mask),
            "chat_template": self.template is not None
            and tells_speakers_apart(self.template.source),
            "version": __version__,
            "build": BUILD_ID,
        }


def _shown(draft: Any) -> str | None:
    """Names without files."""
    if draft is None or draft == AUTO:
        return draft  # type: ignore[no-any-return]
    return SIGN.join(each.name for each in split(draft, drafters.names()))


def _mask(asked: MaskSettings, n_layer: int) -> LayerMask:
    if asked.n_layer not in (None, n_layer):
        raise MaskError(f"the mask is for {asked.n_layer} blocks, the model has {n_layer}")
    if asked.exit_layer is not None:
        if asked.skip_attn or asked.skip_ffn:
            raise MaskError("give exit_layer, or skip_attn and skip_ffn, not both")
        return LayerMask.early_exit(n_layer, asked.exit_layer)
    return LayerMask(n_layer, frozenset(asked.skip_attn), frozenset(asked.skip_ffn))


#
# answers
#


class Writing:
    """Jobs of one request on their way: iterate for their events, each with the number of its job.
    Leave the ``with`` block, and what is not finished is cancelled.

    Raises BusyError where the queue is full, ShutdownError where no more jobs are taken; when
    iterated, ApiError for a job that fails.
    """

    def __init__(self, engine: Engine, jobs: Sequence[Job], timeout_s: float) -> None:
        self._engine = engine
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._n_left = len(jobs)
        self._loop = asyncio.get_running_loop()
        deadline = time.monotonic() + timeout_s
        self._tickets = [Ticket(job, self._emitter(i), deadline) for i, job in enumerate(jobs)]
        engine.submit(self._tickets)

    def _emitter(self, i: int) -> Any:
        return lambda event: self._loop.call_soon_threadsafe(self._events.put_nowait, (i, event))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        for ticket in self._tickets:
            self._engine.cancel(ticket)

    async def started(self, request: Request) -> None:
        """Wait for the first event. Raises ClientGone, and ApiError for a job that fails."""
        i, event = await unless_gone(request, self._events.get())
        if isinstance(event, Failed):
            raise as_api_error(event.error) from event.error
        if not isinstance(event, Started):
            self._events.put_nowait((i, event))

    async def __aiter__(self) -> AsyncIterator[tuple[int, Grown | Finished]]:
        while self._n_left:
            i, event = await self._events.get()
            if isinstance(event, Failed):
                raise as_api_error(event.error) from event.error
            self._n_left -= isinstance(event, Finished)
            if isinstance(event, Grown | Finished):
                yield i, event


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(request: Request, work: Any) -> Any:
    """What this work returns. Raises ClientGone as soon as the client has gone."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientGone
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


def reason_of(finished: Finished) -> str:
    return REASONS.get(finished.reason, "length")


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def usage(n_prompt: int, found: Sequence[Finished]) -> dict[str, Any]:
    """n_prompt: tokens of all prompts, each counted once."""
    stats = [each.stats for each in found]
    n_generated = sum(each.n_generated for each in stats)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {
            "cached_tokens": min(n_prompt, sum(s.n_prompt_reused for s in stats))
        },
        "pyselfspec": statistics(found),
    }


def statistics(found: Sequence[Finished]) -> dict[str, Any]:
    """Of all choices together: counts add up, and so do times."""
    total = GenerationStats()
    for each in found:
        total.add(each.stats)
    fields = total.to_dict()
    fields["draft"] = found[0].draft if found else None
    fields["us"] = fields["total_us"]
    fields["estimated_speedup"] = _estimated_speedup(found)
    fields["mask"] = _mask_fields(found[0].mask) if found else None
    return fields


def _estimated_speedup(found: Sequence[Finished]) -> float | None:
    """Expected plain time over time taken, of all choices together; None where one is unknown."""
    times = [each.stats.draft_us + each.stats.verify_us for each in found]
    ratios = [each.estimated_speedup for each in found]
    known = [(us, ratio) for us, ratio in zip(times, ratios, strict=True) if ratio is not None]
    if len(known) < len(found) or not known:
        return None
    return sum(us * ratio for us, ratio in known) / sum(times)


def _mask_fields(mask: LayerMask | None) -> dict[str, Any] | None:
    if mask is None:
        return None
    return {
        "n_layer": mask.n_layer,
        "skip_attn": sorted(mask.skip_attn),
        "skip_ffn": sorted(mask.skip_ffn),
    }


def shown(origins: Sequence[Origin], us: int) -> dict[str, Any]:
    return {"tokens": [[each.text, each.source] for each in origins], "us": us}
