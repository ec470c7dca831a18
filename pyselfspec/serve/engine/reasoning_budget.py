"""Reasoning budget: when it is used up, the reasoning block is closed and the answer follows.
Pure."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .jobs import Finished, Job


@dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """The limit of the thoughts of an answer.

    n_tokens: most tokens, at least one. open, close: markers around thoughts. is_open: whether the
    prompt has opened them. end: the text that ends them, and its tokens.
    """

    n_tokens: int
    open: str
    close: str
    is_open: bool
    end: str
    end_tokens: tuple[int, ...]

    def is_within(self, text: str) -> bool:
        """Return whether an answer that begins with this text is within thoughts."""
        opened, closed = text.rfind(self.open), text.rfind(self.close)
        return self.is_open if opened == closed == -1 else opened > closed


def first_part(job: Job) -> Job:
    """Return the job up to the limit of its thoughts."""
    if job.thoughts is None:
        return job
    return replace(job, n_predict=min(job.n_predict, job.thoughts.n_tokens))


def next_part(job: Job, text: str, finished: Finished) -> tuple[str, Job] | None:
    """Return the rest of a job after its first part, and the text before it that ends the thoughts;
    None if nothing is left.

    text: of the first part.
    """
    limit = job.thoughts
    if limit is None or finished.reason != "length":
        return None
    end, end_tokens = (limit.end, limit.end_tokens) if limit.is_within(text) else ("", ())
    prompt = (*job.prompt, *finished.tokens, *end_tokens)
    n_left = job.n_predict - len(finished.tokens) - len(end_tokens)
    if n_left < 1:
        return None
    return end, replace(job, prompt=prompt, n_predict=n_left, thoughts=None)


def joined(first: Finished, second: Finished) -> Finished:
    """Return the end of an answer of two parts. The second has read the first as its prompt."""
    stats = deepcopy(first.stats)
    stats.add(second.stats)
    stats.n_prompt, stats.n_prompt_reused = first.stats.n_prompt, first.stats.n_prompt_reused
    return replace(second, stats=stats, tokens=(*first.tokens, *second.tokens))
