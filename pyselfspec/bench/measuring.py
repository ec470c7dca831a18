"""Runs of a benchmark: every prompt answered every way, in turn."""

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
from .types import Key, Moment, Run, Source
from .ways import Way

N_WARM_UP = 16  # tokens


class Watched(Completion):
    """Keeps its steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps: list[Step] = []

    def advanced(self, step: Step) -> str:
        self.steps.append(step)
        return super().advanced(step)


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as the model gets it: token ids."""

    name: str
    task: str
    tokens: tuple[int, ...]


Job = tuple[int, Question, Way]  # with the number of the round


@dataclass(frozen=True, slots=True)
class Answering:
    """A context that answers, each time as if it were the first of a session: it reads the whole
    prompt, and copies nothing from earlier answers. What it learns of costs and chances goes on
    from answer to answer, as always."""

    context: Context
    n_predict: int
    temperature: float
    controller: Controller | str

    def answer(self, way: Way, prompt: Sequence[int], seed: int) -> Watched:
        """The whole answer. Raises what Completion raises."""
        self.context.sequence().drop()
        made = Watched(
            self.context,
            prompt,
            n_predict=self.n_predict,
            controller=self.controller,
            sampling=SamplingParams(temperature=self.temperature, seed=seed),
            **way.completion_options,
        )
        for _piece in made:
            pass
        return made

    def warm_up(self, ways: Sequence[Way], prompt: Sequence[int]) -> None:
        """The first answers of a context build graphs and touch the weights."""
        short = replace(self, n_predict=min(self.n_predict, N_WARM_UP))
        for way in ways:
            short.answer(way, prompt, 0)


def plan(
    questions: Sequence[Question],
    ways: Sequence[Way],
    n_rounds: int,
    done: Collection[Key] = (),
) -> list[Job]:
    """What is left to measure: all ways on each prompt, one after the other, every second time in
    reverse, so that a machine that slows down slows all of them down.

    done: rounds, prompts and ways of runs that there are.
    """
    turns = [(i, question) for i in range(n_rounds) for question in questions]
    return [
        (i, question, way)
        for n, (i, question) in enumerate(turns)
        for way in (ways if n % 2 == 0 else tuple(reversed(ways)))
        if (i, question.name, way.name) not in done
    ]


def measured(answering: Answering, todo: Sequence[Job], seed: int) -> Iterator[Run]:
    """A run for everything that is to be done, as soon as it is there."""
    if todo:
        ways = tuple(dict.fromkeys(way for _, _, way in todo))
        answering.warm_up(ways, todo[0][1].tokens)
    for i, question, way in todo:
        yield run_of(answering.answer(way, question.tokens, seed + i), question, way.name, i)


def run_of(made: Watched, question: Question, way: str, i: int) -> Run:
    """What is kept of an answer in round i."""
    stats = made.stats
    return Run(
        prompt=question.name,
        task=question.task,
        round=i,
        way=way,
        n_prompt=stats.n_prompt,
        prompt_us=stats.prefill_us,
        n_tokens=stats.n_generated,
        us=stats.total_us - stats.prefill_us,
        n_passes=stats.n_steps,
        n_drafted_at=tuple(stats.n_drafted_at),
        n_accepted_at=tuple(stats.n_accepted_at),
        sources={
            name: Source(tuple(each.n_drafted_at), tuple(each.n_accepted_at))
            for name, each in stats.sources.items()
        },
        text_sha256=hashlib.sha256(records.encode(made.tokens)).hexdigest(),
        finish_reason=made.finish_reason or "",
        moments=tuple(_moments(made)) if i == 0 else (),
    )


def _moments(made: Watched) -> Iterator[Moment]:
    model = made.context.model
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be two tokens
    for step in made.steps:
        pieces = (model.piece(token) if model.has_vocab else b"" for token in step.tokens)
        accepted = [step.draft.sources[i] for i in step.verdict.path]
        yield Moment(
            draft_us=step.draft.draft_us + step.draft.late_us,
            verify_us=step.verify_us,
            drafted=_counted(step.draft.sources),
            texts=tuple(decoder.decode(piece) for piece in pieces),
            origins=(*accepted, *[""] * (len(step.tokens) - len(accepted))),
        )


def _counted(sources: Sequence[str]) -> dict[str, int]:
    return {name: sources.count(name) for name in dict.fromkeys(sources)}
