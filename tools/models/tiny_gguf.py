"""Tiny random-weight GGUF models, written on the spot for tests.

The files load and decode in llama.cpp, but the weights are random: the text means nothing.
Each tensor has its own random stream, seeded by the seed and the tensor's name. So a file with
zeroed sublayers or dropped blocks is bit-identical to the plain one in every other tensor, which
makes it an exact oracle for layer-skip masks. This module knows nothing about running models.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray

HEAD_DIM = 32  # the block size of Q8_0 and Q4_0, so quantized K/V caches work too
ROTARY_DIM_PARTIAL = 16
SLIDING_WINDOW = 32  # tokens; short, so that tests cross it
N_EXPERT, N_EXPERT_USED = 4, 2
NORM_EPS = 1e-5
SUBLAYER_GAIN = 0.7  # of attention and feed-forward outputs against a residual stream of O(1)
LOGIT_GAIN = 2.0
CONTROL_TOKEN_GAIN = 0.01

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
}
VOCABULARIES = ("spm", "reversed", "none")


@dataclass(frozen=True)
class Arch:
    """The tensors of one architecture."""

    kv_share: int = 2  # query heads per K/V head; 0: one K/V head for all
    fused_qkv: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    layer_norm: bool = False  # LayerNorm with bias; otherwise RMS norm
    ffn: str = "gated"  # gated | fused (gate and up in one) | plain (no gate) | experts
    ffn_norm: bool = True  # False: attention and feed-forward share one norm
    out_bias: bool = False  # biases on attn_output, ffn_up and ffn_down
    post_norm: bool = False
    shared_expert: bool = False
    tied: bool = False  # the head is the token embedding
    partial_rotary: bool = False
    window_period: int = 0  # every n-th block attends to everything, the others to a window
    rope_sections: tuple[int, ...] = ()  # pairs of values by dimension of RoPE, with M-RoPE
    n_deepstack: int = 0  # blocks that add a part of a picture's row each


ARCHS = {
    "llama": Arch(),
    "qwen2": Arch(qkv_bias=True),
    "qwen3": Arch(qk_norm=True),
    "gemma2": Arch(post_norm=True, tied=True, window_period=2),
    "gemma3": Arch(qk_norm=True, post_norm=True, tied=True, window_period=3),
    "phi3": Arch(fused_qkv=True, ffn="fused"),
    "gptneox": Arch(
        kv_share=1, fused_qkv=True, qkv_bias=True, layer_norm=True, ffn="plain", out_bias=True,
        partial_rotary=True,
    ),
    "falcon": Arch(kv_share=0, fused_qkv=True, layer_norm=True, ffn="plain", ffn_norm=False),
    "qwen3moe": Arch(qk_norm=True, ffn="experts"),
    "qwen2moe": Arch(qkv_bias=True, ffn="experts", shared_expert=True),
    "qwen2vl": Arch(qkv_bias=True, rope_sections=(4, 6, 6, 0)),
    "qwen3vl": Arch(qk_norm=True, rope_sections=(6, 5, 5, 0), n_deepstack=2),
}  # fmt: skip
# qwen3vl differs from qwen2vl in pictures only
ARCHITECTURES: tuple[str, ...] = tuple(name for name in ARCHS if name != "qwen3vl")


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: GGUF name and numpy shape (outputs first, inputs last)."""

    name: str
    shape: tuple[int, ...]
    keep_f32: bool = False  # small or sensitive: never quantized


@dataclass(frozen=True)
class Edits:
    """Differences from the plain random model."""

    zero_attn: frozenset[int]
    zero_ffn: frozenset[int]
    late_scale: float
    late_from: int


# --- vocabulary ------------------------------------------------------------------------------

_PAIRS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng "
    "▁t ▁a ▁s ▁o the and ing ▁th ▁an ▁the ▁and"
).split()
_LETTERS = "▁etaoinshrdlucmfwypvbgk"
_CONTROL = ("<unk>", "<s>", "</s>")
N_CONTROL = len(_CONTROL)
N_VOCAB_MIN = N_CONTROL + 256 + len(_PAIRS) + len(_LETTERS)


def spm_vocab(n_vocab: int = N_VOCAB_MIN) -> tuple[list[str], list[float], list[int]]:
    """Texts, scores and token types of a SentencePiece-type vocabulary of n_vocab tokens.

    Any UTF-8 text tokenizes: what is no letter or pair falls back to byte tokens. Beyond the
    fixed part the list is padded with made-up words, which only sampling can produce.
    Raises ValueError when n_vocab is smaller than the fixed part.
    """
    if n_vocab < N_VOCAB_MIN:
        raise ValueError(f"vocabulary of {n_vocab} tokens: at least {N_VOCAB_MIN} are needed")
    by_length = sorted(_PAIRS, key=len, reverse=True)  # longer merges first
    normal = [*by_length, *_LETTERS]
    padding = list(itertools.islice(_made_up_words(), n_vocab - N_VOCAB_MIN))
    texts = [*_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *normal, *padding]
    n_normal = len(normal) + len(padding)
    scores = [0.0] * (N_CONTROL + 256) + [-float(rank) for rank in range(1, n_normal + 1)]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * n_normal
    return texts, scores, [int(t) for t in types]


def _made_up_words() -> Iterator[str]:
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    for n in itertools.count(2):
        for word in itertools.product(syllables, repeat=n):
            yield "▁" + "".join(word)


def reversed_ids(n_vocab: int = N_VOCAB_MIN) -> list[int]:
    """Return the tokens in another order, by ids of the first: words and letters backwards."""
    n_fixed = N_CONTROL + 256
    return [*range(n_fixed), *reversed(range(n_fixed, n_vocab))]


def add_spm_vocab(
    writer: GGUFWriter, n_vocab: int = N_VOCAB_MIN, ids: Sequence[int] | None = None
) -> None:
    """ids: the tokens in another order."""
    texts, scores, types = spm_vocab(n_vocab)
    order = range(n_vocab) if ids is None else ids
    writer.add_tokenizer_model("llama")
    writer.add_token_list([texts[i] for i in order])
    writer.add_token_scores([scores[i] for i in order])
    writer.add_token_types([types[i] for i in order])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)


# --- tensors ---------------------------------------------------------------------------------


def model_tensors(arch: Arch, n_layer: int, n_embd: int, n_vocab: int) -> list[Tensor]:
    """All tensors of a model, blocks 0..n_layer-1, in file order."""
    tensors = [Tensor("token_embd.weight", (n_vocab, n_embd))]
    for block in range(n_layer):
        tensors += [
            Tensor(f"blk.{block}.{t.name}", t.shape, t.keep_f32)
            for t in (*_attention(arch, n_embd), *_feed_forward(arch, n_embd))
        ]
    tensors += _norm(arch, "output_norm", n_embd)
    if not arch.tied:
        tensors.append(Tensor("output.weight", (n_vocab, n_embd)))
    return tensors


def _vector(name: str, n: int) -> Tensor:
    return Tensor(name, (n,), keep_f32=True)


def _norm(arch: Arch, name: str, n: int) -> list[Tensor]:
    norm = [_vector(f"{name}.weight", n)]
    return [*norm, _vector(f"{name}.bias", n)] if arch.layer_norm else norm


def _linear(name: str, n_out: int, n_in: int, bias: bool) -> list[Tensor]:
    linear = [Tensor(f"{name}.weight", (n_out, n_in))]
    return [*linear, _vector(f"{name}.bias", n_out)] if bias else linear


def _attention(arch: Arch, n_embd: int) -> list[Tensor]:
    n_kv = _n_head_kv(arch, n_embd) * HEAD_DIM
    tensors = _norm(arch, "attn_norm", n_embd)
    if arch.fused_qkv:
        tensors += _linear("attn_qkv", n_embd + 2 * n_kv, n_embd, arch.qkv_bias)
    else:
        for name, n_out in (("attn_q", n_embd), ("attn_k", n_kv), ("attn_v", n_kv)):
            tensors += _linear(name, n_out, n_embd, arch.qkv_bias)
    if arch.qk_norm:
        tensors += [_vector(f"attn_{x}_norm.weight", HEAD_DIM) for x in "qk"]
    tensors += _linear("attn_output", n_embd, n_embd, arch.out_bias)
    if arch.post_norm:
        tensors.append(_vector("post_attention_norm.weight", n_embd))
    return tensors


def _feed_forward(arch: Arch, n_embd: int) -> list[Tensor]:
    n_ff = _n_ff(n_embd)
    tensors = _norm(arch, "ffn_norm", n_embd) if arch.ffn_norm else []
    if arch.ffn == "experts":
        tensors += _experts(n_embd, _n_ff_expert(n_embd))
    else:
        if arch.ffn == "gated":
            tensors += _linear("ffn_gate", n_ff, n_embd, False)
        n_up = 2 * n_ff if arch.ffn == "fused" else n_ff
        tensors += _linear("ffn_up", n_up, n_embd, arch.out_bias)
        tensors += _linear("ffn_down", n_embd, n_ff, arch.out_bias)
    if arch.shared_expert:
        tensors.append(_vector("ffn_gate_inp_shexp.weight", n_embd))
        tensors += _linear("ffn_gate_shexp", n_ff, n_embd, False)
        tensors += _linear("ffn_up_shexp", n_ff, n_embd, False)
        tensors += _linear("ffn_down_shexp", n_embd, n_ff, False)
    if arch.post_norm:
        tensors.append(_vector("post_ffw_norm.weight", n_embd))
    return tensors


def _experts(n_embd: int, n_ff: int) -> list[Tensor]:
    return [
        Tensor("ffn_gate_inp.weight", (N_EXPERT, n_embd), keep_f32=True),
        Tensor("ffn_gate_exps.weight", (N_EXPERT, n_ff, n_embd)),
        Tensor("ffn_up_exps.weight", (N_EXPERT, n_ff, n_embd)),
        Tensor("ffn_down_exps.weight", (N_EXPERT, n_embd, n_ff)),
    ]


def _n_head(n_embd: int) -> int:
    return n_embd // HEAD_DIM


def _n_head_kv(arch: Arch, n_embd: int) -> int:
    return _n_head(n_embd) // arch.kv_share if arch.kv_share else 1


def _n_ff(n_embd: int) -> int:
    return 2 * n_embd


def _n_ff_expert(n_embd: int) -> int:
    return n_embd // 2


# --- weights ---------------------------------------------------------------------------------


def tensor_rng(seed: int, name: str) -> np.random.Generator:
    """The random stream of one tensor: depends on the seed and the name, on nothing else."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def block_of(name: str) -> int | None:
    """Block number of a tensor name, None outside the blocks."""
    return int(name.split(".")[1]) if name.startswith("blk.") else None


def _weights(tensor: Tensor, seed: int, arch: Arch) -> NDArray[np.float32]:
    """Float weights that keep the hidden state O(1) and the greedy text varied."""
    noise = tensor_rng(seed, tensor.name).standard_normal(tensor.shape, dtype=np.float32)
    kind = tensor.name.split(".")[-2]
    weights: NDArray[np.float32]
    if kind == "output_norm" and tensor.name.endswith("weight"):
        # Random signs: with tied embeddings the likeliest next token would be the last one.
        weights = np.copysign(1 + 0.1 * np.abs(noise), noise)
    elif kind.endswith("norm") and tensor.name.endswith("weight"):
        gain = SUBLAYER_GAIN if kind.startswith("post_") else 1.0
        weights = gain * (1 + 0.1 * noise)
    elif len(tensor.shape) == 1:
        weights = 0.1 * noise
    elif kind in ("token_embd", "output"):
        # A tied embedding also sets the logits; gemma multiplies it by sqrt(n_embd) on input.
        scaled = kind == "output" or arch.tied
        gain = LOGIT_GAIN / math.sqrt(tensor.shape[-1]) if scaled else 1.0
        weights = gain * noise
        weights[:N_CONTROL] *= CONTROL_TOKEN_GAIN  # greedy text never ends by itself
    else:
        gain = SUBLAYER_GAIN if _is_sublayer_output(tensor.name) else 1.0
        weights = gain / math.sqrt(tensor.shape[-1]) * noise
    return weights


def _is_sublayer_output(name: str) -> bool:
    return ".attn_output." in name or ".ffn_down" in name


def _factor(name: str, arch: Arch, edits: Edits) -> float:
    """Return the factor of a tensor: 0 for zeroed outputs, late_scale in late blocks."""
    block = block_of(name)
    if block is None:
        return 1.0
    if ".attn_output." in name and block in edits.zero_attn:
        return 0.0
    if ".ffn_down" in name and block in edits.zero_ffn:
        return 0.0
    # A norm behind the sublayer undoes any scale before it, so there the norm is scaled.
    late = ".post_" in name if arch.post_norm else _is_sublayer_output(name)
    return edits.late_scale if late and block >= edits.late_from else 1.0


def _type(tensor: Tensor, qtype: str) -> GGMLQuantizationType:
    return GGMLQuantizationType.F32 if tensor.keep_f32 else GGMLQuantizationType[qtype]


# --- metadata --------------------------------------------------------------------------------


def _add_hparams(writer: GGUFWriter, arch: Arch, kept: list[int], n_embd: int, n_ctx: int) -> None:
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(len(kept))
    writer.add_feed_forward_length(_n_ff(n_embd))
    writer.add_head_count(_n_head(n_embd))
    writer.add_head_count_kv(_n_head_kv(arch, n_embd))
    writer.add_rope_dimension_count(ROTARY_DIM_PARTIAL if arch.partial_rotary else HEAD_DIM)
    if arch.rope_sections:
        writer.add_rope_dimension_sections(arch.rope_sections)
    if arch.n_deepstack:
        writer.add_uint32(f"{writer.arch}.n_deepstack_layers", arch.n_deepstack)
    if not arch.fused_qkv:
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
    if arch.layer_norm:
        writer.add_layer_norm_eps(NORM_EPS)
    else:
        writer.add_layer_norm_rms_eps(NORM_EPS)
    if arch.ffn == "experts":
        writer.add_expert_count(N_EXPERT)
        writer.add_expert_used_count(N_EXPERT_USED)
        writer.add_expert_feed_forward_length(_n_ff_expert(n_embd))
    if arch.shared_expert:
        writer.add_expert_shared_feed_forward_length(_n_ff(n_embd))
    if arch.window_period:
        writer.add_sliding_window(SLIDING_WINDOW)
        # Per block, so that dropping blocks keeps the window of those that stay.
        writer.add_sliding_window_pattern([(b + 1) % arch.window_period != 0 for b in kept])
    if writer.arch == "gptneox":
        writer.add_parallel_residual(True)
    if writer.arch == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)


def _add_vocab(writer: GGUFWriter, vocab: str) -> None:
    if vocab == "spm":
        add_spm_vocab(writer)
    elif vocab == "reversed":
        add_spm_vocab(writer, ids=reversed_ids())
        writer.add_add_space_prefix(False)
    else:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(N_VOCAB_MIN)


# --- writing ---------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name on success and vanishes on failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write(
    path: str | os.PathLike[str],
    arch: str = "llama",
    *,
    n_layer: int = 4,
    n_embd: int = 64,
    seed: int = 0,
    qtype: str = "F32",
    zero_attn: Collection[int] = (),
    zero_ffn: Collection[int] = (),
    drop_blocks: Collection[int] = (),
    late_scale: float = 1.0,
    late_from: int | None = None,
    n_ctx: int = 512,
    vocab: str = "spm",
    n_ctx_short: int | None = None,
) -> Path:
    """Write a random-weight model and return its path.

    zero_attn, zero_ffn: blocks whose sublayer output tensors (attn_output, ffn_down*, weights
    and biases, experts included) are zeros. All other tensors stay bit-identical, and the
    sublayer adds exactly nothing, in every architecture here.
    drop_blocks: blocks left out, the others renumbered and bit-identical. An exact oracle for
    skipping whole blocks in every architecture here: the sliding-window pattern of gemma2 and
    gemma3 is stored per block and follows its block.
    late_scale: factor on the sublayer outputs of blocks >= late_from (default: the second half),
    so that early exits predict well. Where a norm follows the sublayer (gemma2, gemma3) the norm's
    weights are scaled instead, since it would undo the factor.
    Block numbers are those before dropping. qtype: F32, F16, Q8_0 or Q4_0, for matrices only.
    vocab: "spm" (any UTF-8 text tokenizes, multi-byte characters are split), "reversed" (the same
    model with the same tokens under other ids, and without a space before every text) or "none"
    (token ids only). Greedy text does not reach the end-of-text token by itself.
    n_ctx_short: for phi3, the largest context in which K is rotated by the factors for short texts.
    Raises ValueError for arguments out of range, OSError when the file cannot be written.
    """
    _check_arguments(arch, n_layer, n_embd, qtype, vocab, zero_attn, zero_ffn, drop_blocks)
    spec, path = ARCHS[arch], Path(path)
    edits = Edits(
        frozenset(zero_attn),
        frozenset(zero_ffn),
        late_scale,
        n_layer // 2 if late_from is None else late_from,
    )
    kept = [block for block in range(n_layer) if block not in drop_blocks]
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, arch)
        # No architecture in the name: llama.cpp expects certain tokens of a model named phi3.
        writer.add_name("tiny random model")
        writer.add_file_type(FILE_TYPES[qtype])
        _add_hparams(writer, spec, kept, n_embd, n_ctx)
        _add_vocab(writer, vocab)
        if n_ctx_short is not None:
            writer.add_rope_scaling_orig_ctx_len(n_ctx_short)
            for name, last in (("long", 8.0), ("short", 1.0)):
                factors = np.linspace(1, last, HEAD_DIM // 2, dtype=np.float32)
                writer.add_tensor(f"rope_factors_{name}.weight", factors)
        for tensor in model_tensors(spec, n_layer, n_embd, N_VOCAB_MIN):
            block = block_of(tensor.name)
            if block is not None and block not in kept:
                continue
            weights = _weights(tensor, seed, spec) * np.float32(_factor(tensor.name, spec, edits))
            if vocab == "reversed" and tensor.shape[0] == N_VOCAB_MIN:
                weights = weights[reversed_ids()]
            ggml_type = _type(tensor, qtype)
            data = quantize(weights, ggml_type)
            writer.add_tensor(_renumbered(tensor.name, kept), data, raw_dtype=ggml_type)
        finish(writer)
    return path


def finish(writer: GGUFWriter) -> None:
    """Write all that was added."""
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _renumbered(name: str, kept: list[int]) -> str:
    block = block_of(name)
    if block is None:
        return name
    return f"blk.{kept.index(block)}.{name.split('.', 2)[2]}"


def _check_arguments(
    arch: str, n_layer: int, n_embd: int, qtype: str, vocab: str, *blocks: Collection[int]
) -> None:
    for what, value, allowed in (
        ("architecture", arch, tuple(ARCHS)),
        ("type", qtype, tuple(FILE_TYPES)),
        ("vocabulary", vocab, VOCABULARIES),
    ):
        if value not in allowed:
            raise ValueError(f"unknown {what} {value!r}: choose from {', '.join(allowed)}")
    if n_embd <= 0 or n_embd % (2 * HEAD_DIM):
        raise ValueError(f"n_embd is {n_embd}: it must be a multiple of {2 * HEAD_DIM}")
    if not 1 <= n_layer <= 512:
        raise ValueError(f"n_layer is {n_layer}: it must be 1 to 512")
    outside = sorted(b for group in blocks for b in group if not 0 <= b < n_layer)
    if outside:
        raise ValueError(f"block {outside[0]}: the model has blocks 0 to {n_layer - 1}")
    if len(set(blocks[-1])) == n_layer:
        raise ValueError("all blocks dropped: keep at least one")


# --- command line ----------------------------------------------------------------------------

_DEFAULTS = write.__kwdefaults__ or {}


def _block_list(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise click.BadParameter(f"{text!r}: give block numbers such as 1,3") from None


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("arch", type=click.Choice(ARCHITECTURES))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--blocks", "n_layer", default=_DEFAULTS["n_layer"])
@click.option("--embd", "n_embd", default=_DEFAULTS["n_embd"])
@click.option("--seed", default=_DEFAULTS["seed"])
@click.option("--type", "qtype", type=click.Choice(list(FILE_TYPES)), default=_DEFAULTS["qtype"])
@click.option("--vocab", type=click.Choice(VOCABULARIES), default=_DEFAULTS["vocab"])
@click.option("--ctx", "n_ctx", default=_DEFAULTS["n_ctx"], help="Context length, tokens.")
@click.option("--zero-attn", default="", callback=_block_list, help="Blocks, such as 1,3.")
@click.option("--zero-ffn", default="", callback=_block_list, help="Blocks, such as 1,3.")
@click.option("--drop", "drop_blocks", default="", callback=_block_list, help="Blocks left out.")
@click.option("--late-scale", default=_DEFAULTS["late_scale"], help="Factor on late blocks.")
@click.option("--late-from", type=int, help="First late block.  [default: the second half]")
def main(arch: str, out: Path, **options: object) -> None:
    """Write a tiny random-weight model of architecture ARCH to OUT."""
    try:
        write(out, arch, **options)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out}: {out.stat().st_size} bytes", err=True)


if __name__ == "__main__":
    main()
