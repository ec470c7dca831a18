"""The data that travels between requests and the engine: jobs one way, events the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import SelfSpecError
from ...masks.layer_mask import LayerMask
from ...runtime.logprobs import LogProbs
from ...runtime.lora import Adapters
from ...runtime.pictures import Picture
from ...runtime.sampling import SamplingParams
from ...speculate.config import DraftConfig
from ...speculate.output.line_limits import LineLimits
from ...speculate.reasoning_budget import ReasoningBudget
from ...speculate.stats import GenerationStats

MODEL = "full"  # the source of tokens that were not drafted; "model" is the name of a drafter


class BusyError(SelfSpecError):
    """The queue is full."""


class ShutdownError(SelfSpecError):
    """The server is shutting down: it accepts no request and cuts off requests that take long."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class TooLateError(SelfSpecError):
    """A completion was not finished within the time limit of its request."""


@dataclass(frozen=True, slots=True)
class Job:
    """A completion to generate. n_predict: most tokens; 0 only reads the prompt. logprobs, stop,
    line_limits: arguments of Completion. shown: control tokens that it shows, with their texts.
    reasoning_budget: None for no limit. adapters: LoRA adapters. pictures: images in the prompt.
    shows_tokens: whether its deltas list tokens with their sources. shows_progress: whether it
    tells how much of the prompt has been read.
    """

    prompt: tuple[int, ...]
    n_predict: int
    sampling: SamplingParams
    drafting: DraftConfig
    stop: tuple[str, ...] = ()
    line_limits: LineLimits | None = None
    logprobs: int | None = None
    shows_tokens: bool = False
    shows_progress: bool = False
    shown: tuple[tuple[int, str], ...] = ()
    reasoning_budget: ReasoningBudget | None = None
    adapters: Adapters = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenText:
    """The text of one token. source: the name of the drafter that proposed it, or MODEL."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Started:
    """The job was valid and has a slot."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a prompt has been read. n_read: tokens so far, with the n_reused that needed no
    reading. us: microseconds since the job has its slot."""

    n_prompt: int
    n_reused: int
    n_read: int
    us: int


@dataclass(frozen=True, slots=True)
class Delta:
    """The text that one step added.

    tokens: this text by token, if the job shows tokens. logprobs: text and probabilities of each
    token that begins in it, if the job asks for them. us: duration of the step in microseconds.
    """

    text: str
    tokens: tuple[TokenText, ...]
    logprobs: tuple[tuple[str, LogProbs], ...]
    us: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a completion. reason: its finish_reason. draft: name of the drafter, None
    for plain decoding. The other fields are attributes of the Completion."""

    reason: str
    stats: GenerationStats
    draft: str | None
    estimated_speedup: float | None = None
    mask: LayerMask | None = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a completion by an error."""

    error: Exception


Event = Started | Progress | Delta | Finished | Failed


@dataclass(eq=False, slots=True)
class Ticket:
    """A job in the queue or in a slot.

    emit: receives the job's events in the engine's thread; the last is Finished or Failed.
    deadline: in seconds of time.monotonic(). owner: whose completion it is, see
    protocol.auth.owner_of.
    """

    job: Job
    emit: Callable[[Event], None]
    deadline: float
    owner: str = ""
    cancelled: bool = field(default=False, init=False)
