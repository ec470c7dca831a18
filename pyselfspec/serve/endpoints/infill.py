"""POST /infill: fill-in-the-middle (FIM), which llama.vim and llama.vscode use, and POST
/completion; both in llama-server's format."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from ..engine.jobs import Delta, Finished, Progress
from ..fim_prompt import fill_prompt
from ..protocol.response_fields import progress_fields, statistics
from ..protocol.schemas import CompletionRequest, TextRequest
from ..protocol.writers import Answer, Json, ResponseWriter, respond
from ..service import Service
from .completions import open_completions
from .routers import STREAMS, Writing, router

ROUTER = router()

N_PREDICT = 128  # tokens of an answer, if a request has no limit
N_FILES = 1024
N_FIELDS = 64


class ExtraFile(BaseModel):
    """A part of another file."""

    filename: str | None = None
    text: str


class InfillRequest(TextRequest):
    """POST /infill. prompt: text after input_prefix, at the cursor. n_predict: -1 is N_PREDICT.
    response_fields: see InfillWriter."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] = Field(default=[], max_length=N_FILES)
    prompt: str = ""
    response_fields: list[str] | None = Field(None, max_length=N_FIELDS)


class PlainRequest(TextRequest):
    """POST /completion. prompt: text, or token ids. response_fields: see InfillWriter."""

    prompt: str | list[int]
    response_fields: list[str] | None = Field(None, max_length=N_FIELDS)


@ROUTER.post("/completions", include_in_schema=False)
@ROUTER.post("/completion", responses=STREAMS)
async def post_completion(service: Writing, body: PlainRequest, request: Request) -> Response:
    """Complete a prompt."""
    given = {name: getattr(body, name) for name in PlainRequest.model_fields}
    asked = CompletionRequest.model_construct(**given | {"n": 1})
    [prompt], jobs = await open_completions(service, asked, None)
    return await respond(service, request, jobs, InfillWriter(service, body, len(prompt)))


@ROUTER.post("/infill", responses=STREAMS)
async def post_infill(service: Writing, body: InfillRequest, request: Request) -> Response:
    """Complete what is between a prefix and a suffix."""
    reader = service.requests
    body.require_one_form()
    grammar = await asyncio.to_thread(reader.grammar, body)
    most = N_PREDICT if body.most_tokens is None or body.most_tokens < 0 else body.most_tokens
    n_predict = min(most, reader.n_ctx // 2)
    prompt = await asyncio.to_thread(
        fill_prompt,
        service.model,
        body.input_prefix + body.prompt,
        body.input_suffix,
        n_max=reader.n_share - n_predict,
        extra=[(each.filename or "file", each.text) for each in body.input_extra],
        param="input_prefix",
    )
    jobs = reader.jobs(body, prompt, grammar, reader.n_predict(prompt, n_predict, N_PREDICT), 1)
    return await respond(service, request, jobs, InfillWriter(service, body, len(prompt)))


class InfillWriter(ResponseWriter):
    """Writes an answer, of which response_fields are the paths of the fields that a whole one has,
    such as timings/prompt_n; None for all. n_prompt: tokens of the prompt."""

    def __init__(
        self, service: Service, request: InfillRequest | PlainRequest, n_prompt: int
    ) -> None:
        super().__init__(stream=request.stream)
        self._name = service.settings.name
        self._n_prompt = n_prompt
        self._n_ctx = service.requests.n_ctx
        self._fields = request.response_fields

    def whole(self, answers: Sequence[Answer]) -> Json:
        [answer] = answers
        found: Json = {"content": answer.text} | self._end(answer.finished)
        if not self._fields:
            return found
        flat = found | {
            f"{name}/{inner}": value
            for name in ("timings", "generation_settings")
            for inner, value in found[name].items()
        }
        return {path: flat[path] for path in self._fields if path in flat}

    def progress(self, i: int, progress: Progress) -> list[Json]:
        return [{"content": "", "stop": False} | progress_fields(progress)]

    def delta(self, i: int, delta: Delta) -> list[Json]:
        return [{"content": delta.text, "stop": False}] if delta.text else []

    def end(self, i: int, finished: Finished) -> list[Json]:
        return [{"content": ""} | self._end(finished)]

    def _end(self, finished: Finished) -> Json:
        """Return the fields at the end of an answer. Times are in milliseconds."""
        stats = finished.stats
        n_read = self._n_prompt - stats.n_prompt_reused
        prompt_ms = stats.prefill_us / 1000
        predicted_ms = max(0, stats.total_us - stats.prefill_us) / 1000
        kind = {"eog": "eos", "stop": "word"}.get(finished.reason, "limit")
        return {
            "stop": True,
            "stop_type": kind,
            "stopping_word": finished.stopped_by or "",
            "model": self._name,
            "tokens_evaluated": self._n_prompt,
            "tokens_predicted": stats.n_generated,
            "tokens_cached": self._n_prompt + stats.n_generated,
            "truncated": False,
            "generation_settings": {"n_ctx": self._n_ctx},
            "timings": {
                "cache_n": stats.n_prompt_reused,
                "prompt_n": n_read,
                "prompt_ms": prompt_ms,
                "prompt_per_token_ms": prompt_ms / max(1, n_read),
                "prompt_per_second": _rate(n_read, prompt_ms),
                "predicted_n": stats.n_generated,
                "predicted_ms": predicted_ms,
                "predicted_per_token_ms": predicted_ms / max(1, stats.n_generated),
                "predicted_per_second": _rate(stats.n_generated, predicted_ms),
            },
            "pyselfspec": statistics([finished]),
        }


def _rate(n: int, ms: float) -> float:
    """Return tokens per second."""
    return 1000 * n / ms if ms > 0 else 0.0
