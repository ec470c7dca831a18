"""Tiny encoders with a tokenizer, as GGUF files, and what they compute, in numpy."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from odd_models import N_EMBD, N_FF, N_HEAD

N_LAYER, EPS = 2, 1e-6
CLS, SEP = 2, 3
WORDS = ("the", "king", "queen", "went", "home", "a", "dog", "cat", "bread", "sea")
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{word}" for word in WORDS))

Weights = dict[str, NDArray[np.float32]]


def write_encoder(path: Path, pooling: gguf.PoolingType, seed: int = 0) -> Weights:
    """Write a bert of two blocks; with rank pooling it has a head that scores. Return its weights,
    by the names in the file."""
    weights = _weights(np.random.default_rng(seed), is_rank=pooling == gguf.PoolingType.RANK)
    file = gguf.GGUFWriter(path, "bert")
    file.add_block_count(N_LAYER)
    file.add_context_length(64)
    file.add_embedding_length(N_EMBD)
    file.add_feed_forward_length(N_FF)
    file.add_head_count(N_HEAD)
    file.add_layer_norm_eps(EPS)
    file.add_causal_attention(False)
    file.add_pooling_type(pooling)
    file.add_token_type_count(2)
    file.add_tokenizer_model("bert")
    file.add_token_list(TOKENS)
    file.add_token_types([3] * 5 + [1] * len(WORDS))
    file.add_unk_token_id(1)
    file.add_bos_token_id(CLS)
    file.add_eos_token_id(SEP)
    file.add_sep_token_id(SEP)
    file.add_pad_token_id(0)
    for name, values in weights.items():
        file.add_tensor(name, values)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return weights


def _weights(rng: np.random.Generator, *, is_rank: bool) -> Weights:
    def normal(*shape: int) -> NDArray[np.float32]:
        return (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)

    found = {
        "token_embd.weight": normal(len(TOKENS), N_EMBD),
        "position_embd.weight": normal(64, N_EMBD),
        "token_types.weight": normal(2, N_EMBD),
        "token_embd_norm.weight": np.ones(N_EMBD, np.float32),
        "token_embd_norm.bias": normal(N_EMBD),
    }
    for il in range(N_LAYER):
        for name, rows, columns in (
            *((f"attn_{each}", N_EMBD, N_EMBD) for each in ("q", "k", "v", "output")),
            ("ffn_up", N_FF, N_EMBD),
            ("ffn_down", N_EMBD, N_FF),
        ):
            found[f"blk.{il}.{name}.weight"] = normal(rows, columns)
            found[f"blk.{il}.{name}.bias"] = normal(rows)
        for name in ("attn_output_norm", "layer_output_norm"):
            found[f"blk.{il}.{name}.weight"] = np.ones(N_EMBD, np.float32)
            found[f"blk.{il}.{name}.bias"] = normal(N_EMBD)
    if is_rank:
        found |= {
            "cls.weight": normal(N_EMBD, N_EMBD),
            "cls.bias": normal(N_EMBD),
            "cls.output.weight": normal(1, N_EMBD),
            "cls.output.bias": normal(1),
        }
    return found


def rows_of(weights: Weights, tokens: list[int]) -> NDArray[np.float64]:
    """Return the last states of a text, float64 [n_tokens, N_EMBD]."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}

    def norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    n = len(tokens)
    x = w["token_embd.weight"][tokens] + w["position_embd.weight"][:n] + w["token_types.weight"][0]
    x = norm(x, "token_embd_norm")
    for il in range(N_LAYER):
        blk = f"blk.{il}."
        q, k, v = (
            linear(x, f"{blk}attn_{each}").reshape(n, N_HEAD, -1).transpose(1, 0, 2)
            for each in "qkv"
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        p = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (p / p.sum(-1, keepdims=True)) @ v
        said = linear(seen.transpose(1, 0, 2).reshape(n, -1), f"{blk}attn_output")
        x = norm(x + said, f"{blk}attn_output_norm")
        up = linear(x, f"{blk}ffn_up")
        up = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = norm(x + linear(up, f"{blk}ffn_down"), f"{blk}layer_output_norm")
    return x


def score_of(weights: Weights, tokens: list[int]) -> float:
    """Return the score of a pair."""
    first = rows_of(weights, tokens)[0]
    inner = np.tanh(weights["cls.weight"] @ first + weights["cls.bias"])
    return float(weights["cls.output.weight"][0] @ inner + weights["cls.output.bias"][0])


def ids_of(text: str) -> list[int]:
    """Return the tokens of words, between the tokens that begin and end a text."""
    return [CLS, *(TOKENS.index(f"▁{word}") for word in text.split()), SEP]
