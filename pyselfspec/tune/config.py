"""Options of a tuning run and their defaults. Imports no torch: ``--help`` works without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MINUTES = 60.0
DRAFT_VOCAB_SIZE = 8192
TYPE = "q4_0"
DEVICES = ("cpu", "cuda")
SEED = 0


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How a head is trained.

    n_steps: draft positions that the loss covers.
    decay: weight of a position in the loss, relative to the position before it.
    rate: step size of Muon, for the inner matrices.
    rate_other: step size of AdamW, for the output matrix and the norms.
    """

    n_steps: int = 3
    decay: float = 0.8
    rate: float = 0.005
    rate_other: float = 5e-4


@dataclass(frozen=True, slots=True)
class TuneConfig:
    """Options of a tuning run; None for a default that depends on the model or the machine.

    minutes: time limit of this run.
    n_tokens: size of the training data; None: as many as half of ``minutes`` allows.
    n_batches: total length of training, over all runs; None: until the time is up.
    prompts: a JSONL file of chats, a text file or a folder of text files.
    folder: where training data and the checkpoint are kept.
    out: the head's file; None: ``head.gguf`` in ``folder``, installed if it makes drafting faster.
    blocks: the three blocks whose input states the head reads.
    draft_vocab_size: number of tokens that the head can draft.
    type_name: type of the head's weights, as ``convert`` takes it.
    n_lines, n_rows: shape of a batch.
    n_texts, n_answer: texts per data file and tokens per answer.
    bfloat16: whether to compute in bfloat16; None: if it is faster than float32 here.
    """

    minutes: float = MINUTES
    n_tokens: int | None = None
    n_batches: int | None = None
    prompts: Path | None = None
    folder: Path | None = None
    out: Path | None = None
    blocks: tuple[int, ...] | None = None
    draft_vocab_size: int = DRAFT_VOCAB_SIZE
    type_name: str = TYPE
    device: str = DEVICES[0]
    seed: int = SEED
    n_lines: int = 8
    n_rows: int = 256
    n_texts: int | None = None
    n_answer: int | None = None
    bfloat16: bool | None = None
    training: TrainingOptions = field(default_factory=TrainingOptions)
