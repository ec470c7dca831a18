"""Random models with recurrent states: they load and write text, which the states can decide."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fixture_types import RunPython
from narrow_passes import decoded
from numpy.typing import NDArray
from tiny_hybrids import write_hybrid

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.errors import ModelFileError
from pyselfspec.runtime.passes import Pass, Rows

sys.path.append(str(Path(__file__).parents[2]))

from tools.models import hybrids, random_gguf
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN

ARCHS = pytest.mark.parametrize("arch", hybrids.TINY)


def random_tokens(seed: int, n_tokens: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(N_CONTROL, N_VOCAB_MIN, n_tokens)]


def greedy_tokens(path: Path, prompt: list[int], n_predict: int) -> list[int]:
    with Model(path) as model, model.context(n_ctx=512, n_threads=1) as context:
        text = Completion(context, prompt, draft=None, n_predict=n_predict, sampling=GREEDY)
        for _ in text:
            pass
        return list(text.tokens)


def last_logits(path: Path, tokens: list[int]) -> NDArray[np.float32]:
    with Model(path) as model, model.context(n_ctx=512, n_threads=1) as context:
        context.prefill(tokens[:-1])
        context.decode(tokens[-1:], outputs="last")
        return context.logits(0)


@ARCHS
def test_greedy_text_repeats(tmp_path: Path, arch: str) -> None:
    path = write_hybrid(tmp_path / "m.gguf", arch)
    tokens = greedy_tokens(path, random_tokens(0, 8), 4 * hybrids.CYCLE)
    assert len(set(tokens)) == hybrids.CYCLE
    assert tokens[hybrids.CYCLE :] == tokens[: -hybrids.CYCLE]


@ARCHS
def test_varied_text_depends_on_more_than_the_last_token(tmp_path: Path, arch: str) -> None:
    path = write_hybrid(tmp_path / "m.gguf", arch, varied=True)
    end = random_tokens(0, 1)
    one, other = (greedy_tokens(path, random_tokens(seed, 30) + end, 64) for seed in (1, 2))
    assert one != other
    assert len(set(one)) > hybrids.CYCLE


@ARCHS
def test_states_remember_and_stay_finite(tmp_path: Path, arch: str) -> None:
    """Beyond the reach of the convolutions, early tokens change the logits, by a bounded amount."""
    path = write_hybrid(tmp_path / "m.gguf", arch)
    for n_tail in (32, 450):
        tail = random_tokens(0, n_tail)
        one, other = (last_logits(path, random_tokens(seed, 32) + tail) for seed in (1, 2))
        assert np.isfinite(one).all() and np.isfinite(other).all()
        assert one.std() == pytest.approx(1, rel=0.5)
        assert np.abs(one - other).max() > (1e-3 if n_tail == 32 else 0)


@pytest.mark.parametrize(
    ("arch", "blocks"),
    [
        ("lfm2", {"pattern": "CCCC"}),
        ("qwen35", {"attention_period": 9}),
        ("nemotron_h", {"pattern": "MFMF"}),
    ],
)
def test_a_hybrid_model_without_attention_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, blocks: dict[str, Any]
) -> None:
    """llama.cpp would end the process in the first pass."""
    monkeypatch.setitem(random_gguf.TINY, arch, replace(hybrids.TINY[arch], **blocks))
    path = write_hybrid(tmp_path / "m.gguf", arch)
    why = f"none of its 4 blocks has attention only, but {arch} needs one"
    with pytest.raises(ModelFileError, match=why):
        Model(path)


@ARCHS
def test_threads_and_widths_change_no_bit(tmp_path: Path, arch: str) -> None:
    tokens, found = random_tokens(3, 48), []
    with Model(write_hybrid(tmp_path / "m.gguf", arch, varied=True)) as model:
        for n_threads in (1, 2, 3):
            with model.context(n_ctx=64, n_threads=n_threads) as context:
                found += [decoded(context, tokens, width) for width in (1, 5, 24)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.sanitized
@ARCHS
def test_sequences_in_any_order_have_the_bits_that_they_have_alone(
    tmp_path: Path, arch: str
) -> None:
    """Also where the new state of one is written over the old one of another."""
    n_seqs, n_passes = 4, 12
    texts = [random_tokens(seed, n_passes) for seed in range(n_seqs)]
    rng = np.random.default_rng(0)
    path = write_hybrid(tmp_path / "m.gguf", arch, varied=True)
    with (
        Model(path) as model,
        model.context(n_ctx=256, n_threads=3, n_seq_max=n_seqs) as context,
    ):
        alone = [decoded(context, text, 1) for text in texts]
        context.sequence().drop()
        for i in range(n_passes):
            order = rng.permutation(n_seqs)
            rows = Rows.joined(Rows.of(int(seq), i, [texts[seq][i]]) for seq in order)
            found = context.run(rows, Pass()).logits
            np.testing.assert_array_equal(found, [alone[seq][i] for seq in order])


LOGITS = """
import sys
import numpy as np
from pyselfspec import Model
with Model(sys.argv[1]) as model, model.context(n_ctx=64, n_threads=2) as context:
    tokens = list(range(20, 60))
    np.save(sys.argv[2], np.concatenate([context.decode(tokens[i : i + 8], outputs="all").logits
                                         for i in range(0, 40, 8)]))
"""


@ARCHS
def test_recurrences_compute_what_upstream_does(
    tmp_path: Path, arch: str, run_python: RunPython
) -> None:
    path, found = write_hybrid(tmp_path / "m.gguf", arch, varied=True), []
    for switch in ("on", "off"):
        out = tmp_path / f"{switch}.npy"
        run = run_python(LOGITS, path, out, PYSELFSPEC_KERNELS=switch)
        assert run.returncode == 0, run.stderr
        found.append(np.load(out))
    ours, upstream = found
    assert np.abs(ours - upstream).max() < 1e-3 * upstream.std()
    assert (ours != upstream).any(), "upstream computed both"


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", hybrids.HYBRIDS)
def test_published_sizes_in_few_blocks_load(tmp_path: Path, arch: str) -> None:
    path = tmp_path / "m.gguf"
    arguments = ["--blocks=8", "--vocab=320", "--type=Q4_K_M", "--arch", arch]
    result = CliRunner().invoke(random_gguf.main, [str(path), *arguments])
    assert result.exit_code == 0, result.output
    with Model(path) as model:
        assert (model.n_layer, model.n_embd) == (8, hybrids.HYBRIDS[arch].n_embd)
    assert len(set(greedy_tokens(path, random_tokens(0, 8), 24))) == hybrids.CYCLE
