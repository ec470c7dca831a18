"""A tiny recurrent model with random weights, as a GGUF file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray


def write_mamba(path: Path, zero: Collection[int] = ()) -> Path:
    """A recurrent model of two blocks; the mixers of the blocks in ``zero`` add nothing."""
    n_embd, n_inner, n_state, n_conv, n_rank, n_vocab = 64, 128, 16, 4, 4, 320
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    writer = GGUFWriter(path, "mamba")
    writer.add_context_length(128)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(2)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_rank)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(n_vocab)
    writer.add_tensor("token_embd.weight", normal(n_vocab, n_embd))
    writer.add_tensor("output_norm.weight", np.ones(n_embd, np.float32))
    for il in range(2):
        blk = f"blk.{il}."
        writer.add_tensor(blk + "attn_norm.weight", np.ones(n_embd, np.float32))
        writer.add_tensor(blk + "ssm_in.weight", normal(2 * n_inner, n_embd))
        writer.add_tensor(blk + "ssm_conv1d.weight", normal(n_inner, n_conv))
        writer.add_tensor(blk + "ssm_conv1d.bias", normal(n_inner))
        writer.add_tensor(blk + "ssm_x.weight", normal(n_rank + 2 * n_state, n_inner))
        writer.add_tensor(blk + "ssm_dt.weight", normal(n_inner, n_rank))
        writer.add_tensor(blk + "ssm_dt.bias", normal(n_inner))
        writer.add_tensor(blk + "ssm_a", -np.abs(normal(n_inner, n_state)) - 1)
        writer.add_tensor(blk + "ssm_d", np.ones(n_inner, np.float32))
        writer.add_tensor(
            blk + "ssm_out.weight", normal(n_embd, n_inner) * np.float32(il not in zero)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
