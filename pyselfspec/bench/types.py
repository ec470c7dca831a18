"""What a benchmark keeps: how it was set up, what was measured, what passes cost. Pure.

Counts and times only; figures are derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..costs.table import CostTable

PLAIN = "plain"  # the way without drafts
Key = tuple[int, str, str]  # of a run: round, prompt, way
# What must agree for runs to be comparable, and how to call it.
SAME = {
    "format": "format",
    "build": "library build",
    "fingerprint": "model",
    "machine": "machine",
    "system": "kind of processor",
    "threads": "number of threads",
    "n_gpu_layers": "number of GPU layers",
    "n_ctx": "context size",
    "attention": "kind of attention",
    "prompts_sha256": "set of prompts",
    "template": "use of the chat template",
    "n_predict": "number of tokens",
    "temperature": "temperature",
    "seed": "seed",
    "controller": "controller",
    "ways": "choice of drafts",
    "mask": "mask",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """A way, and the drafters that its name stands for, "" for PLAIN."""

    name: str
    drafters: str


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that decides what is measured, and with what.

    model: its file's name. cpu_code: the instruction sets that this build uses here. system: what
    the library says of devices and kernels. prompts: the name of their file. seed: of the first
    round; each round has the next one.
    """

    FORMAT: ClassVar[int] = 1

    version: str
    build: str
    model: str
    fingerprint: str
    architecture: str
    file_type: str
    n_params: int
    n_bytes: int
    machine: str
    cpu_code: str
    system: str
    threads: int
    n_gpu_layers: int
    n_ctx: int
    attention: str
    prompts: str
    prompts_sha256: str
    n_prompts: int
    template: bool
    n_predict: int
    temperature: float
    seed: int
    controller: str
    ways: tuple[Compared, ...]
    mask: dict[str, Any] | None
    command: str
    date: str

    @property
    def way_names(self) -> list[str]:
        return [way.name for way in self.ways]


@dataclass(frozen=True, slots=True)
class Source:
    """What one drafter proposed, and what was accepted, by position in the draft."""

    n_drafted_at: tuple[int, ...]
    n_accepted_at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of a text.

    drafted: tokens by drafter. texts: of the tokens that it added. origins: of each, the drafter
    that guessed it, "" for the model's own.
    """

    draft_us: int
    verify_us: int
    drafted: dict[str, int]
    texts: tuple[str, ...]
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One answer to one prompt.

    prompt_us: to take in the prompt, all but its last token. us: what followed. n_passes: of the
    full model, the prompt's not counted. text_sha256: of the token ids. moments: of the first
    round's only.
    """

    prompt: str
    task: str
    round: int
    way: str
    n_prompt: int
    prompt_us: int
    n_tokens: int
    us: int
    n_passes: int
    n_drafted_at: tuple[int, ...]
    n_accepted_at: tuple[int, ...]
    sources: dict[str, Source]
    text_sha256: str
    finish_reason: str
    moments: tuple[Moment, ...] = ()

    @property
    def key(self) -> Key:
        return self.round, self.prompt, self.way


@dataclass(frozen=True, slots=True)
class Widths:
    """Costs of passes by their width. n_rounds: repetitions that medians are of."""

    costs: CostTable
    n_rounds: int


@dataclass(frozen=True, slots=True)
class Results:
    """All that there is to show. widths: None where they were not measured."""

    setup: Setup
    runs: tuple[Run, ...] = ()
    widths: Widths | None = None

    def with_line(self, line: Run | Widths) -> Results:
        """These and one thing more."""
        if isinstance(line, Widths):
            return replace(self, widths=line)
        return replace(self, runs=(*self.runs, line))
