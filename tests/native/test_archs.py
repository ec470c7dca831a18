"""Architectures of llama.cpp against files with zeroed sublayers, see tools/archs.py: one of each
family, and every night all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pyselfspec import Context, Model
from pyselfspec.errors import ModelFileError
from pyselfspec.runtime.passes import Rows
from pyselfspec.runtime.sequence_snapshot import restore_sequence, save_sequence
from tools import archs

pytestmark = pytest.mark.archs

N_EXACT = 113  # of 128 in the pinned llama.cpp; the others refuse by name what they cannot do


# of the families; benchmarks/README.md says what the others refuse
EXACT_FAMILIES = {
    *("llama-dense", "qwen3moe-moe", "deepseek2-moe", "gemma3-dense", "gpt2-dense", "phi2-dense"),
    *("llama4-moe", "nemotron_h-dense", "jamba-dense", "mamba-dense", "mamba2-dense"),
    "dream-dense",
}


@pytest.fixture(scope="module")
def results(toy_models: Path) -> list[archs.Result]:
    return list(archs.check_models(toy_models))


@pytest.fixture
def is_all(toy_models: Path, archs_folder: Path) -> bool:
    return toy_models == archs_folder


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.gguf")}


def test_most_architectures_are_exact_throughout(results: list[archs.Result], is_all: bool) -> None:
    exact = {result.model for result in results if result.is_exact}
    if is_all:
        assert len(exact) == N_EXACT, "docs/how-it-works.md gives this number"
        assert exact >= EXACT_FAMILIES
    else:
        assert exact == EXACT_FAMILIES


def test_none_is_wrong_and_none_ends_the_process(results: list[archs.Result]) -> None:
    assert [result for result in results if result.is_wrong] == []


def test_what_is_not_exact_is_refused_by_name(results: list[archs.Result]) -> None:
    for result in results:
        for kind, refused in result.refused.items():
            assert len(result.exact[kind]) + len(refused) == result.n_layer, (result.model, kind)
            for text in refused.values():
                assert text.startswith("architecture ") and ", block " in text, text


NOT_EXACT = {
    *("dream-dense", "llada-dense", "llada-moe-moe", "rnd1-moe"),  # attention over the batch
    *("minimax-01-moe", "minimax-m3-moe"),  # sums over the rows of the batch
}


def test_rows_are_exact_where_that_is_promised(toy_models: Path) -> None:
    """One by one, a few and as many as may be, in all architectures but these."""
    promised, refused = set(), set()
    for path in sorted(toy_models.glob("*.gguf")):
        try:
            model = Model(path)
        except ModelFileError:
            continue
        with model:
            width = width_of(model)
            (promised if width else refused).add(path.stem)
            if width:
                tokens = np.random.default_rng(3).integers(3, model.n_vocab, 40).tolist()
                one, few, many = (logits_at(model, tokens, n) for n in (1, 3, width))
                np.testing.assert_array_equal(few, one, err_msg=path.stem)
                np.testing.assert_array_equal(many, one, err_msg=path.stem)
    if promised:  # by our kernels, where they are made for the processor
        assert refused == NOT_EXACT & names(toy_models)


def models(folder: Path) -> Iterator[tuple[str, Model]]:
    """Toy models with a memory, and their names."""
    for path in sorted(folder.glob("*.gguf")):
        try:
            model = Model(path)
        except ModelFileError:
            continue
        with model:
            with model.context(n_ctx=256, n_batch=32, n_threads=1) as context:
                has_memory = context.abilities.has_memory
            if has_memory:
                yield path.stem, model


def test_prompts_are_exact_where_that_is_promised(toy_models: Path, is_all: bool) -> None:
    """In pieces of 16, in one, and in two."""
    n_promised = 0
    for name, model in models(toy_models):
        tokens = np.random.default_rng(0).integers(5, model.n_vocab, 150).tolist()
        with model.context(n_ctx=256, n_batch=256, n_threads=1) as context:
            if not context.abilities.exact_prompts:
                continue
            n_promised += 1
            found = []
            for ends in ([*range(16, 150, 16), 150], [150], [33, 150]):
                context.sequence().drop()
                for end in ends:
                    n_past = context.sequence().n_past
                    last = context.decode(tokens[n_past:end]).logits[-1]
                found.append(last)
        np.testing.assert_array_equal(found[1], found[0], err_msg=name)
        np.testing.assert_array_equal(found[2], found[0], err_msg=name)
    assert n_promised > (90 if is_all else 5)


def test_a_saved_sequence_goes_on_in_another_context(toy_models: Path) -> None:
    options = {"n_ctx": 256, "n_batch": 32, "n_threads": 1}
    for name, model in models(toy_models):
        with model.context(**options) as one, model.context(**options) as other:
            read(one, 0, 64)
            saved = save_sequence(one.sequence())
            assert saved is not None and restore_sequence(other.sequence(), saved), name
            want, got = one.decode([7, 8]).logits, other.decode([7, 8]).logits
            if one.abilities.is_exact_beside_others:
                np.testing.assert_array_equal(got, want, err_msg=name)
            np.testing.assert_allclose(got, want, atol=1e-3, err_msg=name)


# Texts by their number, and how many tokens are read; from the fifth on only 1 and 3 are there.
TURNS = ((0, 64), (1, 64), (2, 64), (3, 60), (3, 64), (1, 48))


def read(context: Context, seq_id: int, n: int) -> archs.Logits:
    """Logits of so many tokens more of a text, in pieces of 16."""
    tokens = np.random.default_rng(1).integers(5, context.model.n_vocab - 4, n) + seq_id
    pieces = [tokens[k : k + 16].tolist() for k in range(0, n, 16)]
    seq = context.sequence(seq_id)
    return np.concatenate([context.decode(piece, seq=seq).logits for piece in pieces])


def test_cells_move_without_changing_a_text(toy_models: Path, is_all: bool) -> None:
    """In a cache of 256 cells, each text as in a context of its own: to the bit where texts do not
    depend on each other, and nearly so everywhere. Cells that another cache mirrors stay."""
    n_moved = 0
    for name, model in models(toy_models):
        options = {"n_ctx": 256, "n_batch": 32, "n_threads": 1, "n_seq_max": 4}
        with model.context(**options) as context, ExitStack() as stack:
            alone = [stack.enter_context(model.context(**options)) for _ in range(4)]
            is_exact = context.abilities.is_exact_beside_others
            for turn, (i, n) in enumerate(TURNS):
                if turn == 4:
                    context.sequence(0).drop()
                    context.sequence(2).drop()
                one, other = read(context, i, n), read(alone[i], i, n)
                if is_exact:
                    np.testing.assert_array_equal(one, other, err_msg=name)
                else:
                    np.testing.assert_allclose(one, other, atol=np.ptp(other) / 50, err_msg=name)
            assert not is_exact or (context.sequence(1).in_order and context.sequence(3).in_order)
            n_moved += context.n_moves > 0
    assert n_moved > (80 if is_all else 4)


def width_of(model: Model) -> int:
    with model.context(n_ctx=256, n_batch=64, n_threads=1, n_seq_max=1) as context:
        return context.abilities.exact_width


def logits_at(model: Model, tokens: list[int], width: int) -> archs.Logits:
    """Return the logits of all tokens after the first eight, decoded in passes of this width."""
    with model.context(n_ctx=256, n_batch=64, n_threads=1, n_seq_max=1) as context:
        context.decode(tokens[:8], outputs="none")
        rest = range(8, len(tokens), width)
        return np.concatenate([context.decode(tokens[i : i + width]).logits for i in rest])


def test_hidden_states_enter_most_architectures(results: list[archs.Result], is_all: bool) -> None:
    entered = [result for result in results if result.enter_exact and not result.enter_refused]
    assert len(entered) >= (90 if is_all else 7)


REPLAYED = {
    *("bailingmoe3-moe", "falcon-h1-dense", "granitehybrid-dense", "jamba-dense", "kimi-k3-moe"),
    *("kimi-linear-moe", "lfm2-dense", "lfm2moe-moe", "mamba-dense", "mamba2-dense"),
    *("nemotron_h-dense", "nemotron_h_moe-dense", "qwen35-dense", "qwen35moe-moe"),
    "qwen3next-moe",
}


def test_states_are_computed_again_where_that_is_known(toy_models: Path) -> None:
    """Two sequences in each pass, random removals: the bits of one token at a time."""
    rng = np.random.default_rng(seed := 2)
    print(f"seed {seed}")
    replayed = set()
    for path in sorted(toy_models.glob("*.gguf")):
        try:
            model = Model(path)
        except ModelFileError:
            continue
        with model:
            if model.replays_states:
                replayed.add(path.stem)
                check_replay(model, rng)
    assert replayed == REPLAYED & names(toy_models)


def check_replay(model: Model, rng: np.random.Generator) -> None:
    text = [int(token) for token in rng.integers(3, model.n_vocab, 48)]
    options = {"n_ctx": 256, "n_batch": 64, "n_threads": 1, "n_seq_max": 3}
    with model.context(**options, n_snapshots=0) as context:
        expected = np.concatenate([context.decode([token]).logits for token in text])
    with model.context(**options) as context:
        assert context.abilities.max_rollback == 15
        sequences = [context.sequence(0), context.sequence(2)]
        while all(seq.n_past + 8 < len(text) for seq in sequences):
            width = int(rng.integers(1, 9))
            starts = [seq.n_past for seq in sequences]
            n_right = [int(n) for n in rng.integers(1, width + 1, 2)]
            rows = [
                Rows.of(seq.seq_id, at, [*text[at : at + n], *[9] * (width - n)], "all")
                for seq, at, n in zip(sequences, starts, n_right, strict=True)
            ]
            context.run(Rows.joined(rows))
            for i, (seq, at, n) in enumerate(zip(sequences, starts, n_right, strict=True)):
                got = np.stack([context.logits(width * i + row) for row in range(n)])
                np.testing.assert_array_equal(got, expected[at : at + n], model.path.name)
                seq.rollback(at + n)
