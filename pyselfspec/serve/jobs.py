"""What travels between requests and the engine: jobs there, events back. Data alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import SelfSpecError
from ..masks.layer_mask import LayerMask
from ..runtime.logprobs import LogProbs
from ..runtime.sampling import SamplingParams
from ..speculate.controllers import DEFAULT, Controller
from ..speculate.draft_names import Names
from ..speculate.prepared import AUTO
from ..speculate.types import GenerationStats

MODEL = "full"  # where a token is from that nobody has drafted; a drafter is called "model"


class BusyError(SelfSpecError):
    """The queue is full."""


class ShutdownError(SelfSpecError):
    """The server takes no more requests, or cuts off its open ones."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class TooLateError(SelfSpecError):
    """A text that was not finished in the time that requests have."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """How texts are drafted; fields as for Completion."""

    draft: Names | None = AUTO
    options: Any = None
    mask: LayerMask | None = None
    profile: bool = True
    controller: Controller | str = DEFAULT

    def by(self, draft: Names | None) -> Drafting:
        """The same with other drafters."""
        if draft == self.draft:
            return self
        mask = None if draft is None else self.mask
        return replace(self, draft=draft, options=None, mask=mask)


@dataclass(frozen=True, slots=True)
class Job:
    """A text to be written. logprobs, stop: as for Completion.

    shows_tokens: its pieces say which tokens they are, and where these are from.
    """

    prompt: tuple[int, ...]
    n_predict: int
    sampling: SamplingParams
    drafting: Drafting
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    shows_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Text of one token; source: the drafter's name, or MODEL."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Started:
    """Nothing is wrong with the job, and it has a place."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What a step has added. origins: of just this text, where tokens are to be shown.
    logprobs: of the tokens that begin in it, where they were asked for, each with its text.
    us: microseconds of the step.
    """

    text: str
    origins: tuple[Origin, ...]
    logprobs: tuple[tuple[str, LogProbs], ...]
    us: int


@dataclass(frozen=True, slots=True)
class Finished:
    """reason: as a Completion's finish_reason. draft: the drafter's name, None where decoding was
    plain. estimated_speedup, mask: as the Completion's."""

    reason: str
    stats: GenerationStats
    draft: str | None
    estimated_speedup: float | None = None
    mask: LayerMask | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The text ends here."""

    error: Exception


Event = Started | Grown | Finished | Failed


@dataclass(eq=False, slots=True)
class Ticket:
    """A job on its way. emit: told its events, in the engine's thread; Finished and Failed are the
    last ones. deadline: in seconds of time.monotonic()."""

    job: Job
    emit: Callable[[Event], None]
    deadline: float
    cancelled: bool = field(default=False, init=False)
