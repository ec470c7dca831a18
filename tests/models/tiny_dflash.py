"""Tiny heads that draft blocks of tokens for tests, as GGUF files: DFlash, DSpark and DFlash2, with
random weights, or one that counts. The weights come back to the caller."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from tools.models.tiny_archs import HEAD_DIM, NORM_EPS
from tools.models.tiny_gguf import finish, replacing, tensor_rng
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN, add_spm_vocab

ARCH = "dflash"
BLOCKS = (1, 3)  # of the model, whose entering states it reads
N_LAYER, N_EMBD, N_HEAD, N_FF, RANK = 3, 64, 2, 128, 64
MASK = 0  # a token that no text has
WINDOW = 6
GROUP = 16  # channels that share the coefficients of a convolution

Weights = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a head is made.

    own: which of its own token_embd and output it has.
    tokens: the model's ids of its own tokens (d2t); None for all of the model's.
    n_head_kv: heads of K and V.
    has_values: whether V has a projection, or is K.
    has_post_norms, has_sinks: further tensors.
    windows: by block, whether it has a sliding window.
    has_sections: whether positions are those of models for images too, in time, height and width;
        those of text are equal.
    has_markov, from_first: of DSpark; whether the first row gives a token.
    n_candidates, kernel: of DFlash2; tokens that a row scores, 0 for other heads, and rows that a
        convolution sees.
    scale, cap: of the logits, by which candidates are chosen; 0: none.
    """

    name: str
    n_block: int = 5
    own: tuple[str, ...] = ("token_embd", "output")
    tokens: range | None = None
    n_head_kv: int = 1
    has_values: bool = True
    has_post_norms: bool = False
    has_sinks: bool = False
    windows: tuple[bool, ...] = ()
    has_sections: bool = False
    is_causal: bool | None = None
    has_markov: bool = False
    has_confidence: bool = False
    from_first: bool | None = None
    n_candidates: int = 0
    kernel: int = 2
    scale: float = 0.0
    cap: float = 0.0


DFLASH = Kind("dflash")
KINDS = (
    DFLASH,
    Kind("without weights of its own", n_block=8, own=(), n_head_kv=2),
    Kind("own tokens", own=("output",), tokens=range(3, 317, 2)),
    Kind("windows", windows=(True, False, True), has_post_norms=True, has_sinks=True),
    Kind("sections", has_sections=True),
    Kind("causal, k is v", is_causal=True, has_values=False, n_block=4),
    Kind("dspark", own=(), has_markov=True, has_confidence=True),
    Kind("dspark from the second row", has_markov=True, has_confidence=True, from_first=False),
    Kind("dspark with own tokens", own=("output",), tokens=range(3, 317, 2), has_markov=True),
    Kind("dflash2", own=(), n_block=8, n_candidates=7, has_post_norms=True, scale=2.0),
    Kind(
        "dflash2 with own tokens",
        own=("output",),
        tokens=range(3, 317, 2),
        n_candidates=4,
        kernel=6,  # longer than a block
        scale=1.5,
        cap=20.0,
    ),
)


def random_weights(kind: Kind = DFLASH, seed: int = 0) -> Weights:
    """Tensors by name, outputs first, inputs last, float32."""
    n_q, n_kv = N_HEAD * HEAD_DIM, kind.n_head_kv * HEAD_DIM
    n_own = N_VOCAB_MIN if kind.tokens is None else len(kind.tokens)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (N_EMBD, len(BLOCKS) * N_EMBD),
        "enc.output_norm.weight": (N_EMBD,),
        "output_norm.weight": (N_EMBD,),
    }
    shapes |= {"token_embd.weight": (N_VOCAB_MIN, N_EMBD)} if "token_embd" in kind.own else {}
    shapes |= {"output.weight": (n_own, N_EMBD)} if "output" in kind.own else {}
    if kind.has_markov:
        shapes |= {"markov_w1.weight": (N_VOCAB_MIN, RANK), "markov_w2.weight": (n_own, RANK)}
    if kind.has_confidence:
        shapes |= {"conf_proj.weight": (1, N_EMBD + RANK), "conf_proj.bias": (1,)}
    if kind.n_candidates:
        shapes |= {
            "selector_predecessor.weight": (N_VOCAB_MIN, RANK),
            "selector_successor.weight": (N_VOCAB_MIN, RANK),
            "selector_hidden.weight": (RANK, N_EMBD),
        }
    for block in range(N_LAYER):
        of_block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (N_EMBD,),
            "attn_q.weight": (n_q, N_EMBD),
            "attn_k.weight": (n_kv, N_EMBD),
            "attn_output.weight": (N_EMBD, n_q),
            "attn_q_norm.weight": (HEAD_DIM,),
            "attn_k_norm.weight": (HEAD_DIM,),
            "ffn_norm.weight": (N_EMBD,),
            "ffn_gate.weight": (N_FF, N_EMBD),
            "ffn_up.weight": (N_FF, N_EMBD),
            "ffn_down.weight": (N_EMBD, N_FF),
        }
        of_block |= {"attn_v.weight": (n_kv, N_EMBD)} if kind.has_values else {}
        of_block |= {"attn_sinks.weight": (N_HEAD,)} if kind.has_sinks else {}
        if kind.has_post_norms:
            of_block |= {
                "post_attention_norm.weight": (N_EMBD,),
                "post_ffw_norm.weight": (N_EMBD,),
                "layer_output_scale.weight": (1,),
            }
        for part in ("attn", "ffn") if kind.n_candidates else ():
            of_block |= {
                f"{part}_conv_base": (2, kind.kernel, N_EMBD),
                f"{part}_conv_proj.weight": (2 * kind.kernel * N_EMBD // GROUP, N_EMBD),
            }
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    weights = {name: _random(name, shape, seed) for name, shape in shapes.items()}
    if kind.tokens is not None:
        weights["d2t"] = np.array(kind.tokens, np.int64)
    return weights


def _random(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    noise = tensor_rng(seed, "dflash " + name).standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        return np.float32(0.1) * noise + np.float32(not name.endswith(("sinks.weight", "bias")))
    gain = 3.0 if name in ("output.weight", "markov_w1.weight") else 1.0
    found = np.float32(gain / math.sqrt(shape[-1])) * noise
    if name == "output.weight" and shape[0] == N_VOCAB_MIN:
        found[:N_CONTROL] *= np.float32(0.01)  # a draft never ends early
    return found


def counting_weights(kind: Kind) -> Weights:
    """A DSpark head that counts: after each token it expects the one with the next id."""
    weights = random_weights(kind)
    turns = 2 * math.pi * (1 + 4 * np.arange(RANK // 2)) / N_VOCAB_MIN
    angles = np.arange(-1, N_VOCAB_MIN)[:, None] * turns
    points = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    weights["markov_w1.weight"] = points[1:]
    weights["markov_w2.weight"] = points[:-1]
    weights["output_norm.weight"][:] = 0
    return weights


def write(
    path: str | os.PathLike[str],
    weights: Weights,
    kind: Kind = DFLASH,
    *,
    keys: Mapping[str, Any] | None = None,
    n_vocab: int = N_VOCAB_MIN,
    mask: int | None = MASK,
    types: Mapping[str, str] | None = None,
) -> Path:
    """Write a head and return its path.

    keys: other or further values of the architecture's keys, None to leave one out. types: of
    single tensors, by name.
    """
    path = Path(path)
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, ARCH)
        writer.add_name("tiny head that drafts blocks")
        for name, found in (_keys(kind, weights) | dict(keys or {})).items():
            _add(writer, f"{ARCH}.{name}", found)
        add_spm_vocab(writer, n_vocab)
        if mask is not None:
            writer.add_mask_token_id(mask)
        for name, data in weights.items():
            given = (types or {}).get(name)
            stored = data if given is None else data.astype(given)
            whole = {"int64": GGMLQuantizationType.I64, "int32": GGMLQuantizationType.I32}
            writer.add_tensor(name, stored, raw_dtype=whole.get(stored.dtype.name))
        finish(writer)
    return path


def _keys(kind: Kind, weights: Weights) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "context_length": 512,
        "embedding_length": len(weights["output_norm.weight"]),
        "block_count": N_LAYER,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": kind.n_head_kv,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": NORM_EPS,
        "rope.dimension_count": HEAD_DIM,
        "target_layers": list(BLOCKS),
        "block_size": kind.n_block,
        "attention.causal": kind.is_causal,
        "sample_from_anchor": kind.from_first,
    }
    if kind.n_candidates:
        keys |= {"conv_kernel_size": kind.kernel, "conv_group_size": GROUP}
        keys |= {"selector_rank": RANK, "selector_top_k": kind.n_candidates}
    if kind.scale:
        keys["logit_scale"] = kind.scale
    if kind.cap:
        keys["final_logit_softcapping"] = kind.cap
    if kind.has_sections:
        keys["rope.dimension_sections"] = [HEAD_DIM // 2, 0, 0, 0]
    if kind.windows:
        keys["attention.sliding_window"] = WINDOW
        keys["attention.sliding_window_pattern"] = list(kind.windows)
    return keys


def _add(writer: GGUFWriter, key: str, found: Any) -> None:
    if isinstance(found, bool):
        writer.add_bool(key, found)
    elif isinstance(found, float):
        writer.add_float32(key, found)
    elif isinstance(found, list):
        writer.add_array(key, found)
    elif found is not None:
        writer.add_uint32(key, found)
