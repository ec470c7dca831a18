"""What a head is to be, and its defaults. Knows nothing of torch, so that they can be shown without
it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MINUTES = 60.0
N_OWN = 8192
TYPE = "q4_0"
DEVICES = ("cpu", "cuda")
SEED = 0


@dataclass(frozen=True, slots=True)
class Options:
    """n_steps: unrolled. decay: how much less each counts than the one before it. rate: step size
    of Muon, which turns the inner matrices; rate_other: of AdamW, for the output and the norms."""

    n_steps: int = 3
    decay: float = 0.8
    rate: float = 0.005
    rate_other: float = 5e-4


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a head is made of and how long it may take; None for a default.

    minutes: of this run. n_tokens: of data in all; None: what the first half of the time yields.
    n_batches: of training in all, instead of the time.
    prompts: a JSONL file of chats, a text or a folder of texts. folder: of the data.
    out: the head's file; None: one in the folder of the data.
    blocks: whose entering states the head reads. n_own: tokens that it can guess.
    n_lines, n_rows: of a batch.
    """

    minutes: float = MINUTES
    n_tokens: int | None = None
    n_batches: int | None = None
    prompts: Path | None = None
    folder: Path | None = None
    out: Path | None = None
    blocks: tuple[int, ...] | None = None
    n_own: int = N_OWN
    type_name: str = TYPE
    device: str = DEVICES[0]
    seed: int = SEED
    n_lines: int = 8
    n_rows: int = 256
    n_texts: int | None = None
    n_answer: int | None = None
    half: bool | None = None
    training: Options = field(default_factory=Options)
