"""Running generations: one alone, or several of one context that share passes as a batch.

Generations may join and leave a batch at any time. Each generates the same tokens as it would
alone, bit for bit, since the rows of all stay within the library's exact width. Without flash
attention this does not hold, see ``warning_of``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial

from ..costs.lookup import costs_without_passes
from ..costs.table import at_width
from ..errors import ArgumentError, ContextFullError, SelfSpecError
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.pass_result import PassResult
from ..runtime.sampling import Sampler
from ..util.closable import Closing
from ..util.pass_width import MAX_PASS_WIDTH
from .context_state import kept
from .controllers import Controller
from .drafters import Drafter
from .generation import Generation
from .pass_requests import PassRequest, Work, drive, resumed, run_request, run_requests
from .shared_passes import SharedPasses
from .types import Step

# None: the prompt has been evaluated. An error has ended this generation, not the others.
Outcome = tuple[Generation, Step | Exception | None]


class BatchWarning(UserWarning):
    """Texts generated in a batch may differ from those generated alone."""


def warning_of(context: Context) -> str | None:
    """Return a warning if texts of a batch may differ from those generated alone, else None."""
    if context.abilities.is_exact_beside_others or not context.abilities.exact_width:
        return None
    cause = (
        "without flash attention"
        if context.options.flash_attn is False
        else "in this model's attention"
    )
    return (
        f"{cause}, a text's last bits depend on the other texts in the context, so that it may "
        "differ from the one generated alone"
    )


def generate_steps(
    context: Context,
    prompt: Sequence[int],
    *,
    seq: KVSequence | None = None,
    drafter: Drafter | None = None,
    controller: Controller,
    sampler: Sampler,
    n_predict: int,
    consume: Callable[[int], bool] | None = None,
) -> Generator[Step, None, None]:
    """Yield steps until n_predict tokens, the end of the text, or a context that is full, be it of
    other sequences.

    seq: default: sequence 0. The other arguments and errors are those of ``Generation``; errors are
        raised at the first step.
    """
    seq = context.sequence() if seq is None else seq
    if seq.context is not context:
        raise ArgumentError("the sequence belongs to another context")
    generation = Generation(
        seq,
        prompt,
        drafter=drafter,
        controller=controller,
        sampler=sampler,
        n_predict=n_predict,
        consume=consume,
    )
    yield from run_steps(context, generation)


def run_steps(context: Context, generation: Generation) -> Generator[Step, None, None]:
    """Yield the steps of a generation that has not begun, each with passes of its own."""

    def respond(request: PassRequest) -> PassResult:
        return run_request(context, request.with_adapters(generation.adapters))

    drive(generation.begin(), respond)
    while not generation.ended:
        try:
            step = drive(generation.step(), respond)
        except ContextFullError:
            return  # other sequences fill the context, see Generation.step
        yield step


def batch_steps(
    context: Context, generations: Sequence[Generation]
) -> Generator[list[Outcome], None, None]:
    """Yield what each pass has finished. A generation without room in the context ends.

    Warns with BatchWarning if texts may differ from those generated alone.

    Raises ArgumentError for generations that share a sequence, ContextFullError for a prompt
    without room, and what Context.run does.
    """
    warning = warning_of(context) if len(generations) > 1 else None
    if warning is not None:
        warnings.warn(warning, BatchWarning, stacklevel=2)
    with closing(Batch(context)) as batch:
        for generation in generations:
            yield _no_errors(batch.join(generation))
        while batch.generations:
            yield _no_errors(batch.run_pass())


def _no_errors(outcomes: list[Outcome]) -> list[Outcome]:
    for _, result in outcomes:
        if isinstance(result, Exception):
            raise result
    return outcomes


class Batch(Closing):
    """The generations that are running. Belongs to the context's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running: list[_Running] = []
        self._added_us = 0.0  # by which draft tokens have made the last pass longer
        self._passes = kept(context, SharedPasses, None, partial(_shared_passes, context))

    @property
    def generations(self) -> list[Generation]:
        """The generations that have not ended."""
        return [each.generation for each in self._running]

    def join(self, generation: Generation) -> list[Outcome]:
        """Begin a generation; return what was finished without a pass.

        Raises ArgumentError if another generation has its sequence.
        """
        seq_id = generation.seq.seq_id
        if any(each.generation.seq.seq_id == seq_id for each in self._running):
            raise ArgumentError(f"each text needs a sequence of its own; sequence {seq_id} has two")
        running = _Running(generation)
        self._running.append(running)
        return self._advance([running], [None])

    def leave(self, generation: Generation) -> None:
        """Stop a generation; its sequence holds what it has so far."""
        for each in [each for each in self._running if each.generation is generation]:
            self._running.remove(each)
            each.close()

    def run_pass(self) -> list[Outcome]:
        """Run one pass for the generations that have waited longest; return what it finished."""
        start_ns = time.perf_counter_ns()
        idle = [each for each in self._running if each.request is None]
        outcomes = self._advance(idle, [None] * len(idle))
        if not self._running:
            return outcomes
        chosen, results = self._run_next()
        # the others have waited longer from now on
        self._running = [each for each in self._running if each not in chosen] + chosen
        outcomes += self._advance(chosen, results)
        steps = [found for _, found in outcomes if isinstance(found, Step)]
        if len(steps) > 1:
            us = (time.perf_counter_ns() - start_ns) / 1000
            pass_us = next(each.us for each in results if isinstance(each, PassResult))
            self._passes.settle(steps, self._added_us, us - pass_us)
        return outcomes

    def _run_next(self) -> tuple[list[_Running], Sequence[PassResult | Exception]]:
        """Choose a pass and run it; return the generations that took part and their results."""
        chosen = _next_pass(self._running, self._context)
        while True:
            try:
                return chosen, self._run_shared([each.request for each in chosen if each.request])
            except SelfSpecError as error:
                # without rollback a failed pass has lost the texts of its sequences
                if len(chosen) == 1 or not self._context.abilities.can_rollback:
                    return chosen, [error] * len(chosen)
                chosen = chosen[: len(chosen) // 2]

    def _run_shared(self, requests: Sequence[PassRequest]) -> Sequence[PassResult]:
        """Run the requests in one pass, with the draft tokens of all that are worth it."""
        passes, is_single = self._passes, len(requests) == 1
        # Snapshots of recurrent states cover as many rows of each text only: they do not draft.
        can_draft = is_single or self._context.abilities.can_rollback
        chances = [each.chances if can_draft else () for each in requests]
        n_needed = sum(each.n_needed for each in requests)
        n_verified = passes.n_verified(n_needed, chances)
        run = [each.with_optional(n) for each, n in zip(requests, n_verified, strict=True)]
        n_rows = n_needed + sum(n_verified)
        results = run_requests(
            self._context, run, passes.full_us, passes.n_rests if can_draft else 1
        )
        if not is_single and run[0].what.is_whole and all(all(r.rows.outputs) for r in run):
            passes.observe(n_rows, results[0].us)
        self._added_us = at_width(passes.full_us, n_rows) - at_width(passes.full_us, n_needed)
        return results

    def _advance(
        self, running: Sequence[_Running], results: Sequence[PassResult | Exception | None]
    ) -> list[Outcome]:
        pairs = zip(running, results, strict=True)
        outcomes = [outcome for each, result in pairs for outcome in each.advance(result)]
        self._running = [each for each in self._running if not each.has_ended]
        return outcomes

    def close(self) -> None:
        for generation in self.generations:
            self.leave(generation)


class _Running:
    """A generation and its current work.

    request: the pass that it waits for; None between two pieces of work, so that no time counts as
        reading the prompt and as drafting, or after the last one.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.request: PassRequest | None = None
        self.has_ended = False
        self._work: Work[None] | Work[Step] = generation.begin()

    def advance(self, result: PassResult | Exception | None) -> list[Outcome]:
        """Work up to the next request, or to the end of the current work; return what was
        finished."""
        self.request = None
        try:
            self.request = resumed(self._work, result).with_adapters(self.generation.adapters)
            return []
        except StopIteration as end:
            self.has_ended = self.generation.ended
            self._work = self.generation.step()
            return [(self.generation, end.value)]
        except Exception as error:  # of this generation; others go on
            self.has_ended = True
            if isinstance(error, ContextFullError) and self.generation.ended:
                return []
            return [(self.generation, error)]

    def close(self) -> None:
        self._work.close()
        self.request = None


def _shared_passes(context: Context) -> SharedPasses:
    n_most = min(context.abilities.pass_width, MAX_PASS_WIDTH)
    us = costs_without_passes(context).levels[0].full_us
    return SharedPasses(us, n_most, context.n_preparing)


def _next_pass(waiting: Sequence[_Running], context: Context) -> list[_Running]:
    """Return the generation that has waited longest and all that fit into its pass.

    Draft passes go first, so that generations waiting for their verification pass share it. None
    starves, since a draft ends at its limit. Snapshots of recurrent states cover a pass with as
    many rows of each sequence only.
    """
    drafts = [each for each in waiting if each.request and each.request.what.is_draft]
    first, *others = drafts or waiting
    assert first.request is not None
    chosen, n_rows = [first], first.request.n_needed
    for each in others:
        assert each.request is not None
        n = n_rows + each.request.n_needed
        n_first = first.request.n_needed
        covered = context.abilities.can_rollback or each.request.n_needed == n_first
        if (
            n <= context.abilities.pass_width
            and covered
            and each.request.what.joins(first.request.what)
        ):
            chosen.append(each)
            n_rows = n
    return chosen
