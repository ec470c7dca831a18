"""Cells of the K/V cache: those of every text keep the order that they have alone, however many
others come and go, so its logits keep their bits. The oracle is the text in a context of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from pyselfspec.runtime.abilities import Abilities
from pyselfspec.runtime.context import Context
from pyselfspec.runtime.model import Model
from pyselfspec.runtime.passes import Rows
from pyselfspec.serve.engine.slots import Slot, Slots

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "pyselfspec" / "native"
LLAMA_CPP = ROOT / "vendor" / "llama.cpp"
WIDTH = 32
N_SLOTS = 4


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs tests/native/cells.cpp with arguments; what it printed."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or not LLAMA_CPP.is_dir():
        pytest.skip("needs a compiler and the source that an install unpacks")
    program = tmp_path_factory.mktemp("cells") / "cells"
    folders = [
        NATIVE,
        NATIVE / "graph",
        *(LLAMA_CPP / part for part in ("src", "include", "ggml/include")),
    ]
    sources = [
        ROOT / "tests/native/cells.cpp",
        *(NATIVE / "kv" / f"{name}.cpp" for name in ("placement", "compaction-plan")),
    ]
    command = [compiler, "-std=gnu++17", "-O1", *(f"-I{folder}" for folder in folders), *sources]
    subprocess.run([*map(str, command), "-o", str(program)], check=True)

    def run(*arguments: int) -> str:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


@pytest.mark.parametrize("n_cells", [64, 256, 700])
@pytest.mark.parametrize("seed", range(4))
def test_order_is_kept_in_a_cache_that_is_mostly_full(
    seed: int, n_cells: int, cells: Callable[..., str]
) -> None:
    n_rows, _, n_moves, _ = cells(seed, n_cells, 3000).split()
    assert int(n_rows) > 3000 and int(n_moves)


@pytest.mark.parametrize("n_each", [48, 2000])
def test_short_texts_do_not_spread_over_a_large_cache(
    n_each: int, cells: Callable[..., str]
) -> None:
    """Passes look at all cells below the last one in use."""
    n_used, n_below = map(int, cells(2**17, n_each).split())
    assert n_used == 2 * n_each
    assert n_below <= 2 * n_used + 512


@dataclass
class Job:
    """Passes of a text: tokens, and how many of them are kept."""

    prompt: list[int]
    checks: list[tuple[list[int], int]] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        return len(self.prompt) + sum(n for _, n in self.checks) + 6

    def passes(self, n_held: int) -> Iterator[tuple[list[int], int]]:
        for i in range(n_held, len(self.prompt), WIDTH):
            part = self.prompt[i : i + WIDTH]
            yield part, len(part)
        yield from self.checks

    def alone(self, context: Context) -> np.ndarray:
        """Logits of the last pass."""
        seq = context.sequence()
        seq.drop()
        for tokens, n_keep in self.passes(0):
            n_past = seq.n_past
            logits = context.decode(tokens).logits
            seq.rollback(n_past + n_keep)
        return logits


def random_job(rng: np.random.Generator, n_vocab: int, n_share: int) -> Job:
    """Return a job with a random prompt that begins with one of three shared beginnings."""
    n_prompt, n_more = (int(n) for n in rng.integers(10, n_share // 2, 2))
    beginning = np.random.default_rng(int(rng.integers(3))).integers(5, n_vocab, n_share // 4)
    prompt = [*beginning, *rng.integers(5, n_vocab, n_prompt)][:n_prompt]
    job = Job([int(token) for token in prompt])
    while job.n_tokens < n_prompt + n_more:
        width = int(rng.integers(1, 7))
        tokens = [int(token) for token in rng.integers(5, n_vocab, width)]
        job.checks.append((tokens, int(rng.integers(1, width + 1))))
    return job


def n_different(model: Model, n_cells: int, n_texts: int, seed: int) -> int:
    """Texts come and go in the slots of a server's context: how many end with other logits than
    alone."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    options = {"n_batch": WIDTH, "n_threads": 1}
    alone = model.context(n_ctx=n_cells, **options)
    with alone, model.context(n_ctx=n_cells, n_seq_max=2 * N_SLOTS, **options) as context:
        slots, n_wrong, n_done = Slots(context, N_SLOTS, n_cells), 0, 0
        running: list[tuple[Slot, Job, Iterator[tuple[list[int], int]]]] = []
        job = random_job(rng, model.n_vocab, n_cells // N_SLOTS)
        while n_done < n_texts:
            if slot := slots.take(job.prompt, job.n_tokens):
                running.append((slot, job, job.passes(slot.seq.keep(job.prompt[:-1]))))
                slot.seq.reserve(job.n_tokens)
                job = random_job(rng, model.n_vocab, n_cells // N_SLOTS)
            for each in list(running):
                slot, its_job, passes = each
                tokens, n_keep = next(passes)
                n_past = slot.seq.n_past
                logits = context.run(Rows.of(slot.seq.seq_id, n_past, tokens)).logits
                slot.seq.rollback(n_past + n_keep)
                if n_past + n_keep == its_job.n_tokens - 6:
                    running.remove(each)
                    assert slot.seq.in_order
                    slots.free(slot)
                    n_wrong += not np.array_equal(logits, its_job.alone(alone))
                    n_done += 1
        n_moves = context.n_moves
    assert n_moves and not slots.n_disordered
    return n_wrong


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("seed", range(2))
def test_texts_in_the_slots_of_a_server_keep_their_bits(seed: int, arch: str, tiny) -> None:
    assert n_different(tiny(arch, qtype="Q8_0"), 512, 60, seed) == 0


@pytest.mark.slow
def test_soak(tiny) -> None:
    """The cache is full throughout."""
    assert n_different(tiny("llama", qtype="Q4_0"), 1024, 600, 0) == 0


def grow_where_no_cells_above_are_free(context: Context) -> None:
    """Sequence 1 holds the last cells, and goes on when cells below them are free."""
    first, second = context.sequence(0), context.sequence(1)
    for _ in range(3):
        context.decode([5] * 64, seq=first, outputs="none")
    context.decode([5] * 64, seq=second, outputs="none")
    first.rollback(100)
    context.decode([5] * 64, seq=second, outputs="none")
    assert (first.n_past, second.n_past, context.n_ctx) == (100, 128, 256)


def test_cells_are_not_moved_where_their_place_has_a_say_in_the_bits(tiny, new_context) -> None:
    """Without flash attention, whether they are in order is told instead."""
    moving = new_context(tiny(), n_ctx=256)
    staying = new_context(tiny(), n_ctx=256, flash_attn=False)
    for context in (moving, staying):
        grow_where_no_cells_above_are_free(context)
        assert context.sequence(0).in_order
    assert moving.n_moves == 1 and moving.sequence(1).in_order
    assert staying.n_moves == 0 and not staying.sequence(1).in_order
    staying.sequence(1).rollback(64)
    assert staying.sequence(1).in_order


def test_a_text_whose_cells_lost_their_order_is_read_anew(tiny, new_context, monkeypatch) -> None:
    context = new_context(tiny(), n_ctx=256, flash_attn=False)
    monkeypatch.setattr(
        Abilities, "is_exact_beside_others", True
    )  # though its cells cannot be moved
    slots = Slots(context, 2, 256)
    for _ in slots.slots:
        assert slots.take([5] * 100, 128) is not None
    grow_where_no_cells_above_are_free(context)
    for slot in slots.slots:
        slots.free(slot)
    assert slots.n_disordered == 1
    assert [slot.seq.n_past for slot in slots.slots] == [100, 0]


def test_a_promise_ends_with_its_sequence(tiny, new_context) -> None:
    """A sequence that was dropped has no say in where others go."""
    context = new_context(tiny(), n_ctx=512)
    first, second = context.sequence(0), context.sequence(1)
    first.reserve(400)
    context.decode([5], seq=first)
    first.drop()
    context.decode([5], seq=first)
    second.reserve(250)
    context.decode([5], seq=second)
    assert not context.n_moves
    first.reserve(10**9)
    assert first.n_past == 1
