"""Records of a benchmark: its setup, its runs, and costs of passes. Pure.

Counts and times only; figures are derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..costs.table import CostTable

PLAIN = "plain"  # the name of the variant without drafts
UPSTREAM = "llama.cpp"  # that of plain decoding with llama.cpp's kernels in place of ours
Key = tuple[int, str, str]  # of a run: round, prompt and variant
# Fields of Setup that must be equal for runs to be comparable, and their names in messages.
MUST_MATCH = {
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
    "variants": "choice of variants",
    "mask": "mask",
}


@dataclass(frozen=True, slots=True)
class VariantName:
    """The name of a variant, and its drafters joined by +, "" without drafts."""

    name: str
    drafters: str


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that the results depend on.

    model: name of its file. cpu_code: instruction sets that the library uses on this machine.
    system: the library's description of devices and kernels. prompts: name of their file. seed: of
    the first round; each round has the next one.
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
    variants: tuple[VariantName, ...]
    mask: dict[str, Any] | None
    command: str
    date: str

    @property
    def variant_names(self) -> list[str]:
        return [variant.name for variant in self.variants]


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Draft tokens of one drafter, and accepted ones, by position in the draft."""

    n_drafted_at: tuple[int, ...]
    n_accepted_at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of an answer.

    drafted: number of draft tokens by drafter. texts: those of the tokens that it added. sources:
    for each of these, the drafter that proposed it, "" for the full model.
    """

    draft_us: int
    verify_us: int
    drafted: dict[str, int]
    texts: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One answer to one prompt.

    prompt_us: time to read the prompt except its last token. us: time after that. n_passes: passes
    of the full model after the prompt. text_sha256: digest of the token ids. steps: those of an
    answer of the first round, else empty.
    """

    prompt: str
    task: str
    round: int
    variant: str
    n_prompt: int
    prompt_us: int
    n_tokens: int
    us: int
    n_passes: int
    n_drafted_at: tuple[int, ...]
    n_accepted_at: tuple[int, ...]
    sources: dict[str, SourceCounts]
    text_sha256: str
    finish_reason: str
    steps: tuple[StepRecord, ...] = ()

    @property
    def key(self) -> Key:
        return self.round, self.prompt, self.variant


@dataclass(frozen=True, slots=True)
class Widths:
    """Costs of passes by width. n_rounds: repetitions of which these are medians."""

    costs: CostTable
    n_rounds: int


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a benchmark. widths: None if they were not measured."""

    setup: Setup
    runs: tuple[Run, ...] = ()
    widths: Widths | None = None

    def with_line(self, line: Run | Widths) -> Results:
        """Return these results with one more record."""
        if isinstance(line, Widths):
            return replace(self, widths=line)
        return replace(self, runs=(*self.runs, line))
