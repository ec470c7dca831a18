"""Random calls of the Python interface, some of each kind, and what they have found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gpt2
import tiny_mmproj
from fixture_types import NewContext, TinyModel, TinyPath
from png_files import png
from tiny_dflash import random_weights, write
from tiny_hybrids import write_hybrid
from toy_folder import write_all

from pyselfspec import Model
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.embedding import EmbeddingContext
from pyselfspec.runtime.passes import Hidden, Pass, PictureRows, Rows
from pyselfspec.runtime.projector import Projector
from tools import random_calls

SEED, N_RUNS, N_CALLS = 20261124, 4, 150


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("toys"))


@pytest.mark.sanitized
@pytest.mark.parametrize("seed", range(SEED, SEED + N_RUNS))
def test_random_calls_end_well(seed: int, toys: Path) -> None:
    ends, fault = random_calls.child(seed, N_CALLS, [toys])
    assert not fault, fault
    assert ends["succeeded"] > N_CALLS and ends["ArgumentError"]


def test_the_end_of_a_process_is_a_fault(toys: Path, tmp_path: Path) -> None:
    """A run whose process ends is reported with its seed."""
    broken = tmp_path / "random_calls.py"
    text = Path(random_calls.__file__).read_text(encoding="utf-8")
    assert text.count("result = call()") == 1
    broken.write_text(text.replace("result = call()", "result = os.abort()"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_calls, "__file__", str(broken))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        _, fault = random_calls.child(SEED, N_CALLS, [toys])
    assert fault.startswith(f"seed {SEED}: status -6, last calls:\n    ")


# --- what they have found -----------------------------------------------------------------------


@pytest.mark.parametrize("head", ["worst", ""])
def test_another_kind_of_head_is_refused(
    head: Any, tiny: TinyModel, new_context: NewContext
) -> None:
    with pytest.raises(ArgumentError, match=f"head is one of logits, best, got '{head}'"):
        new_context(tiny()).decode([5], head=head)


def test_another_kind_of_head_is_refused_of_draft_heads(
    tiny: TinyModel, new_context: NewContext, tmp_path: Path
) -> None:
    head = DraftHead(new_context(tiny()), write(tmp_path / "head.gguf", random_weights()))
    wrong: Any = "worst"
    with pytest.raises(ArgumentError, match="head is one of logits, best, got 'worst'"):
        head.draft_block(Rows.of(0, 0, [5]), wrong)


def test_a_picture_without_rows_is_refused(tiny: TinyModel, new_context: NewContext) -> None:
    nothing = Hidden(np.empty((0, tiny().n_embd), np.float32))
    with pytest.raises(ArgumentError, match="needs its rows, got none"):
        new_context(tiny()).run(
            Rows.of(0, 0, []), Pass(embedded=PictureRows(nothing, is_causal=True))
        )


def test_a_picture_ends_with_the_table_of_positions(
    tmp_path: Path, new_context: NewContext
) -> None:
    with Model(tiny_gpt2.write_gpt2(tmp_path / "gpt2.gguf")) as model:
        context = new_context(model, n_ctx=512)
        context.prefill([5] * tiny_gpt2.N_POSITIONS)
        rows = Rows.of(0, tiny_gpt2.N_POSITIONS, [5], "none")
        states = Hidden(np.zeros((1, model.n_embd), np.float32))
        with pytest.raises(ArgumentError, match="the model has positions 0 to 319"):
            context.run(rows, Pass(embedded=PictureRows(states, is_causal=True)))


def test_a_refused_removal_forgets_no_tokens(tiny: TinyModel, new_context: NewContext) -> None:
    context = new_context(tiny())
    context.prefill([5, 6, 7])
    with pytest.raises(ArgumentError, match="0 tokens or more, got -1"):
        context.sequence().rollback(-1)
    assert context.sequence().tokens == (5, 6, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": 0}, r"n_ctx \(-c\) is at least 1, got 0"),
        ({"n_ctx": 2**31 - 1}, r"n_ctx \(-c\) is at most"),
        ({"n_threads": -1}, "n_threads is at least 1, got -1"),
        ({"n_threads": 2**40}, "n_threads is at most 512"),
    ],
)
def test_options_of_embeddings_have_a_range(
    options: dict[str, int], message: str, tiny: TinyModel
) -> None:
    with pytest.raises(ArgumentError, match=message):
        EmbeddingContext(tiny(), pooling="mean", **options)


@pytest.fixture
def mmproj(tiny: TinyModel, tmp_path: Path) -> Iterator[Path]:
    yield tiny_mmproj.write(tmp_path / "mmproj.gguf", tiny().n_embd)


def test_threads_of_a_projector_have_a_range(tiny: TinyModel, mmproj: Path) -> None:
    with pytest.raises(ArgumentError, match="n_threads is at least 1, got 0"):
        Projector(tiny(), mmproj, n_threads=0)


def test_a_model_closes_its_projector(tiny_path: TinyPath, mmproj: Path) -> None:
    """A projector reads the vocabulary of its model, which is freed then."""
    with Model(tiny_path()) as model:
        projector = Projector(model, mmproj, n_threads=1)
    with pytest.raises(ArgumentError, match="the projector is closed"):
        projector.read(png(1))
    projector.close()


@pytest.mark.parametrize("n_batch", [1, 2, 4, 16, 17])
def test_snapshots_leave_room_in_a_pass(n_batch: int, tmp_path: Path) -> None:
    with Model(write_hybrid(tmp_path / "model.gguf", "lfm2")) as model:
        most = max(0, n_batch - 2)
        for n_snapshots in (None, min(15, most)):
            with model.context(
                n_ctx=256, n_batch=n_batch, n_seq_max=1, n_threads=1, n_snapshots=n_snapshots
            ) as context:
                context.prefill([5] * 40)
        if most < 15:
            with pytest.raises(ArgumentError, match=f"n_snapshots is at most {most}"):
                model.context(n_batch=n_batch, n_snapshots=most + 1)
