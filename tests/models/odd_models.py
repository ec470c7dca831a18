"""Random-weight GGUF files of architectures that are unlike the others: encoders, several streams
between blocks, inputs that read ids of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFWriter

N_EMBD, N_HEAD, N_FF, N_VOCAB, HEAD_DIM = 64, 2, 128, 300, 32


class _Writer:
    """A file that is written when the with block ends."""

    def __init__(self, path: Path, arch: str, n_layer: int) -> None:
        self.path, self.arch, self.n_layer = path, arch, n_layer
        self.file = GGUFWriter(path, arch)
        self._rng = np.random.default_rng(0)
        self.file.add_block_count(n_layer)
        self.file.add_context_length(512)
        self.file.add_embedding_length(N_EMBD)
        self.file.add_feed_forward_length(N_FF)
        self.file.add_head_count(N_HEAD)
        self.file.add_vocab_size(N_VOCAB)
        self.file.add_string("tokenizer.ggml.model", "none")

    def key(self, name: str, value: Any) -> None:
        full = f"{self.arch}.{name}"
        if isinstance(value, list):
            self.file.add_array(full, value)
        elif isinstance(value, float):
            self.file.add_float32(full, value)
        else:
            self.file.add_uint32(full, value)

    def normal(self, name: str, *shape: int) -> None:
        values = self._rng.normal(size=shape) / np.sqrt(shape[-1])
        self.file.add_tensor(f"{name}.weight", values.astype(np.float32))

    def ones(self, name: str, n: int = N_EMBD) -> None:
        self.file.add_tensor(f"{name}.weight", np.ones(n, np.float32))

    def bias(self, name: str, n: int) -> None:
        self.file.add_tensor(f"{name}.bias", np.zeros(n, np.float32))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def write_bert(path: Path) -> None:
    """An encoder: no K/V, no logits."""
    with _Writer(path, "bert", 2) as w:
        w.file.add_layer_norm_eps(1e-6)
        w.file.add_causal_attention(False)
        w.file.add_pooling_type(gguf.PoolingType.MEAN)
        w.file.add_token_type_count(2)
        w.normal("token_embd", N_VOCAB, N_EMBD)
        w.normal("position_embd", 512, N_EMBD)
        w.normal("token_types", 2, N_EMBD)
        w.ones("token_embd_norm")
        w.bias("token_embd_norm", N_EMBD)
        for il in range(w.n_layer):
            blk = f"blk.{il}."
            for name, rows, columns in (
                *((f"attn_{each}", N_EMBD, N_EMBD) for each in ("q", "k", "v", "output")),
                ("ffn_up", N_FF, N_EMBD),
                ("ffn_down", N_EMBD, N_FF),
            ):
                w.normal(blk + name, rows, columns)
                w.bias(blk + name, rows)
            for name in ("attn_output_norm", "layer_output_norm"):
                w.ones(blk + name)
                w.bias(blk + name, N_EMBD)


def write_t5(path: Path) -> None:
    """An encoder and a decoder that reads its output."""
    with _Writer(path, "t5", 2) as w:
        w.file.add_layer_norm_rms_eps(1e-6)
        w.key("attention.relative_buckets_count", 32)
        w.normal("token_embd", N_VOCAB, N_EMBD)
        w.ones("enc.output_norm")
        w.ones("dec.output_norm")
        for il in range(w.n_layer):
            for side in ("enc", "dec"):
                blk = f"{side}.blk.{il}."
                for name in ("attn_norm", "ffn_norm"):
                    w.ones(blk + name)
                for name in ("attn_q", "attn_k", "attn_v", "attn_o"):
                    w.normal(blk + name, N_EMBD, N_EMBD)
                w.normal(blk + "attn_rel_b", 32, N_HEAD)
                w.normal(blk + "ffn_up", N_FF, N_EMBD)
                w.normal(blk + "ffn_down", N_EMBD, N_FF)
            blk = f"dec.blk.{il}."
            w.ones(blk + "cross_attn_norm")
            for name in ("cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_o"):
                w.normal(blk + name, N_EMBD, N_EMBD)


def _write_gemma_attention(w: _Writer, blk: str, n_kv: int = 1) -> None:
    w.normal(blk + "attn_q", N_HEAD * HEAD_DIM, N_EMBD)
    w.normal(blk + "attn_k", n_kv * HEAD_DIM, N_EMBD)
    w.normal(blk + "attn_v", n_kv * HEAD_DIM, N_EMBD)
    w.normal(blk + "attn_output", N_EMBD, N_HEAD * HEAD_DIM)
    w.ones(blk + "attn_q_norm", HEAD_DIM)
    w.ones(blk + "attn_k_norm", HEAD_DIM)
    w.normal(blk + "ffn_gate", N_FF, N_EMBD)
    w.normal(blk + "ffn_up", N_FF, N_EMBD)
    w.normal(blk + "ffn_down", N_EMBD, N_FF)


def _add_gemma_keys(w: _Writer) -> None:
    w.file.add_head_count_kv(1)
    w.file.add_key_length(HEAD_DIM)
    w.file.add_value_length(HEAD_DIM)
    w.file.add_layer_norm_rms_eps(1e-6)
    w.key("attention.sliding_window", 32)


def write_gemma3n(path: Path) -> None:
    """Four streams run from block to block instead of one vector per token."""
    n_altup, n_per_layer = 4, 256
    with _Writer(path, "gemma3n", 4) as w:
        _add_gemma_keys(w)
        w.normal("token_embd", N_VOCAB, N_EMBD)
        w.normal("altup_proj", n_altup - 1, N_EMBD, N_EMBD)
        w.normal("altup_unembd_proj", n_altup - 1, N_EMBD, N_EMBD)
        w.normal("per_layer_token_embd", N_VOCAB, n_per_layer * w.n_layer)
        w.normal("per_layer_model_proj", n_per_layer * w.n_layer, N_EMBD)
        w.ones("per_layer_proj_norm", n_per_layer)
        w.ones("output_norm")
        for il in range(w.n_layer):
            blk = f"blk.{il}."
            _write_gemma_attention(w, blk)
            for name in (
                *("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"),
                *("altup_correct_scale", "altup_router_norm", "laurel_post_norm"),
            ):
                w.ones(blk + name)
            w.normal(blk + "inp_gate", n_per_layer, N_EMBD)
            w.normal(blk + "proj", N_EMBD, n_per_layer)
            w.normal(blk + "altup_correct_coef", n_altup, n_altup)
            w.normal(blk + "altup_predict_coef", n_altup * n_altup, n_altup)
            w.normal(blk + "altup_router", n_altup, N_EMBD)
            w.normal(blk + "laurel_l", 64, N_EMBD)
            w.normal(blk + "laurel_r", N_EMBD, 64)


def write_gemma4(path: Path) -> None:
    """Every block reads an embedding of the ids of its own."""
    n_per_layer = 16
    with _Writer(path, "gemma4", 4) as w:
        _add_gemma_keys(w)
        w.key("attention.key_length_swa", HEAD_DIM)
        w.key("attention.value_length_swa", HEAD_DIM)
        w.key("attention.sliding_window_pattern", [True, False, True, False])
        w.key("embedding_length_per_layer_input", n_per_layer)
        w.key("rope.freq_base", 10000.0)
        w.key("rope.dimension_count", HEAD_DIM)
        w.key("rope.dimension_count_swa", HEAD_DIM)
        w.normal("token_embd", N_VOCAB, N_EMBD)
        w.normal("per_layer_token_embd", N_VOCAB, n_per_layer * w.n_layer)
        w.normal("per_layer_model_proj", n_per_layer * w.n_layer, N_EMBD)
        w.ones("per_layer_proj_norm", n_per_layer)
        w.ones("output_norm")
        w.ones("rope_freqs", HEAD_DIM // 2)
        for il in range(w.n_layer):
            blk = f"blk.{il}."
            _write_gemma_attention(w, blk)
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
                w.ones(blk + name)
            w.normal(blk + "inp_gate", n_per_layer, N_EMBD)
            w.normal(blk + "proj", N_EMBD, n_per_layer)
            w.ones(blk + "post_norm")


WRITERS = {
    "bert": write_bert,
    "t5": write_t5,
    "gemma3n": write_gemma3n,
    "gemma4": write_gemma4,
}
