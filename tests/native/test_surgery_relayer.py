"""Models made of blocks: the same logits, bit for bit, as masks and re-entered states give."""

from __future__ import annotations

import json
from pathlib import Path

import broken_gguf
import numpy as np
import pytest
from fixture_types import CONTEXT, TinyPath
from gguf import GGUFValueType
from numpy.typing import NDArray

from pyselfspec import Context, LayerMask, Model
from pyselfspec.convert.relayer import UNIFORM, WINDOW_PERIOD, relayer
from pyselfspec.convert.stream import read_model
from pyselfspec.errors import ArgumentError, MaskError, ModelFileError, UnsupportedError
from pyselfspec.runtime.model import MASK_KEY
from tools.models import tiny_archs

N_LAYER = 4
TOKENS = [int(t) for t in np.random.default_rng(0).integers(3, 300, 60)]
N_PROMPT = 50  # more than the window of the tiny models

Logits = NDArray[np.float32]


def logits(path: Path, mask: LayerMask | None = None, tokens: list[int] = TOKENS) -> Logits:
    """Return the logits of a prompt in one pass and of the tokens after it one by one."""
    with Model(path) as model, model.context(**CONTEXT) as context:
        n_prompt = N_PROMPT * len(tokens) // len(TOKENS)
        rows = [context.decode(tokens[:n_prompt], mask=mask).logits]
        rows += [context.decode([token], mask=mask).logits for token in tokens[n_prompt:]]
    return np.concatenate(rows)


def write(path: Path, out: Path, *args: object, **options: object) -> Path:
    relayer(read_model(path), *args, **options).write(out)  # type: ignore[arg-type]
    return out


def edited(path: Path, out: Path, **values: object) -> Path:
    """A copy with other metadata; None removes a key. In names, __ stands for a dot."""
    raw = broken_gguf.read(path)
    for name, value in values.items():
        key = name.replace("__", ".")
        raw.metadata.pop(key, None)
        if isinstance(value, list):
            raw.set_array(key, GGUFValueType.UINT32, value)
        elif isinstance(value, int):
            raw.set_u32(key, value)
        elif value is not None:
            raw.set_string(key, str(value))
    out.write_bytes(raw.to_bytes())
    return out


# --- which blocks run ------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
@pytest.mark.parametrize("dropped", [[0], [1, 3], [1, 2, 3]])
def test_dropping_equals_skipping(
    tiny_path: TinyPath, tmp_path: Path, arch: str, dropped: list[int]
) -> None:
    path = tiny_path(arch, n_layer=N_LAYER)
    kept = [il for il in range(N_LAYER) if il not in dropped]
    out = write(path, tmp_path / "out.gguf", kept)
    mask = LayerMask.skipping(N_LAYER, attn=dropped, ffn=dropped)
    assert np.array_equal(logits(out), logits(path, mask))
    assert not np.array_equal(logits(out), logits(path))


def after(context: Context, first: int, skipped: list[int], hidden: NDArray[np.float32]) -> Logits:
    """Logits of states that enter block `first`, with blocks after it skipped."""
    mask = LayerMask.enter_at(N_LAYER, first)
    mask |= LayerMask.skipping(N_LAYER, attn=skipped, ffn=skipped)
    return context.decode(hidden=hidden, mask=mask, pos=0, in_place=True).logits


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gptneox", "qwen3moe"])
@pytest.mark.parametrize(
    ("order", "skipped_before", "left_at", "first", "skipped_after"),
    [
        ([0, 1, 1, 2, 3], [], 2, 1, []),
        ([0, 1, 2, 1, 2, 3], [], 3, 1, []),
        ([0, 2, 1, 3], [1], 3, 1, [2]),
        ([0, 3, 1, 2], [1, 2], 4, 1, [3]),
    ],
)
def test_repeating_and_reordering_equal_two_passes(
    tiny_path: TinyPath,
    tmp_path: Path,
    arch: str,
    order: list[int],
    skipped_before: list[int],
    left_at: int,
    first: int,
    skipped_after: list[int],
) -> None:
    """The states that leave the blocks of the first pass enter those of the second."""
    path, tokens = tiny_path(arch, n_layer=N_LAYER), TOKENS[:30]
    mask = LayerMask.skipping(N_LAYER, attn=skipped_before, ffn=skipped_before)
    with Model(path) as model, model.context(**CONTEXT) as context:
        hidden = context.decode(tokens, mask=mask, hidden_at=left_at).hidden
        assert hidden is not None
        want = after(context, first, skipped_after, hidden)
    out = write(path, tmp_path / "out.gguf", order)
    with Model(out) as model, model.context(**CONTEXT) as context:
        assert np.array_equal(context.decode(tokens).logits, want)


@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
@pytest.mark.parametrize("qtype", ["F32", "Q8_0"])
def test_zeroing_equals_skipping(
    tiny_path: TinyPath, tmp_path: Path, arch: str, qtype: str
) -> None:
    path = tiny_path(arch, n_layer=N_LAYER, qtype=qtype)
    out = write(path, tmp_path / "out.gguf", zero_attn=[1, 2], zero_ffn=[2, 3])
    want = tiny_path(arch, n_layer=N_LAYER, qtype=qtype, zero_attn=(1, 2), zero_ffn=(2, 3))
    mask = LayerMask.skipping(N_LAYER, attn=[1, 2], ffn=[2, 3])
    assert np.array_equal(logits(out), logits(path, mask))
    assert np.array_equal(logits(out), logits(want))


def test_numbers_to_zero_are_those_of_the_source(tiny_path: TinyPath, tmp_path: Path) -> None:
    out = write(tiny_path(), tmp_path / "out.gguf", [2, 0, 2], zero_attn=[2])
    is_zero = [
        not any(broken_gguf.read(out).tensor(f"blk.{il}.attn_output.weight").data)
        for il in range(3)
    ]
    assert is_zero == [True, False, True]


@pytest.mark.archs
def test_dropping_equals_skipping_in_every_architecture(
    toy_models: Path, archs_folder: Path, tmp_path: Path
) -> None:
    known, present, tokens = set(), set(), [token % 100 for token in TOKENS]
    for path in sorted(toy_models.glob("*.gguf")):
        source = read_model(path)
        present.add(source.file.architecture)
        for il in range(source.file.n_layer):
            rest = [other for other in range(source.file.n_layer) if other != il]
            mask = LayerMask.skipping(source.file.n_layer, attn=[il], ffn=[il])
            try:
                relayer(source, rest).write(tmp_path / "out.gguf")
                want = logits(path, mask, tokens)
            except UnsupportedError:
                continue
            assert np.array_equal(logits(tmp_path / "out.gguf", tokens=tokens), want), path.stem
            known.add(source.file.architecture)
    can = UNIFORM | WINDOW_PERIOD.keys()
    assert known == (can if toy_models == archs_folder else can & present)


# --- what the metadata say of each block -----------------------------------------------------


def test_values_per_block_follow_their_block(tiny_path: TinyPath, tmp_path: Path) -> None:
    per_block = {
        "llama__feed_forward_length": [100, 101, 102, 103],
        "llama__attention__head_count": [2, 2, 1, 2],
        "llama__attention__head_count_kv": [1, 2, 1, 1],
        "llama__rope__dimension_sections": [8, 8, 8, 8],  # four, but not one per block
    }
    path = edited(tiny_path(n_layer=4), tmp_path / "in.gguf", **per_block)
    out = broken_gguf.read(write(path, tmp_path / "out.gguf", [3, 1, 1]))
    got = {key: out.metadata[key.replace("__", ".")][-1] for key in per_block}
    assert list(got.values()) == [[103, 101, 101], [2, 2, 2], [1, 2, 2], [8, 8, 8, 8]]
    assert out.metadata["llama.block_count"] == (GGUFValueType.UINT32, 3)


def test_values_for_other_blocks_are_refused(tiny_path: TinyPath, tmp_path: Path) -> None:
    key = "llama__swiglu_clamp_exp"
    path = edited(tiny_path(n_layer=4), tmp_path / "in.gguf", **{key: [1, 2, 3]})
    with pytest.raises(ModelFileError, match=r"clamp_exp has 3 values for 4 blocks"):
        relayer(read_model(path), [0])


@pytest.mark.parametrize(
    ("arch", "period", "n_layer"), [("gemma2", None, 4), ("gemma3", None, 7), ("gemma3", 3, 4)]
)
def test_windows_that_llama_cpp_places_stay_with_their_blocks(
    tiny_path: TinyPath, tmp_path: Path, arch: str, period: int | None, n_layer: int
) -> None:
    """Files of real models give the period of the windows, or leave that to llama.cpp too."""
    keys = {f"{arch}__attention__sliding_window_pattern": period}
    path = edited(tiny_path(arch, n_layer=n_layer), tmp_path / "in.gguf", **keys)
    for il in range(n_layer):
        kept = [other for other in range(n_layer) if other != il]
        out = write(path, tmp_path / "out.gguf", kept)
        mask = LayerMask.skipping(n_layer, attn=[il], ffn=[il])
        assert np.array_equal(logits(out), logits(path, mask)), il


def test_a_model_without_windows_gets_none(tiny_path: TinyPath, tmp_path: Path) -> None:
    keys = {f"gemma3__attention__sliding_window{suffix}": None for suffix in ("", "_pattern")}
    path = edited(tiny_path("gemma3", n_layer=3), tmp_path / "in.gguf", **keys)
    out = write(path, tmp_path / "out.gguf", [2])
    assert not any("sliding" in key for key in broken_gguf.read(out).metadata)
    mask = LayerMask.skipping(3, attn=[0, 1], ffn=[0, 1])
    assert np.array_equal(logits(out), logits(path, mask))


def test_windows_cannot_all_go(tiny_path: TinyPath) -> None:
    source = read_model(tiny_path("gemma3", n_layer=6))
    relayer(source, [0, 1])
    with pytest.raises(UnsupportedError, match="none of these blocks has an attention window"):
        relayer(source, [2, 5])


def test_the_draft_mask_follows_its_blocks(tiny_path: TinyPath, tmp_path: Path) -> None:
    mask = LayerMask.skipping(4, attn=[1, 3], ffn=[3])
    path = edited(tiny_path(n_layer=4), tmp_path / "in.gguf", **{MASK_KEY: mask.to_json()})

    def mask_of(*order: int) -> LayerMask | None:
        with Model(write(path, tmp_path / "out.gguf", order)) as model:
            return model.draft_mask

    assert mask_of(0, 1, 2, 3) == mask
    assert mask_of(3, 0, 1, 3) == LayerMask.skipping(4, attn=[0, 2, 3], ffn=[0, 3])
    assert mask_of(1) == LayerMask.skipping(1, attn=[0])
    assert mask_of(0, 2) is None  # it would skip nothing
    assert mask_of(3, 3) is None  # it would skip everything


def test_a_broken_draft_mask_is_named(tiny_path: TinyPath, tmp_path: Path) -> None:
    broken = json.dumps({"n_layer": 99})
    path = edited(tiny_path(n_layer=4), tmp_path / "in.gguf", **{MASK_KEY: broken})
    with pytest.raises(MaskError, match=rf"in.gguf, key {MASK_KEY}: .* 99 blocks, not for 4"):
        relayer(read_model(path), [0])


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [[4], [0, -1], []])
def test_blocks_that_are_not_there(tiny_path: TinyPath, blocks: list[int]) -> None:
    source = read_model(tiny_path(n_layer=4))
    with pytest.raises(ArgumentError, match=r"blocks 0 to 3|1 to 512 blocks, got 0"):
        relayer(source, blocks)


def test_more_blocks_than_llama_cpp_takes(tiny_path: TinyPath) -> None:
    source = read_model(tiny_path(n_layer=4))
    assert len(relayer(source, [0] * 512).metadata) == len(source.metadata)
    with pytest.raises(ArgumentError, match="1 to 512 blocks, got 513"):
        relayer(source, [0] * 513)


def test_a_sublayer_that_is_not_there_cannot_be_zeroed(tiny_path: TinyPath, tmp_path: Path) -> None:
    raw = broken_gguf.read(tiny_path(n_layer=2))
    raw.tensors = [t for t in raw.tensors if not t.name.startswith("blk.1.attn_")]
    (tmp_path / "in.gguf").write_bytes(raw.to_bytes())
    source = read_model(tmp_path / "in.gguf")
    relayer(source, zero_attn=[0], zero_ffn=[1])
    with pytest.raises(ArgumentError, match="block 1 has no attention"):
        relayer(source, zero_attn=[0, 1])


@pytest.mark.parametrize(
    ("arch", "keys", "reason"),
    [
        ("smollm3", {}, "every n-th block goes without rotary embedding"),
        ("minicpm", {}, "scaled by their number"),
        ("never-seen", {}, "may depend on their position"),
        ("llama", {"nextn_predict_layers": 1}, "predict a later token"),
        ("llama", {"leading_dense_block_count": 1}, "no experts in its first blocks"),
        ("llama", {"attention.recurrent_layers": [0, 1, 0, 1]}, "recurrent blocks"),
    ],
)
def test_blocks_with_roles_are_refused_by_name(
    tiny_path: TinyPath, tmp_path: Path, arch: str, keys: dict[str, object], reason: str
) -> None:
    raw = broken_gguf.read(tiny_path(n_layer=4))
    raw.metadata = {k.replace("llama.", f"{arch}.", 1): v for k, v in raw.metadata.items()}
    raw.set_string("general.architecture", arch)
    raw.set_string("tokenizer.ggml.model", "llama")
    (tmp_path / "raw.gguf").write_bytes(raw.to_bytes())
    keys = {f"{arch}.{name}": value for name, value in keys.items()}
    path = edited(tmp_path / "raw.gguf", tmp_path / "in.gguf", **keys)
    with pytest.raises(UnsupportedError, match=rf"{arch}.*{reason}"):
        relayer(read_model(path), [0, 1])


def test_a_number_of_blocks_that_means_another_model(tiny_path: TinyPath) -> None:
    source = read_model(tiny_path("gemma2", n_layer=47))
    with pytest.raises(UnsupportedError, match=r"46 blocks differently .* 47 .* cannot become 46"):
        relayer(source, range(46))
    relayer(source, range(45))
    source = read_model(tiny_path("gemma2", n_layer=46))
    relayer(source, range(45, -1, -1))
    with pytest.raises(UnsupportedError, match="46 blocks cannot become 12"):
        relayer(source, range(12))
