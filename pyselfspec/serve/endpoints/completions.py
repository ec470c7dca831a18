"""POST /v1/completions: a prompt, and what follows it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.logprobs import LogProbs
from ...speculate.completion import count_for_message
from ..engine.jobs import Delta, Finished, Job, Progress
from ..fim_prompt import fill_prompt
from ..protocol.errors import invalid
from ..protocol.response_fields import finish_reason, progress_fields
from ..protocol.schemas import N_CHOICES, CompletionRequest
from ..protocol.writers import Answer, ChoiceWriter, Json, respond
from ..service import Service
from .routers import STREAMS, Writing, router

ROUTER = router()

N_PREDICT = 16  # tokens of a completion without max_tokens, as in OpenAI's API


@ROUTER.post("/v1/completions", responses=STREAMS)
async def post_completions(service: Writing, body: CompletionRequest, request: Request) -> Response:
    """Complete prompts."""
    prompts, jobs = await open_completions(service, body, N_PREDICT)
    return await respond(service, request, jobs, CompletionWriter(service, body, prompts))


async def open_completions(
    service: Service, body: CompletionRequest, default: int | None
) -> tuple[list[tuple[int, ...]], list[Job]]:
    """Return the tokens of each prompt, and the jobs of all answers. default: most tokens of an
    answer if the request has no limit, None for the rest of a slot's share of the context. Raises
    ApiError, and errors of the model."""
    body.require_supported()
    prompts = await asyncio.to_thread(_prompts, service, body)
    n_each = body.n_generated
    if len(prompts) * n_each > N_CHOICES:
        name = "n" if n_each == body.n else "best_of"
        raise invalid(
            name,
            f"{len(prompts)} prompts with {name}={n_each} make {len(prompts) * n_each} choices; "
            f"a request has at most {N_CHOICES}",
        )
    ranks = n_each > body.n  # by log probabilities
    reader = service.requests
    grammar = await asyncio.to_thread(reader.grammar, body)
    jobs = [
        job
        for prompt in prompts
        for job in reader.jobs(
            body,
            prompt,
            grammar,
            reader.n_predict(prompt, body.most_tokens, default),
            n_each,
            logprobs=0 if ranks and body.logprobs is None else body.logprobs,
        )
    ]
    return prompts, jobs


def _prompts(service: Service, body: CompletionRequest) -> list[tuple[int, ...]]:
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise invalid("prompt", "prompt is empty; give at least one")
    if not body.suffix:
        return [_tokens(service, prompt) for prompt in given]
    if not all(isinstance(prompt, str) for prompt in given):
        raise invalid("prompt", "suffix needs prompts of text, not token ids")
    reader = service.requests
    most = N_PREDICT if body.most_tokens is None else body.most_tokens
    n_half = reader.n_share // 2
    n_max = reader.n_share - (n_half if most < 0 else min(most, n_half))
    return [
        fill_prompt(service.model, prompt, body.suffix, n_max=n_max, param="suffix")
        for prompt in given
    ]


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
        raise invalid("prompt", "the prompt has no tokens; give at least one")
    return tuple(tokens)


class CompletionWriter(ChoiceWriter):
    OBJECT = CHUNK_OBJECT = "text_completion"
    ID_PREFIX = "cmpl"

    def __init__(
        self, service: Service, request: CompletionRequest, prompts: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(service, request, sum(map(len, prompts)))
        self._n, self._n_generated = request.n, request.n_generated
        self._echoes: tuple[str, ...] = ()  # the prompts as they were given, or as text
        if request.echo:
            given: Any = request.prompt
            texts = [given] if isinstance(given, str) else list(given)
            if len(texts) != len(prompts):  # the tokens of one prompt
                texts = [None] * len(prompts)
            self._echoes = tuple(
                text if isinstance(text, str) else service.model.detokenize(prompt)
                for text, prompt in zip(texts, prompts, strict=True)
            )
        self._has_logprobs = request.logprobs is not None
        self._n_chars: dict[int, int] = {}  # characters of each choice so far

    def first(self, n: int) -> list[Json]:
        return [
            self._chunk(_choice_fields(i, self._echo(i), None, None))
            for i in range(n if self._echoes else 0)
        ]

    def progress(self, i: int, progress: Progress) -> list[Json]:
        return [self._chunk(_choice_fields(i, "", None, None)) | progress_fields(progress)]

    def delta(self, i: int, delta: Delta) -> list[Json]:
        logprobs = self._logprobs(i, delta.logprobs)
        return [self._chunk(_choice_fields(i, delta.text, logprobs, None), delta)]

    def end(self, i: int, finished: Finished) -> list[Json]:
        return [self._chunk(_choice_fields(i, "", None, finish_reason(finished)))]

    def _choice(self, i: int, answer: Answer) -> Json:
        logprobs = self._logprobs(i, answer.logprobs)
        text = self._echo(i) + answer.text
        return _choice_fields(i, text, logprobs, finish_reason(answer.finished))

    def chosen(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Return for each prompt the answers with the highest log probability per token."""
        if self._n_generated == self._n:
            return answers

        def rank(answer: Answer) -> float:
            logprobs = [each.logprob for _, each in answer.logprobs]
            return sum(logprobs) / len(logprobs) if logprobs else -math.inf

        groups = [
            answers[at : at + self._n_generated] for at in range(0, len(answers), self._n_generated)
        ]
        return [
            each for group in groups for each in sorted(group, key=rank, reverse=True)[: self._n]
        ]

    def _echo(self, i: int) -> str:
        """Return the prompt, which comes before the completion of a choice."""
        return self._echoes[i // self._n] if self._echoes else ""

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
                {self._model.piece(t).decode(errors="replace"): logprob for t, logprob in each.top}
                for _, each in found
            ],
            "text_offset": offsets,
        }


def _choice_fields(i: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
    return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": reason}
