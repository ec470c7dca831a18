"""pyselfspec models info: its numbers against the file itself, the text against the numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from fixture_types import TinyPath
from gguf import GGUFReader

from pyselfspec.cli.models import info
from pyselfspec.gguf import file as gguf_file
from pyselfspec.util.sizes import size_text

N_LAYER = 4
ARCHS = ["llama", "gemma3"]


@pytest.fixture(scope="session")
def demo_facts(demo_path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = run("models", "info", demo_path, "--json").json
    return facts


def bytes_of(path: Path, pattern: str) -> int:
    """Sum over the tensors whose name begins like this, counted by gguf-py."""
    return sum(int(t.n_bytes) for t in GGUFReader(path).tensors if re.match(pattern, t.name))


@pytest.mark.parametrize("arch", ARCHS)
def test_numbers_are_those_of_the_file_check(tiny_path: TinyPath, arch: str) -> None:
    path = tiny_path(arch, n_layer=N_LAYER)
    facts, file = run("models", "info", path, "--json").json, gguf_file.check(path)
    assert facts["model"] == str(path)
    assert facts["architecture"] == arch
    assert facts["n_layer"] == N_LAYER == len(facts["blocks"])
    assert facts["n_embd"] == file.n_embd
    assert facts["n_vocab"] == file.n_vocab
    assert facts["n_ctx_train"] == file.context_length
    assert facts["n_params"] == file.n_params
    assert facts["n_bytes"] == path.stat().st_size
    assert facts["file_type"] == "F32"
    for part, skips in (("attn", "skip_attn"), ("ffn", "skip_ffn")):
        saved = file.weight_bytes() - file.weight_bytes(**{skips: range(N_LAYER)})
        assert facts[f"{part}_bytes"] == saved == sum(b[part] for b in facts["blocks"])


@pytest.mark.parametrize("qtype", ["F32", "Q8_0", "Q4_0"])
def test_bytes_against_a_direct_sum(tiny_path: TinyPath, qtype: str) -> None:
    path = tiny_path(qtype=qtype)
    facts = run("models", "info", path, "--json").json
    assert facts["file_type"] == qtype
    assert facts["attn_bytes"] == bytes_of(path, r"blk\.\d+\.attn_") > 0
    assert facts["ffn_bytes"] == bytes_of(path, r"blk\.\d+\.ffn_") > 0
    assert facts["head_bytes"] == bytes_of(path, r"output(_norm)?\.")
    assert facts["token_embd_bytes"] == bytes_of(path, "token_embd") > 0
    for il, block in enumerate(facts["blocks"]):
        assert block["attn"] == bytes_of(path, rf"blk\.{il}\.attn_")
        assert block["ffn"] == bytes_of(path, rf"blk\.{il}\.ffn_")


def test_text_names_the_model_and_folds_equal_blocks(
    demo_path: Path, demo_facts: dict[str, Any]
) -> None:
    outcome = run("models", "info", demo_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    name, model, *lines = outcome.stdout.splitlines()
    assert name == f"name: {demo_facts['name']} (licence: MIT)"
    assert model.startswith(f"model: {demo_facts['architecture']} · 12 blocks · ")
    assert demo_facts["file_type"] in model and str(demo_facts["n_ctx_train"]) in model
    assert "chat model: no" in lines
    assert "same bits however a prompt is split: yes" in lines
    unsure = info._text(demo_facts | {"exact_prompts": False}).splitlines()
    assert "same bits however a prompt is split: not promised" in unsure
    table = [line.split()[0] for line in lines[lines.index("") + 1 :]]
    assert table == ["blocks", "0-11", "head"]
    other = [*demo_facts["blocks"][:3], {"attn": 1, "ffn": 2, "other": 0}]
    rows = info._text(demo_facts | {"blocks": [*other, demo_facts["blocks"][0]]}).splitlines()[-4:]
    assert [row.split()[0] for row in rows] == ["0-2", "3", "4", "head"]


@pytest.mark.parametrize(
    ("free", "said"),
    [(10**9, "yes, 15.5 MB with a context of 512 tokens; 1.0 GB are free"),
     (10**6, "no, 15.5 MB with a context of 512 tokens; 1.0 MB are free"),
     (None, "unknown; it needs 15.5 MB with a context of 512 tokens")],
)  # fmt: skip
def test_whether_a_model_fits_into_memory(
    free: int | None, said: str, demo_facts: dict[str, Any]
) -> None:
    kv = demo_facts["kv_bytes_per_1000_tokens"]
    # 12 blocks, K and V of 256 values each
    assert kv["f16"] == 1000 * 12 * 2 * 128 * 2 and kv["q8_0"] == kv["f16"] * 34 // 64
    assert demo_facts["needed_bytes"] == demo_facts["n_bytes"] + kv["f16"] * 512 // 1000
    text = info._text(demo_facts | {"free_bytes": free})
    assert f"fits: {said}" in text.splitlines()
    assert "for each 1,000 tokens of context 6.1 MB as f16 (3.3 MB as q8_0, " in text


def test_shares_of_the_bytes_add_up(tiny_path: TinyPath) -> None:
    text = run("models", "info", tiny_path()).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("bytes read per token")]
    shares = [int(word.strip("%,")) for word in line.split() if "%" in word]
    assert len(shares) == 3 and sum(shares) == pytest.approx(100, abs=1.5)


def test_demo_brings_a_mask() -> None:
    facts = run("models", "info", "demo", "--json").json
    assert facts["model"] == "demo"
    assert facts["file_type"] == "Q8_0"
    assert facts["has_tokenizer"] is True
    assert facts["draft_mask"]["n_layer"] == facts["n_layer"]
    assert (
        "skipping layers with the mask of this file (layer-skip): attention 3-11"
        in run("models", "info", "demo").stdout
    )


def test_model_without_tokenizer(tiny_path: TinyPath) -> None:
    assert run("models", "info", tiny_path(vocab="none"), "--json").json["has_tokenizer"] is False


def test_text_of_what_masks_cannot_do(demo_facts: dict[str, Any]) -> None:
    """No tiny model refuses anything, so the facts are made up."""
    facts = demo_facts | {"can_skip_attn": [3, 5, 8, 9, 10], "can_skip_ffn": []}
    text = info._text(facts)
    assert "masks can skip: attention of blocks 3,5,8-10; no feed-forward" in text
    stuck = info._text(facts | {"can_draft": False})
    assert "speed-up: none: the memory of this architecture cannot remove tokens" in stuck


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_380_128, "12.4 MB"), (10**12, "1000.0 GB")],
)
def test_sizes_for_people(n: int, text: str) -> None:
    assert size_text(n) == text


def test_types_of_the_weights(demo_path: Path, demo_facts: dict[str, Any]) -> None:
    n_bytes: dict[str, int] = {}
    for tensor in GGUFReader(demo_path).tensors:
        if len(tensor.shape) > 1:
            name = tensor.tensor_type.name
            n_bytes[name] = n_bytes.get(name, 0) + int(tensor.n_bytes)
    assert {each["type"]: each["n_bytes"] for each in demo_facts["weights"]} == n_bytes
    weights = [{"type": "Q4_1", "n_bytes": 300}, {"type": "Q1_0", "n_bytes": 100}]
    assert "weights: Q4_1 75%, Q1_0 25%\n" in info._text(demo_facts | {"weights": weights})
