"""The checker refuses every broken file with one line, and its byte counts add up."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broken_gguf
import numpy as np
import odd_models
import pytest
from broken_gguf import RawGguf, RawTensor
from gguf import GGUFReader, GGUFValueType

from pyselfspec import Model
from pyselfspec.errors import ModelFileError
from pyselfspec.gguf import file as gguf_file
from pyselfspec.gguf.file import check, sublayer
from tools.models import tiny_archs, tiny_gguf

TOKENS = "tokenizer.ggml.tokens"
QUERY = "blk.1.attn_q.weight"
NORM = "blk.1.attn_norm.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    archs = tiny_archs.ARCHITECTURES
    return {arch: tiny_gguf.write(folder / f"{arch}.gguf", arch) for arch in archs}


def refusal(path: Path) -> str:
    """The message of the refusal: one line that starts with the path."""
    with pytest.raises(ModelFileError) as caught:
        check(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path.parent))
    return message


# --- what is no GGUF file at all ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"GG", "looks like something else"),
        (b"GGUF", "cut off"),
        (b"GGUF\x03\0\0\0", "cut off"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x80\x02}q\0", "pickle"),
        (b'\x40\0\0\0\0\0\0\0{"__metadata__"', "safetensors"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\n <html>", "web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"tjgg\x03\0\0\0", "older than GGUF"),
        (bytes(4096), "unfinished download"),
        (b"\x7fELF\x02", "7f 45 4c 46"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert words in refusal(path)


def test_paths_without_a_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.gguf")
    assert "is a directory" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match=r"no such file|cannot be read"):
        check("null\0byte.gguf")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    assert "Permission denied" in refusal(path)


# --- broken GGUF files ----------------------------------------------------------------------------


def u32(key: str, value: int) -> Callable[[RawGguf], None]:
    return lambda raw: raw.set_u32(key, value)


def text(key: str, value: str) -> Callable[[RawGguf], None]:
    return lambda raw: raw.set_string(key, value)


def array(key: str, kind: GGUFValueType, values: list[object]) -> Callable[[RawGguf], None]:
    return lambda raw: raw.set_array(key, kind, values)


def without(key: str) -> Callable[[RawGguf], None]:
    return lambda raw: raw.metadata.pop(key) and None


def field(name: str, value: object) -> Callable[[RawGguf], None]:
    return lambda raw: setattr(raw, name, value)


def tensor(target_name: str, /, **changes: object) -> Callable[[RawGguf], None]:
    def change(raw: RawGguf) -> None:
        target = raw.tensor(target_name)
        for attribute, value in changes.items():
            setattr(target, attribute, value)

    return change


def extra(raw_pair: bytes) -> Callable[[RawGguf], None]:
    return lambda raw: raw.extra_metadata.append(raw_pair)


def repeated_token(raw: RawGguf) -> None:
    tokens = raw.metadata[TOKENS][2]
    tokens[300] = tokens[301]


def token_with_nul_bytes(raw: RawGguf) -> None:
    """Another one to Python, the same in C."""
    tokens = raw.metadata[TOKENS][2]
    raw.set_array(TOKENS, GGUFValueType.STRING, [*tokens[:-1], tokens[-2] + "\0\0"])


def no_byte_tokens(raw: RawGguf) -> None:
    tokens = raw.metadata[TOKENS][2]
    tokens[3:259] = [f"word{i}" for i in range(256)]


def only_vocabulary(raw: RawGguf) -> None:
    raw.tensors.clear()


def no_blocks(raw: RawGguf) -> None:
    raw.tensors = [t for t in raw.tensors if not t.name.startswith("blk.")]


def twice(raw: RawGguf) -> None:
    raw.tensor("blk.2.attn_q.weight").name = QUERY


LENGTH_2_60 = (2**60).to_bytes(8, "little")
BROKEN = {
    # the container
    "version 1": (field("version", 1), "version 1 is not supported"),
    "version 9": (field("version", 9), "version 9 is not supported"),
    "big endian": (field("byte_order", ">"), "big-endian"),
    "2^40 tensors": (field("n_tensors", 2**40), "1099511627776 tensors"),
    "negative tensors": (field("n_tensors", 2**64 - 1), "more than fit"),
    "2^40 keys": (field("n_metadata", 2**40), "1099511627776 metadata entries"),
    "more keys than there are": (field("n_metadata", 60), "broken"),
    "huge key": (extra(LENGTH_2_60), "a string of 1152921504606846976 bytes"),
    "huge string": (
        extra(b"\1\0\0\0\0\0\0\0k\x08\0\0\0" + LENGTH_2_60),
        "1152921504606846976 bytes",
    ),
    "huge array": (
        extra(b"\1\0\0\0\0\0\0\0k\x09\0\0\0\x05\0\0\0" + LENGTH_2_60),
        "1152921504606846976 values",
    ),
    "huge string array": (
        extra(b"\1\0\0\0\0\0\0\0k\x09\0\0\0\x08\0\0\0" + LENGTH_2_60),
        "strings are announced",
    ),
    "huge string in array": (
        extra(b"\1\0\0\0\0\0\0\0k\x09\0\0\0\x08\0\0\0\1\0\0\0\0\0\0\0" + LENGTH_2_60),
        "after the file's end",
    ),
    "array of arrays": (
        extra(b"\1\0\0\0\0\0\0\0k\x09\0\0\0\x09\0\0\0" + LENGTH_2_60),
        "unknown value type 9",
    ),
    "value type 77": (extra(b"\1\0\0\0\0\0\0\0k\x4d\0\0\0"), "unknown value type 77"),
    "a key twice": (extra(b"\x0c\0\0\0\0\0\0\0general.name\x04\0\0\0\1\0\0\0"), "comes twice"),
    "empty key": (extra(bytes(8) + b"\x04\0\0\0\1\0\0\0"), "empty or comes twice"),
    "alignment 0": (u32("general.alignment", 0), "not a power of two"),
    "alignment 48": (u32("general.alignment", 48), "not a power of two"),
    "alignment 8": (u32("general.alignment", 8), "at least 32"),
    "alignment text": (text("general.alignment", "32"), "not a power of two"),
    # the tensor table
    "unknown type": (tensor(QUERY, type=99), "unknown or retired type 99"),
    "retired type": (tensor(QUERY, type=31), "unknown or retired type 31"),
    "no dimensions": (tensor(QUERY, shape=[]), "0 dimensions"),
    "five dimensions": (tensor(QUERY, shape=[64, 64, 1, 1, 1]), "5 dimensions"),
    "zero rows": (tensor(QUERY, shape=[64, 0]), "impossible shape"),
    "negative rows": (tensor(QUERY, shape=[2**63, 2]), "impossible shape"),
    "overflowing shape": (tensor(QUERY, shape=[2**40, 2**40]), "impossible shape"),
    "half a block": (tensor(QUERY, type=12), "multiple of 256"),
    "larger than its place": (tensor(QUERY, shape=[64, 4096]), "instead of"),
    "offset outside": (tensor(QUERY, offset=2**62), "outside the file"),
    "overlapping": (tensor(QUERY, offset=0), "overlapping"),
    "misaligned": (tensor(QUERY, offset=100_001), "misaligned"),
    "long name": (tensor(QUERY, name="x" * 64), "64 bytes, allowed are 1 to 63"),
    "nameless": (tensor(QUERY, name=""), "0 bytes, allowed are 1 to 63"),
    "same name": (twice, "comes twice"),
    "F16 norm": (tensor(NORM, type=1, data=bytes(128)), "norms, biases, scales must be F32"),
    "F16 scale": (
        tensor(NORM, name="blk.0.attn_q.scale", type=1, data=bytes(128)),
        "scales must be F32",
    ),
    "I32 weights": (tensor(QUERY, type=26), "no type for weights"),
    "F64 weights": (tensor(QUERY, type=28, data=bytes(8 * 64 * 64)), "no type for weights"),
    # the model
    "no architecture": (without("general.architecture"), "no general.architecture"),
    "architecture a number": (u32("general.architecture", 1), "no general.architecture"),
    "adapter": (text("general.type", "adapter"), "LoRA adapter"),
    "projector": (text("general.architecture", "clip"), "multimodal projector"),
    "vocabulary only": (only_vocabulary, "only a vocabulary"),
    "no blocks": (no_blocks, "no blocks"),
    "block count missing": (without("llama.block_count"), "has no 'llama.block_count'"),
    "0 blocks": (u32("llama.block_count", 0), "not 1 to 512"),
    "513 blocks": (u32("llama.block_count", 513), "not 1 to 512"),
    "a block too few": (u32("llama.block_count", 3), "of 4 blocks, 0 to 3"),
    "a block too many": (u32("llama.block_count", 5), "of 4 blocks, 0 to 3"),
    "only extra blocks": (u32("llama.nextn_predict_layers", 4), "is 4 of 4 blocks"),
    "no embedding length": (u32("llama.embedding_length", 0), "embedding_length is 0"),
    "text embedding length": (text("llama.embedding_length", "64"), "not a count"),
    "no context length": (u32("llama.context_length", 0), "context_length is 0"),
    "2^32 context": (u32("llama.context_length", 2**32 - 1), "too large"),
    "0 heads": (u32("llama.attention.head_count", 0), "head_count is 0"),
    "heads missing": (without("llama.attention.head_count"), "0 or missing"),
    "too many heads": (u32("llama.attention.head_count", 4_000_000_000), "more than the embedding"),
    "3 K/V heads": (u32("llama.attention.head_count_kv", 3), "does not divide"),
    "heads of one block": (
        array("llama.attention.head_count", GGUFValueType.UINT32, [2]),
        "one count per block (4)",
    ),
    "no rotation": (u32("llama.rope.dimension_count", 0), "is 0, not the head size 32"),
    "partial rotation": (u32("llama.rope.dimension_count", 16), "is 16, not the head size 32"),
    "rope scaling": (text("llama.rope.scaling.type", "bogus"), "known are none, linear"),
    "negative epsilon": (
        lambda raw: raw.metadata.update(
            {"llama.attention.layer_norm_rms_epsilon": (GGUFValueType.FLOAT32, -1.0)}
        ),
        "epsilon is -1.0",
    ),
    "used experts without experts": (u32("llama.expert_used_count", 2), "2 of 0 experts"),
    "groups without experts": (u32("llama.expert_group_count", 2), "2 groups"),
    "tokenizer missing": (without("tokenizer.ggml.model"), "no tokenizer"),
    "tokens missing": (without(TOKENS), "no token list"),
    "tokens are numbers": (array(TOKENS, GGUFValueType.INT32, [1]), "no token list"),
    "no tokens": (array(TOKENS, GGUFValueType.STRING, []), "empty vocabulary"),
    "architecture with a NUL byte": (text("general.architecture", "llama\0"), "is no name"),
    "a token twice in C": (token_with_nul_bytes, "1 tokens twice"),
    "a token twice": (repeated_token, "1 tokens twice"),
    "no byte tokens": (no_byte_tokens, "no token for byte 0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(models: dict[str, Path], tmp_path: Path, case: str) -> None:
    breaking, words = BROKEN[case]
    raw = broken_gguf.read(models["llama"])
    breaking(raw)
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw.to_bytes())
    assert words in refusal(path)


ALWAYS, WHERE_THERE_ARE_ANY, NEVER = "qwen2vl", "glm4", "llama"  # rotated in sections


@pytest.mark.parametrize(
    ("sections", "fine_in"),
    [
        ([4, 6, 6, 0], {ALWAYS, WHERE_THERE_ARE_ANY, NEVER}),
        ([0, 0, 0, 0], {WHERE_THERE_ARE_ANY, NEVER}),
        ([0, 0, 0, 4], {WHERE_THERE_ARE_ANY, NEVER}),
        ([8, 100, 12, 0], {NEVER}),
        ([8, -4, 12, 0], {NEVER}),
        ([0.5, 1.0, 1.0, 1.0], {NEVER}),
        (9, {NEVER}),  # for each of the four
    ],
)
def test_sections_of_rotations(
    models: dict[str, Path], tmp_path: Path, sections: Any, fine_in: set[str]
) -> None:
    for arch in (ALWAYS, WHERE_THERE_ARE_ANY, NEVER):
        raw = broken_gguf.read(models["llama"])
        key = "llama.rope.dimension_sections"
        if isinstance(sections, int):
            raw.set_u32(key, sections)
        else:
            is_float = isinstance(sections[0], float)
            raw.set_array(key, GGUFValueType.FLOAT32 if is_float else GGUFValueType.INT32, sections)
        raw.metadata = {k.replace("llama.", f"{arch}.", 1): v for k, v in raw.metadata.items()}
        raw.set_string("general.architecture", arch)
        path = tmp_path / f"{arch}.gguf"
        path.write_bytes(raw.to_bytes())
        if arch in fine_in:
            assert check(path).architecture == arch
        else:
            assert "no sections of the 32 values" in refusal(path)


@pytest.mark.parametrize("name", ["key_length_swa", "value_length_swa"])
def test_heads_of_windows_fit_the_tensors(
    models: dict[str, Path], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "model.gguf"
    for size in (32, 3):  # heads have 32 values
        raw = broken_gguf.read(models["llama"])
        raw.set_u32(f"llama.attention.{name}", size)
        path.write_bytes(raw.to_bytes())
        if size == 32:
            assert check(path).architecture == "llama"
        else:
            assert f"{name} is 3, which fits none of the attn_{name[0]} tensors" in refusal(path)


@pytest.mark.parametrize("window", [None, 0])
def test_a_window_that_the_graph_needs(
    models: dict[str, Path], tmp_path: Path, window: int | None
) -> None:
    raw = broken_gguf.read(models["llama"])
    if window is not None:
        raw.set_u32("llama.attention.sliding_window", window)
    raw.metadata = {k.replace("llama.", "afmoe.", 1): v for k, v in raw.metadata.items()}
    raw.set_string("general.architecture", "afmoe")
    path = tmp_path / "afmoe.gguf"
    path.write_bytes(raw.to_bytes())
    assert "afmoe.attention.sliding_window is 0 or missing" in refusal(path)


def test_long_keys_are_cut_short(models: dict[str, Path], tmp_path: Path) -> None:
    key = "k" * 1_000_000
    pair = len(key).to_bytes(8, "little") + key.encode() + (99).to_bytes(4, "little") + b"\0"
    raw = broken_gguf.read(models["llama"])
    raw.extra_metadata.append(pair)
    path = tmp_path / "long.gguf"
    path.write_bytes(raw.to_bytes())
    assert len(refusal(path)) < 200 + len(str(path))


@pytest.mark.parametrize("n_rot", [0, 15, 64])
def test_partial_rotation_out_of_range(models: dict[str, Path], tmp_path: Path, n_rot: int) -> None:
    raw = broken_gguf.read(models["gptneox"])
    raw.set_u32("gptneox.rope.dimension_count", n_rot)
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw.to_bytes())
    assert f"is {n_rot}: it must be even, above 0 and at most the head size 32" in refusal(path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("expert_count", 2000, "2 of 2000 experts"),
        ("expert_count", 0, "2 of 0 experts"),
        ("expert_used_count", 0, "0 of 4 experts"),
        ("expert_used_count", 9, "9 of 4 experts"),
        ("expert_group_count", 3, "4 experts in 3 groups"),
        ("expert_group_count", 4, "4 experts in 4 groups"),
        ("expert_group_count", 2, "0 are used"),
    ],
)
def test_expert_counts_that_abort(
    models: dict[str, Path], tmp_path: Path, name: str, value: int, words: str
) -> None:
    raw = broken_gguf.read(models["qwen3moe"])
    raw.set_u32(f"qwen3moe.{name}", value)
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw.to_bytes())
    assert words in refusal(path)


def test_rewritten_file_is_accepted(models: dict[str, Path], tmp_path: Path) -> None:
    """The broken files above are refused for their fault, not for the way they are written."""
    for path in models.values():
        copy = tmp_path / path.name
        copy.write_bytes(broken_gguf.read(path).to_bytes())
        assert check(copy).tensors == check(path).tensors


def test_every_cut_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    """No length of a cut-off file is accepted, and none raises anything else."""
    whole = models["llama"].read_bytes()
    header = broken_gguf.read(models["llama"]).header()
    path = tmp_path / "cut.gguf"
    lengths = [*range(0, len(header), 61), len(header), len(whole) - 1, len(whole) // 2]
    for length in lengths:
        path.write_bytes(whole[:length])
        refusal(path)
    path.write_bytes(whole[:-1000])
    assert f"1000 of {len(whole)} bytes are missing" in refusal(path)


def test_random_damage_never_raises_anything_else(models: dict[str, Path], tmp_path: Path) -> None:
    seed = 20
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    whole = models["llama"].read_bytes()
    n_header = len(broken_gguf.read(models["llama"]).header())
    path = tmp_path / "damaged.gguf"
    n_refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, n_header, 4):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            check(path)
        except ModelFileError as error:
            n_refused += 1
            assert "\n" not in str(error)
    assert n_refused > 50


# --- split files ----------------------------------------------------------------------------------


def split(whole: Path, folder: Path, n_parts: int = 2) -> list[Path]:
    """The model in parts: all metadata and half of the tensors in the first."""
    paths = []
    for i in range(n_parts):
        raw = broken_gguf.read(whole)
        raw.tensors = raw.tensors[i::n_parts]
        if i:
            raw.metadata.clear()
        raw.metadata["split.no"] = (GGUFValueType.UINT16, i)
        raw.metadata["split.count"] = (GGUFValueType.UINT16, n_parts)
        paths.append(folder / f"model-{i + 1:05}-of-{n_parts:05}.gguf")
        paths[-1].write_bytes(raw.to_bytes())
    return paths


def test_split_file_counts_all_parts(models: dict[str, Path], tmp_path: Path) -> None:
    parts = split(models["llama"], tmp_path, 3)
    whole, joined = check(models["llama"]), check(parts[0])
    assert joined.blocks == whole.blocks
    assert joined.n_params == whole.n_params
    assert joined.n_bytes == sum(part.stat().st_size for part in parts)


def test_split_file_with_a_missing_part(models: dict[str, Path], tmp_path: Path) -> None:
    parts = split(models["llama"], tmp_path, 3)
    parts[1].unlink()
    assert "1 of 3 parts are missing, the first is model-00002-of-00003.gguf" in refusal(parts[0])


def test_split_file_faults(models: dict[str, Path], tmp_path: Path) -> None:
    first, second = split(models["llama"], tmp_path)
    assert "give model-00001-of-00002.gguf" in refusal(second)
    renamed = tmp_path / "other.gguf"
    renamed.write_bytes(first.read_bytes())
    assert "must be called NAME-00001-of-00002.gguf" in refusal(renamed)
    second.write_bytes(second.read_bytes()[:-64])
    message = refusal(first)
    assert second.name in message and "cut off" in message
    second.write_bytes(first.read_bytes())
    assert "is not part 2 of 2" in refusal(first)


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
def test_sizes_agree_with_gguf_py(models: dict[str, Path], arch: str) -> None:
    model, reader = check(models[arch]), GGUFReader(models[arch])
    assert (model.n_layer, model.n_embd, model.n_head) == (4, 64, 2)
    assert (model.n_vocab, model.context_length, model.file_type) == (317, 512, "F32")
    assert sum(t.n_bytes for t in model.tensors) == sum(t.n_bytes for t in reader.tensors)
    assert model.n_params == sum(int(t.n_elements) for t in reader.tensors)
    assert model.n_bytes == models[arch].stat().st_size
    assert all(block.attn and block.ffn and not block.other for block in model.blocks)
    routed = sum(t.n_bytes for t in model.tensors if "_exps." in t.name)
    embedding = 0 if model.tied_embeddings else model.token_embd_bytes
    assert model.weight_bytes() == sum(t.n_bytes for t in model.tensors) - embedding - routed // 2
    assert model.tied_embeddings == arch.startswith("gemma")


def test_weight_bytes_of_masks(models: dict[str, Path]) -> None:
    model = check(models["llama"])
    norm, square = 64 * 4, 64 * 64 * 4
    attn = norm + square * (1 + 0.5 + 0.5 + 1)  # two query heads share one K/V head
    ffn = norm + 3 * 2 * square
    assert model.head_bytes == norm + 317 * 64 * 4
    assert model.blocks[2].attn == attn and model.blocks[2].ffn == ffn
    full = model.weight_bytes()
    assert full - model.weight_bytes(skip_attn=[1, 3]) == 2 * attn
    assert full - model.weight_bytes(skip_ffn={0}) == ffn
    assert model.weight_bytes(range(4), range(4)) == model.head_bytes


def test_tied_head_is_the_embedding(models: dict[str, Path]) -> None:
    model = check(models["gemma2"])
    assert model.token_embd_bytes == 317 * 64 * 4
    assert model.head_bytes == 64 * 4 + model.token_embd_bytes


def test_quantized_bytes(tmp_path: Path) -> None:
    model = check(tiny_gguf.write(tmp_path / "q.gguf", qtype="Q4_0"))
    assert model.file_type == "Q4_0"
    query = next(t for t in model.tensors if t.name == QUERY)
    assert (query.type, query.shape, query.n_bytes) == ("Q4_0", (64, 64), 64 * 2 * 18)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("attn_q.weight", "attn"),
        ("attn_output.bias", "attn"),
        ("post_attention_norm.weight", "attn"),
        ("ssm_in.weight", "attn"),
        ("shortconv.conv.weight", "attn"),
        ("time_mix_key.weight", "attn"),
        ("ffn_down_exps.weight", "ffn"),
        ("ffn_gate_inp_shexp.weight", "ffn"),
        ("exp_probs_b.bias", "ffn"),
        ("post_ffw_norm.weight", "ffn"),
        ("channel_mix_key.weight", "ffn"),
        ("layer_output_scale.weight", "other"),
    ],
)
def test_tensor_names_tell_the_sublayer(name: str, part: str) -> None:
    assert sublayer(name) == part


def test_model_without_tokenizer(tmp_path: Path) -> None:
    assert check(tiny_gguf.write(tmp_path / "n.gguf", vocab="none")).n_vocab == 317


def test_large_vocabulary_is_quick(models: dict[str, Path], tmp_path: Path) -> None:
    """Counted in calls, not in seconds: arrays are not read entry by entry through the cursor."""
    raw = broken_gguf.read(models["llama"])
    raw.metadata[TOKENS][2].extend(f"token{i}" for i in range(100_000))
    raw.set_array("tokenizer.ggml.merges", GGUFValueType.STRING, ["a b"] * 1000)
    path = tmp_path / "large.gguf"
    path.write_bytes(raw.to_bytes())
    n_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal n_calls
        n_calls += event == "call"

    sys.setprofile(count)
    try:
        n_vocab = check(path).n_vocab
    finally:
        sys.setprofile(None)
    assert n_vocab == 100_317
    assert n_calls < 150_000


def test_extra_tensor_outside_blocks_is_counted(models: dict[str, Path], tmp_path: Path) -> None:
    raw = broken_gguf.read(models["llama"])
    raw.tensors.append(RawTensor("rope_freqs.weight", [8], 0, bytes(32)))
    path = tmp_path / "extra.gguf"
    path.write_bytes(raw.to_bytes())
    assert (
        sum(t.n_bytes for t in check(path).tensors)
        == sum(t.n_bytes for t in check(models["llama"]).tensors) + 32
    )


def test_a_sliding_window_that_no_block_uses(tmp_path):
    """llama.cpp ends the process on it."""
    path = tiny_gguf.write(tmp_path / "model.gguf", "gemma3", drop_blocks=(0, 1, 3))
    with pytest.raises(ModelFileError, match="sliding_window_pattern names no block"):
        gguf_file.check(path)


@pytest.mark.parametrize(
    "key", ["context_length", "attention.head_count", "attention.layer_norm_epsilon"]
)
def test_an_embedding_model_with_a_missing_key_is_called_one(key: str, tmp_path: Path) -> None:
    """Whether the checker or llama.cpp misses the key."""
    odd_models.write_bert(path := tmp_path / "embeds.gguf")
    raw = broken_gguf.read(path)
    del raw.metadata[f"bert.{key}"]
    path.write_bytes(raw.to_bytes())
    with pytest.raises(ModelFileError) as caught:
        Model(path)
    said = "is an embedding model (bert), which writes no text: give a model that does"
    assert str(caught.value) == f"{path}: {said}"
