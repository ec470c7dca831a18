"""Tiny GPT-2 models with random weights: their positions come from a table, which has an end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tools.models.tiny_vocab import N_VOCAB_MIN, add_spm_vocab

N_EMBD, N_HEAD, N_FF, N_LAYER, N_POSITIONS = 64, 2, 128, 2, 320


def write_gpt2(path: Path) -> Path:
    """Write a model of N_POSITIONS positions, which is no multiple of 256."""
    rng = np.random.default_rng(0)
    file = GGUFWriter(path, "gpt2")
    file.add_block_count(N_LAYER)
    file.add_context_length(N_POSITIONS)
    file.add_embedding_length(N_EMBD)
    file.add_feed_forward_length(N_FF)
    file.add_head_count(N_HEAD)
    file.add_layer_norm_eps(1e-5)
    add_spm_vocab(file)

    def linear(name: str, n_out: int, n_in: int) -> None:
        weights = rng.normal(size=(n_out, n_in)) / np.sqrt(n_in)
        file.add_tensor(f"{name}.weight", weights.astype(np.float32))
        file.add_tensor(f"{name}.bias", np.zeros(n_out, np.float32))

    def norm(name: str) -> None:
        file.add_tensor(f"{name}.weight", np.ones(N_EMBD, np.float32))
        file.add_tensor(f"{name}.bias", np.zeros(N_EMBD, np.float32))

    for name, rows in (("token_embd", N_VOCAB_MIN), ("position_embd", N_POSITIONS)):
        file.add_tensor(f"{name}.weight", rng.normal(size=(rows, N_EMBD)).astype(np.float32))
    norm("output_norm")
    for il in range(N_LAYER):
        at = f"blk.{il}"
        norm(f"{at}.attn_norm")
        norm(f"{at}.ffn_norm")
        linear(f"{at}.attn_qkv", 3 * N_EMBD, N_EMBD)
        linear(f"{at}.attn_output", N_EMBD, N_EMBD)
        linear(f"{at}.ffn_up", N_FF, N_EMBD)
        linear(f"{at}.ffn_down", N_EMBD, N_FF)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path
