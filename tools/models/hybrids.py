"""Shapes of random-weight models with recurrent states: tensors in file order and header keys.

`HYBRIDS` has the proportions of small published models, `TINY` has sizes for tests. Tiny sizes
fit llama.cpp's GPU kernels too. random_gguf.py draws the matrices and writes the files.

The greedy text of these models repeats after `CYCLE` tokens, so that drafts copied from it are
accepted: the row of the output matrix for a token is the embedding of the token before it in a
cycle of ids, and the sublayers add little to the embedding. A larger gain of the sublayers (the
late scale of random_gguf.py) gives text that depends on the states too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tools.models.sublayers import Attention, Mixer, gated_ffn, small
from tools.models.tiny_archs import NORM_EPS, Tensor
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN

Floats = NDArray[np.float32]

CYCLE = 12  # tokens until greedy text repeats
N_VOCAB = 32000
BIAS_GAIN = 0.1

# States remember from one token to a thousand: the decay per token is exp(-step * rate).
STEP_MIN, STEP_MAX = 1e-3, 1e-1
RATE_MAX = 16


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """Sizes of a model, from which its tensors and its header follow."""

    arch: ClassVar[str]
    output_norm: ClassVar[str] = "output_norm"
    loops: ClassVar[bool] = False  # the output matrix is the embedding with permuted rows

    n_layer: int
    n_embd: int
    n_vocab: int = N_VOCAB

    @property
    def n_params(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors())

    @property
    def has_attention(self) -> bool:
        return any(".attn_q." in tensor.name for tensor in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """All tensors in file order, numpy shapes (outputs first)."""
        yield Tensor("token_embd.weight", (self.n_vocab, self.n_embd))
        for block in range(self.n_layer):
            for tensor in self.block(block):
                yield Tensor(f"blk.{block}.{tensor.name}", tensor.shape, tensor.keep_f32)
        yield small(f"{self.output_norm}.weight", self.n_embd)
        yield Tensor("output.weight", (self.n_vocab, self.n_embd))

    @abstractmethod
    def block(self, index: int) -> list[Tensor]:
        """Tensors of one block, named without its number."""

    def add_header(self, writer: GGUFWriter) -> None:
        """Add the keys that the sizes decide."""
        writer.add_embedding_length(self.n_embd)
        writer.add_block_count(self.n_layer)

    def small_weights(self, tensor: Tensor, rng: np.random.Generator) -> Floats:
        """Weights of a tensor that is never quantized."""
        return np.ones(tensor.shape, np.float32)


@dataclass(frozen=True, kw_only=True)
class Hybrid(Layout):
    """A model with recurrent states, whose greedy text repeats."""

    loops: ClassVar[bool] = True

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_layer_norm_rms_eps(NORM_EPS)

    def small_weights(self, tensor: Tensor, rng: np.random.Generator) -> Floats:
        if tensor.name == f"{self.output_norm}.weight":
            # Rows of the output have the size of embeddings; logits shall be O(1).
            return np.full(tensor.shape, 1 / math.sqrt(self.n_embd), np.float32)
        kind = tensor.name.split(".", 2)[2]
        if kind == "ssm_a":
            return -_decay_rates(tensor.shape, rng)
        if kind == "ssm_dt.bias":
            return _step_biases(tensor.shape, rng)
        if kind.endswith("norm.weight") or kind == "ssm_d":
            return np.ones(tensor.shape, np.float32)
        gain = BIAS_GAIN if kind.endswith("bias") else 1 / math.sqrt(tensor.shape[-1])
        return np.float32(gain) * rng.standard_normal(tensor.shape, dtype=np.float32)


def previous_ids(n_vocab: int) -> NDArray[np.intp]:
    """Return the id before each id in its cycle; control tokens follow themselves."""
    ids = np.arange(n_vocab)
    place = (ids - N_CONTROL) % CYCLE
    first = ids - place
    before = first + (place - 1) % np.minimum(CYCLE, n_vocab - first)
    return np.where(ids < N_CONTROL, ids, before)


def _decay_rates(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Rates for each head, or for each state of a channel, which are then 1, 2, 3 and so on."""
    if shape[-1] == 1 or len(shape) == 1:
        return rng.uniform(1, RATE_MAX, shape).astype(np.float32)
    return np.broadcast_to(np.arange(1, shape[-1] + 1, dtype=np.float32), shape).copy()


def _step_biases(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Biases whose softplus is spread evenly, by its logarithm, from STEP_MIN to STEP_MAX."""
    step = np.exp(rng.uniform(math.log(STEP_MIN), math.log(STEP_MAX), shape))
    return np.log(np.expm1(step)).astype(np.float32)


#
# architectures
#


@dataclass(frozen=True, kw_only=True)
class Patterned(Hybrid):
    """Blocks of several kinds, some of them with attention."""

    pattern: str  # one letter for each block, repeated; A: attention
    n_ff: int
    attention: Attention

    @property
    def kinds(self) -> list[str]:
        """The letters of all blocks."""
        return [self.pattern[block % len(self.pattern)] for block in range(self.n_layer)]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        self.attention.add_header(writer)
        n_head_kv = self.attention.n_head_kv
        writer.add_head_count_kv([n_head_kv if kind == "A" else 0 for kind in self.kinds])


@dataclass(frozen=True, kw_only=True)
class Lfm2(Patterned):
    """Short convolutions (C) or attention, and a feed-forward sublayer in each block."""

    arch: ClassVar[str] = "lfm2"
    output_norm: ClassVar[str] = "token_embd_norm"

    n_conv: int = 3

    def block(self, index: int) -> list[Tensor]:
        n_embd = self.n_embd
        convolution = [
            small("shortconv.conv.weight", n_embd, self.n_conv),
            Tensor("shortconv.in_proj.weight", (3 * n_embd, n_embd)),
            Tensor("shortconv.out_proj.weight", (n_embd, n_embd)),
        ]
        return [
            small("attn_norm.weight", n_embd),
            *(self.attention.tensors(n_embd) if self.kinds[index] == "A" else convolution),
            small("ffn_norm.weight", n_embd),
            *gated_ffn(n_embd, self.n_ff),
        ]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_rope_dimension_count(self.attention.head_dim)
        writer.add_shortconv_l_cache(self.n_conv)


@dataclass(frozen=True, kw_only=True)
class Qwen35(Hybrid):
    """Gated delta nets, with full attention in every fourth block."""

    arch: ClassVar[str] = "qwen35"

    n_ff: int
    attention_period: int = 4
    attention: Attention
    mixer: Mixer
    rope_sections: tuple[int, int, int, int]  # pairs of dimensions; the last is not used

    def _delta_net(self) -> list[Tensor]:
        n_embd, mixer = self.n_embd, self.mixer
        return [
            Tensor("attn_qkv.weight", (mixer.n_mixed, n_embd)),
            Tensor("attn_gate.weight", (mixer.n_inner, n_embd)),
            small("ssm_conv1d.weight", mixer.n_mixed, mixer.n_conv),
            small("ssm_dt.bias", mixer.n_head),
            small("ssm_a", mixer.n_head),
            Tensor("ssm_beta.weight", (mixer.n_head, n_embd)),
            Tensor("ssm_alpha.weight", (mixer.n_head, n_embd)),
            small("ssm_norm.weight", mixer.n_state),
            Tensor("ssm_out.weight", (n_embd, mixer.n_inner)),
        ]

    def block(self, index: int) -> list[Tensor]:
        is_attention = (index + 1) % self.attention_period == 0
        attention = self.attention.tensors(self.n_embd, gated=True)
        return [
            small("attn_norm.weight", self.n_embd),
            *(attention if is_attention else self._delta_net()),
            small("post_attention_norm.weight", self.n_embd),
            *gated_ffn(self.n_embd, self.n_ff),
        ]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_feed_forward_length(self.n_ff)
        self.attention.add_header(writer)
        writer.add_head_count_kv(self.attention.n_head_kv)
        writer.add_rope_dimension_count(2 * sum(self.rope_sections))
        writer.add_rope_dimension_sections(self.rope_sections)
        writer.add_full_attention_interval(self.attention_period)
        self.mixer.add_header(writer)


@dataclass(frozen=True, kw_only=True)
class NemotronH(Patterned):
    """Blocks of one sublayer: a Mamba-2 mixer (M), a feed-forward sublayer (F) or attention."""

    arch: ClassVar[str] = "nemotron_h"

    mixer: Mixer

    def block(self, index: int) -> list[Tensor]:
        n_embd = self.n_embd
        sublayers = {
            "M": self.mixer.mamba2_tensors(n_embd),
            "F": gated_ffn(n_embd, self.n_ff)[1:],  # no gate
            "A": self.attention.tensors(n_embd, norms=False),
        }
        return [small("attn_norm.weight", n_embd), *sublayers[self.kinds[index]]]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_feed_forward_length([self.n_ff if kind == "F" else 0 for kind in self.kinds])
        writer.add_layer_norm_eps(NORM_EPS)
        self.mixer.add_header(writer)


@dataclass(frozen=True, kw_only=True)
class Recurrent(Hybrid):
    """A mixer in each block, and no other sublayer."""

    mixer: Mixer

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        self.mixer.add_header(writer)


@dataclass(frozen=True, kw_only=True)
class Mamba2(Recurrent):
    """Mixers of Mamba-2."""

    arch: ClassVar[str] = "mamba2"

    def block(self, index: int) -> list[Tensor]:
        return [small("attn_norm.weight", self.n_embd), *self.mixer.mamba2_tensors(self.n_embd)]


@dataclass(frozen=True, kw_only=True)
class Mamba(Recurrent):
    """Mixers of Mamba-1."""

    arch: ClassVar[str] = "mamba"

    def block(self, index: int) -> list[Tensor]:
        n_embd, mixer = self.n_embd, self.mixer
        n_inner, n_state, n_rank = mixer.n_inner, mixer.n_state, mixer.n_head
        return [
            small("attn_norm.weight", n_embd),
            Tensor("ssm_in.weight", (2 * n_inner, n_embd)),
            small("ssm_conv1d.weight", n_inner, mixer.n_conv),
            small("ssm_conv1d.bias", n_inner),
            Tensor("ssm_x.weight", (n_rank + 2 * n_state, n_inner)),
            small("ssm_dt.weight", n_inner, n_rank),  # rows shorter than a block of a K-quant
            small("ssm_dt.bias", n_inner),
            small("ssm_a", n_inner, n_state),
            small("ssm_d", n_inner),
            Tensor("ssm_out.weight", (n_embd, n_inner)),
        ]


def _by_name(*layouts: Hybrid) -> dict[str, Hybrid]:
    return {layout.arch: layout for layout in layouts}


# LFM2-350M, Qwen3.5-0.8B, proportions of Nemotron-H, mamba2-370m and mamba-370m.
HYBRIDS = _by_name(
    Lfm2(
        n_layer=16, n_embd=1024, n_ff=4608, pattern="CCACCACCACACACAC",
        attention=Attention(n_head=16, n_head_kv=8, head_dim=64),
    ),
    Qwen35(
        n_layer=24, n_embd=1024, n_ff=3584, rope_sections=(11, 11, 10, 0),
        attention=Attention(n_head=8, n_head_kv=2, head_dim=256),
        mixer=Mixer(n_inner=2048, n_state=128, n_head=16, n_group=16),
    ),
    NemotronH(
        n_layer=24, n_embd=1024, n_ff=4096, pattern="MFMFMFMAFMFM",
        attention=Attention(n_head=8, n_head_kv=2, head_dim=128),
        mixer=Mixer(n_inner=2048, n_state=128, n_head=32, n_group=8),
    ),
    Mamba2(
        n_layer=48, n_embd=1024, mixer=Mixer(n_inner=2048, n_state=128, n_head=32, n_group=1)
    ),
    Mamba(n_layer=48, n_embd=1024, mixer=Mixer(n_inner=2048, n_state=16, n_head=64)),
)  # fmt: skip

TINY = _by_name(
    Lfm2(
        n_layer=4, n_embd=128, n_vocab=N_VOCAB_MIN, n_ff=256, pattern="CCAC",
        attention=Attention(n_head=4, n_head_kv=2, head_dim=32),
    ),
    Qwen35(
        n_layer=4, n_embd=128, n_vocab=N_VOCAB_MIN, n_ff=256, rope_sections=(4, 4, 4, 0),
        attention=Attention(n_head=4, n_head_kv=2, head_dim=32),
        mixer=Mixer(n_inner=128, n_state=32, n_head=4, n_group=2),
    ),
    NemotronH(
        n_layer=4, n_embd=128, n_vocab=N_VOCAB_MIN, n_ff=256, pattern="MFAM",
        attention=Attention(n_head=4, n_head_kv=2, head_dim=32),
        mixer=Mixer(n_inner=256, n_state=128, n_head=8, n_group=2),
    ),
    Mamba2(
        n_layer=4, n_embd=128, n_vocab=N_VOCAB_MIN,
        mixer=Mixer(n_inner=256, n_state=128, n_head=8, n_group=1),
    ),
    Mamba(
        n_layer=4, n_embd=128, n_vocab=N_VOCAB_MIN,
        mixer=Mixer(n_inner=256, n_state=16, n_head=8),
    ),
)  # fmt: skip
