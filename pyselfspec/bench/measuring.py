"""Measures the runs of a benchmark: every prompt with every variant, in turn."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..runtime.context import Context
from ..runtime.sampling import SamplingParams
from ..speculate.completion import Completion
from ..speculate.controllers import Controller
from ..speculate.types import Step
from ..util import records
from .types import UPSTREAM, Key, Run, SourceCounts, StepRecord
from .upstream import UpstreamKernels
from .variants import Variant

N_WARM_UP = 16  # tokens of an answer that is not measured


class RecordedCompletion(Completion):
    """A completion that keeps its steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps: list[Step] = []

    def record_step(self, step: Step) -> str:
        self.steps.append(step)
        return super().record_step(step)


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt as token ids."""

    name: str
    task: str
    tokens: tuple[int, ...]


PlannedRun = tuple[int, TokenizedPrompt, Variant]  # round, prompt, variant


@dataclass(frozen=True, slots=True)
class Runner:
    """Answers prompts in a context, each as the first of a session: reads the whole prompt and
    copies nothing from earlier answers. Keeps statistics of costs and acceptance.

    upstream: answers for the variant UPSTREAM; None answers for it like for any other.
    """

    context: Context
    n_predict: int
    temperature: float
    controller: Controller | str
    upstream: UpstreamKernels | None = None

    def run(self, variant: Variant, prompt: TokenizedPrompt, i: int, seed: int) -> Run:
        """Return the record of an answer in round i. Raises the errors of Completion."""
        if variant.name == UPSTREAM and self.upstream is not None:
            options = (self.n_predict, self.temperature, self.controller)
            [run] = self.upstream.each(_runs, *options, variant, prompt, i, seed)
            return run
        return make_run(self.answer(variant, prompt.tokens, seed), prompt, variant.name, i)

    def answer(self, variant: Variant, prompt: Sequence[int], seed: int) -> RecordedCompletion:
        """Return the whole answer. Raises the errors of Completion."""
        self.context.sequence().drop()
        made = RecordedCompletion(
            self.context,
            prompt,
            replace(variant.config, controller=self.controller),
            n_predict=self.n_predict,
            sampling=SamplingParams(temperature=self.temperature, seed=seed),
        )
        for _piece in made:
            pass
        return made

    def warm_up(self, variants: Sequence[Variant], prompt: TokenizedPrompt) -> None:
        """Generate short answers, which build graphs and load the weights into memory."""
        short = replace(self, n_predict=min(self.n_predict, N_WARM_UP))
        for variant in variants:
            short.run(variant, prompt, 0, 0)


def _runs(
    context: Context,
    n_predict: int,
    temperature: float,
    controller: Controller | str,
    *planned: Any,
) -> Iterator[Run]:
    """Yield one run, in a process whose context this is. planned: arguments of `Runner.run`."""
    yield Runner(context, n_predict, temperature, controller).run(*planned)


def plan(
    prompts: Sequence[TokenizedPrompt],
    variants: Sequence[Variant],
    n_rounds: int,
    done: Collection[Key] = (),
) -> list[PlannedRun]:
    """Return the runs to measure: for each prompt all variants, in reverse order every second time,
    so that a machine that slows down affects all variants.

    done: keys of runs that exist already.
    """
    turns = [(i, prompt) for i in range(n_rounds) for prompt in prompts]
    return [
        (i, prompt, variant)
        for n, (i, prompt) in enumerate(turns)
        for variant in (variants if n % 2 == 0 else tuple(reversed(variants)))
        if (i, prompt.name, variant.name) not in done
    ]


def measure(runner: Runner, todo: Sequence[PlannedRun], seed: int) -> Iterator[Run]:
    """Yield a run for each planned one, as soon as it is measured."""
    if todo:
        variants = tuple(dict.fromkeys(variant for _, _, variant in todo))
        runner.warm_up(variants, todo[0][1])
    for i, prompt, variant in todo:
        yield runner.run(variant, prompt, i, seed + i)


def make_run(made: RecordedCompletion, prompt: TokenizedPrompt, variant: str, i: int) -> Run:
    """Return the record of an answer in round i."""
    stats = made.stats
    return Run(
        prompt=prompt.name,
        task=prompt.task,
        round=i,
        variant=variant,
        n_prompt=stats.n_prompt,
        prompt_us=stats.prefill_us,
        n_tokens=stats.n_generated,
        us=stats.total_us - stats.prefill_us,
        n_passes=stats.n_steps,
        n_drafted_at=tuple(stats.n_drafted_at),
        n_accepted_at=tuple(stats.n_accepted_at),
        sources={
            name: SourceCounts(tuple(each.n_drafted_at), tuple(each.n_accepted_at))
            for name, each in stats.sources.items()
        },
        text_sha256=hashlib.sha256(records.encode(made.tokens)).hexdigest(),
        finish_reason=made.finish_reason or "",
        steps=tuple(_step_records(made)) if i == 0 else (),
    )


def _step_records(made: RecordedCompletion) -> Iterator[StepRecord]:
    model = made.context.model
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be two tokens
    for step in made.steps:
        pieces = (model.piece(token) if model.has_vocab else b"" for token in step.tokens)
        yield StepRecord(
            draft_us=step.draft.draft_us + step.draft.catch_up_us,
            verify_us=step.verify_us + step.removal_us,
            drafted=_count([each.source for each in step.draft.tokens]),
            texts=tuple(decoder.decode(piece) for piece in pieces),
            sources=tuple(source or "" for source in step.sources),
        )


def _count(sources: Sequence[str]) -> dict[str, int]:
    return {name: sources.count(name) for name in dict.fromkeys(sources)}
