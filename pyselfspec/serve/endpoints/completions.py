"""POST /v1/completions: a prompt, and what follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.logprobs import LogProbs
from ...speculate.completion import count_for_message
from ..errors import ApiError
from ..fields import finish_reason
from ..jobs import Delta, Finished, Job
from ..responses import Answer, ChoiceWriter, Json, respond
from ..schemas import N_CHOICES, CompletionRequest
from ..service import Service

N_PREDICT = 16  # tokens of a completion without max_tokens, as in OpenAI's API


async def complete(service: Service, body: CompletionRequest, request: Request) -> Response:
    """Handle a request. Raises ApiError, ClientGone, and errors of the job."""
    body.require_supported()
    prompts = await asyncio.to_thread(_prompts, service, body)
    if len(prompts) * body.n > N_CHOICES:
        raise ApiError(
            400,
            f"{len(prompts)} prompts with n={body.n} make {len(prompts) * body.n} choices; "
            f"a request has at most {N_CHOICES}",
            param="n",
        )
    reader = service.requests
    jobs = [
        Job(
            prompt=prompt,
            n_predict=reader.n_predict(prompt, body.max_tokens, N_PREDICT),
            sampling=sampling,
            drafting=reader.drafting(body),
            stop=body.stops,
            logprobs=body.logprobs,
            shows_tokens=body.shows,
        )
        for prompt in prompts
        for sampling in reader.samplings(body, body.grammar)
    ]
    writer = CompletionWriter(service, body, sum(map(len, prompts)))
    return await respond(service, request, jobs, writer)


def _prompts(service: Service, body: CompletionRequest) -> list[tuple[int, ...]]:
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise ApiError(400, "prompt is empty; give at least one", param="prompt")
    return [_tokens(service, prompt) for prompt in given]


def _tokens(service: Service, prompt: str | Sequence[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        n_ctx = service.requests.n_ctx
        tokens = service.model.first_tokens(prompt, n_ctx + 1)
        if len(tokens) > n_ctx:
            raise service.requests.too_long(count_for_message(service.model, prompt))
    else:
        tokens = list(prompt)
        service.model.require_tokens(tokens)
    if not tokens:
        raise ApiError(400, "the prompt has no tokens; give at least one", param="prompt")
    return tuple(tokens)


class CompletionWriter(ChoiceWriter):
    OBJECT = CHUNK_OBJECT = "text_completion"
    ID_PREFIX = "cmpl"

    def __init__(self, service: Service, request: CompletionRequest, n_prompt: int) -> None:
        super().__init__(service, request, n_prompt)
        self._has_logprobs = request.logprobs is not None
        self._n_chars: dict[int, int] = {}  # characters of each choice so far

    def delta(self, i: int, delta: Delta) -> list[Json]:
        logprobs = self._logprobs(i, delta.logprobs)
        return [self._chunk(_choice_fields(i, delta.text, logprobs, None), delta)]

    def end(self, i: int, finished: Finished) -> list[Json]:
        return [self._chunk(_choice_fields(i, "", None, finish_reason(finished)))]

    def _choice(self, i: int, answer: Answer) -> Json:
        logprobs = self._logprobs(i, answer.logprobs)
        return _choice_fields(i, answer.text, logprobs, finish_reason(answer.finished))

    def _logprobs(self, i: int, found: Sequence[tuple[str, LogProbs]]) -> Json | None:
        """Return the field "logprobs". text_offset counts from the beginning of the answer."""
        if not self._has_logprobs:
            return None
        offsets = []
        for text, _ in found:
            offsets.append(self._n_chars.get(i, 0))
            self._n_chars[i] = offsets[-1] + len(text)
        return {
            "tokens": [text for text, _ in found],
            "token_logprobs": [each.logprob for _, each in found],
            "top_logprobs": [
                {self._text(token): logprob for token, logprob in each.top} for _, each in found
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._model.piece(token).decode(errors="replace")


def _choice_fields(i: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
    return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": reason}
