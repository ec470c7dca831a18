"""Tiny models of Gemma 4 and their assistants, as two GGUF files for tests: with random weights, or
a model that counts and an assistant that is right about it. The weights come back to the caller."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tools.models.tiny_archs import NORM_EPS
from tools.models.tiny_gguf import finish, replacing, tensor_rng
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN, add_spm_vocab

ARCH = "gemma4-assistant"
N_EMBD, N_EMBD_HEAD, N_HEAD, N_FF = 64, 96, 2, 128
SIZES = (64, 32)  # of K and V of one head: without and with a window
N_ROT = (32, 32)
BASES = (10000.0, 500.0)  # of the rotation
WINDOW = 8
N_PER_LAYER = 16
SUBLAYER_GAIN = 0.3

Weights = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Pair:
    """How a model and its assistant are made.

    n_layer: of the model, whose blocks have a window in turn, the first one included.
    n_shared: number of its last blocks that use K and V of earlier ones.
    has_values: whether blocks without a window have a projection of V.
    has_own_inputs: whether each block has an embedding of the tokens of its own.
    n_head_kv: by window, heads of K and V.
    windows: of the assistant's blocks.
    """

    name: str
    n_layer: int = 4
    n_shared: int = 0
    has_values: bool = True
    has_own_inputs: bool = False
    n_head_kv: tuple[int, int] = (1, 2)
    windows: tuple[bool, ...] = (True, False, True)

    @property
    def model_windows(self) -> tuple[bool, ...]:
        return tuple(block % 2 == 0 for block in range(self.n_layer))

    def has_kv(self, block: int) -> bool:
        return block < self.n_layer - self.n_shared

    def source(self, has_window: bool) -> int:
        """Return the block of the model whose K and V a block of the assistant reads."""
        return self.n_layer - self.n_shared - 1 - has_window


PLAIN = Pair("plain")
SHARED = Pair("shared", n_layer=6, n_shared=2, has_own_inputs=True, n_head_kv=(2, 1))
WITHOUT_V = Pair("without v", has_values=False, windows=(True, True, True, False))
PAIRS = (PLAIN, SHARED, WITHOUT_V)


def _block(n_embd: int, has_window: bool) -> Shapes:
    """Shapes that blocks of both models have, outputs first."""
    n_q = N_HEAD * SIZES[has_window]
    return {
        "attn_norm.weight": (n_embd,),
        "attn_q.weight": (n_q, n_embd),
        "attn_q_norm.weight": (SIZES[has_window],),
        "attn_output.weight": (n_embd, n_q),
        "post_attention_norm.weight": (n_embd,),
        "ffn_norm.weight": (n_embd,),
        "ffn_gate.weight": (N_FF, n_embd),
        "ffn_up.weight": (N_FF, n_embd),
        "ffn_down.weight": (n_embd, N_FF),
        "post_ffw_norm.weight": (n_embd,),
        "layer_output_scale.weight": (1,),
    }


def _model_shapes(pair: Pair) -> Shapes:
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB_MIN, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "output.weight": (N_VOCAB_MIN, N_EMBD),
        "rope_freqs.weight": (SIZES[0] // 2,),
    }
    if pair.has_own_inputs:
        n = N_PER_LAYER * pair.n_layer
        shapes |= {
            "per_layer_token_embd.weight": (N_VOCAB_MIN, n),
            "per_layer_model_proj.weight": (n, N_EMBD),
            "per_layer_proj_norm.weight": (N_PER_LAYER,),
        }
    for block, has_window in enumerate(pair.model_windows):
        of_block = _block(N_EMBD, has_window)
        n_kv = pair.n_head_kv[has_window] * SIZES[has_window]
        if pair.has_kv(block):
            of_block["attn_k.weight"] = (n_kv, N_EMBD)
            of_block["attn_k_norm.weight"] = (SIZES[has_window],)
            if has_window or pair.has_values:
                of_block["attn_v.weight"] = (n_kv, N_EMBD)
        if pair.has_own_inputs:
            of_block |= {
                "inp_gate.weight": (N_PER_LAYER, N_EMBD),
                "proj.weight": (N_EMBD, N_PER_LAYER),
                "post_norm.weight": (N_EMBD,),
            }
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    return shapes


def _head_shapes(pair: Pair) -> Shapes:
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB_MIN, N_EMBD_HEAD),
        "output_norm.weight": (N_EMBD_HEAD,),
        "rope_freqs.weight": (SIZES[0] // 2,),
        "nextn.pre_projection.weight": (N_EMBD_HEAD, 2 * N_EMBD),
        "nextn.post_projection.weight": (N_EMBD, N_EMBD_HEAD),
    }
    for block, has_window in enumerate(pair.windows):
        of_block = _block(N_EMBD_HEAD, has_window)
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    return shapes


def _random(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    noise = tensor_rng(seed, "assistant " + name).standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        found = np.float32(0.1) * noise + np.float32(1)
        is_sublayer = name.endswith(("post_attention_norm.weight", "post_ffw_norm.weight"))
        return np.float32(SUBLAYER_GAIN) * found if is_sublayer else np.abs(found)
    found = noise / np.float32(math.sqrt(shape[-1]))
    if name in ("output.weight", "token_embd.weight"):
        found = np.float32(3) * found
        found[:N_CONTROL] *= np.float32(0.01)  # the text never ends early
    return found


def random_weights(pair: Pair = PLAIN, seed: int = 0) -> tuple[Weights, Weights]:
    """Tensors of a model and of an assistant, random, float32."""
    return (
        {
            name: _random("model " + name, shape, seed)
            for name, shape in _model_shapes(pair).items()
        },
        {name: _random(name, shape, seed) for name, shape in _head_shapes(pair).items()},
    )


def counting_weights(pair: Pair = PLAIN, gain: float = 0.0) -> tuple[Weights, Weights]:
    """A model that counts: after each token it expects the one with the next id, and its assistant
    knows that from the states alone.

    The state of a token is a point on circles, and the next token's the point one step further. The
    assistant turns the state that it is given by one step, to the state of the token of its row,
    and ignores the token. So it is wrong with the state of any other token.

    gain: of the model's sublayers, which make it count less well; those of the assistant do
    nothing.
    """
    model, head = random_weights(pair)
    for weights in (model, head):
        for name, data in weights.items():
            if "post_" in name and data.ndim == 1:
                data *= np.float32(gain / SUBLAYER_GAIN if weights is model else 0)
            elif name.endswith(("output_norm.weight", "layer_output_scale.weight")):
                data[:] = 1
    turns = 2 * math.pi * (1 + 4 * np.arange(N_EMBD // 2)) / N_VOCAB_MIN
    angles = np.arange(-1, N_VOCAB_MIN)[:, None] * turns
    points = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    cos, sin = np.diag(np.cos(turns)), np.diag(np.sin(turns))
    step = np.block([[cos, -sin], [sin, cos]]).astype(np.float32)
    model["token_embd.weight"][:] = points[1:] / math.sqrt(N_EMBD)
    for data in (model["output.weight"], head["token_embd.weight"]):
        data[:] = 0
        data[:, :N_EMBD] = points[:-1]
        data[:N_CONTROL] *= np.float32(0.01)  # the text never ends early
    head["nextn.pre_projection.weight"][:] = 0
    head["nextn.pre_projection.weight"][:N_EMBD, N_EMBD:] = step
    head["nextn.post_projection.weight"][:] = np.eye(N_EMBD, N_EMBD_HEAD)
    return model, head


def write_model(path: str | os.PathLike[str], weights: Weights, pair: Pair = PLAIN) -> Path:
    """Write the model of a pair and return its path."""
    path = Path(path)
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, "gemma4")
        _add_hparams(writer, N_EMBD, pair.model_windows, pair.n_head_kv)
        writer.add_shared_kv_layers(pair.n_shared)
        writer.add_uint32(
            "gemma4.embedding_length_per_layer_input", N_PER_LAYER * pair.has_own_inputs
        )
        _finish(writer, weights)
    return path


def write(
    path: str | os.PathLike[str],
    weights: Weights,
    pair: Pair = PLAIN,
    *,
    n_embd_target: int = N_EMBD,
    windows: Sequence[bool] | None = None,
    n_head_kv: Sequence[int] | None = None,
    n_nextn: int | None = None,
    n_rot: Sequence[int] = N_ROT,
    n_vocab: int = N_VOCAB_MIN,
    n_values: int = SIZES[0],
) -> Path:
    """Write the assistant of a pair and return its path. Options are those of broken files."""
    path = Path(path)
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, ARCH)
        windows = pair.windows if windows is None else windows
        _add_hparams(writer, N_EMBD_HEAD, windows, n_head_kv or pair.n_head_kv, n_rot, n_values)
        writer.add_uint32(f"{ARCH}.embedding_length_out", n_embd_target)
        writer.add_uint32(
            f"{ARCH}.nextn_predict_layers", len(windows) if n_nextn is None else n_nextn
        )
        _finish(writer, weights, n_vocab)
    return path


def _add_hparams(
    writer: GGUFWriter,
    n_embd: int,
    windows: Sequence[bool],
    n_head_kv: Sequence[int],
    n_rot: Sequence[int] = N_ROT,
    n_values: int = SIZES[0],
) -> None:
    writer.add_name("tiny model with an assistant")
    writer.add_context_length(512)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(len(windows))
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv([n_head_kv[has_window] for has_window in windows])
    writer.add_key_length(SIZES[0])
    writer.add_value_length(n_values)
    writer.add_key_length_swa(SIZES[1])
    writer.add_value_length_swa(SIZES[1])
    writer.add_rope_dimension_count(n_rot[0])
    writer.add_rope_dimension_count_swa(n_rot[1])
    writer.add_rope_freq_base(BASES[0])
    writer.add_rope_freq_base_swa(BASES[1])
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([bool(each) for each in windows])


def _finish(writer: GGUFWriter, weights: Weights, n_vocab: int = N_VOCAB_MIN) -> None:
    add_spm_vocab(writer, n_vocab)
    for name, data in weights.items():
        writer.add_tensor(name, data)
    finish(writer)
