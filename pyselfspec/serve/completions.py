"""POST /v1/completions: a prompt, and what follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..runtime.logprobs import LogProbs
from ..speculate.completion import count_for_message
from .answers import Made, finish, stream
from .errors import ApiError, json_response
from .jobs import Finished, Grown, Job
from .schemas import N_CHOICES, CompletionRequest
from .service import N_COMPLETION, Service, new_id, reason_of, shown, usage

OBJECT = "text_completion"


async def complete(service: Service, asked: CompletionRequest, request: Request) -> Response:
    asked.require_supported()
    prompts = await asyncio.to_thread(_prompts, service, asked)
    if len(prompts) * asked.n > N_CHOICES:
        raise ApiError(
            400, f"a request has at most {N_CHOICES} choices, prompts times n", param="n"
        )
    jobs = [
        Job(
            prompt=prompt,
            n_predict=service.n_predict(prompt, asked.max_tokens, N_COMPLETION),
            sampling=sampling,
            drafting=service.drafting(asked),
            stop=asked.stops,
            logprobs=asked.logprobs,
            shows_tokens=asked.shows,
        )
        for prompt in prompts
        for sampling in service.samplings(asked, asked.grammar)
    ]
    head = {"id": new_id("cmpl"), "created": service.now(), "model": service.settings.name}
    form = _Form(service, head, sum(map(len, prompts)), asked)
    if asked.stream:
        return await stream(service, request, jobs, form)
    return json_response(form.whole(await finish(service, request, jobs)))


def _prompts(service: Service, asked: CompletionRequest) -> list[tuple[int, ...]]:
    given: Any = asked.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise ApiError(400, "prompt is empty", param="prompt")
    return [_tokens(service, prompt) for prompt in given]


def _tokens(service: Service, prompt: str | Sequence[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        tokens = service.model.first_tokens(prompt, service.n_ctx + 1)
        if len(tokens) > service.n_ctx:
            raise service.too_long(count_for_message(service.model, prompt))
    else:
        tokens = list(prompt)
        service.model.require_tokens(tokens)
    if not tokens:
        raise ApiError(400, "the prompt has no tokens; give at least one", param="prompt")
    return tuple(tokens)


class _Form:
    """How answers are written down."""

    def __init__(
        self, service: Service, head: dict[str, Any], n_prompt: int, asked: CompletionRequest
    ) -> None:
        self._service = service
        self._head = head
        self._n_prompt = n_prompt
        self._asked = asked
        self._n_chars: dict[int, int] = {}  # of the choices so far

    def whole(self, made: Sequence[Made]) -> dict[str, Any]:
        choices = [
            {
                "index": i,
                "text": each.text,
                "logprobs": self._logprobs(i, each.logprobs),
                "finish_reason": reason_of(each.finished),
            }
            for i, each in enumerate(made)
        ]
        found = [each.finished for each in made]
        body = {**self._head, "object": OBJECT, "choices": choices}
        body["usage"] = usage(self._n_prompt, found)
        if self._asked.shows:
            origins = [origin for each in made for origin in each.origins]
            body["pyselfspec"] = shown(origins, sum(each.us for each in made))
        return body

    def first(self, n: int) -> list[dict[str, Any]]:
        return []

    def grown(self, i: int, grown: Grown) -> list[dict[str, Any]]:
        return [self._chunk(i, grown.text, self._logprobs(i, grown.logprobs), None, grown)]

    def ended(self, i: int, finished: Finished) -> list[dict[str, Any]]:
        return [self._chunk(i, "", None, reason_of(finished))]

    def last(self, found: Sequence[Finished]) -> list[dict[str, Any]]:
        if not self._asked.includes_usage:
            return []
        body = {**self._head, "object": OBJECT, "choices": []}
        return [body | {"usage": usage(self._n_prompt, found)}]

    def _chunk(
        self, i: int, text: str, logprobs: Any, reason: str | None, grown: Grown | None = None
    ) -> dict[str, Any]:
        choice = {"index": i, "text": text, "logprobs": logprobs, "finish_reason": reason}
        body = {**self._head, "object": OBJECT, "choices": [choice]}
        if self._asked.shows and grown is not None:
            body["pyselfspec"] = shown(grown.origins, grown.us)
        return body

    def _logprobs(self, i: int, found: Sequence[tuple[str, LogProbs]]) -> dict[str, Any] | None:
        """text_offset counts from the beginning of the answer."""
        if self._asked.logprobs is None:
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
        return self._service.model.piece(token).decode(errors="replace")
