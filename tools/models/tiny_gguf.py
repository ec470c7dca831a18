"""Tiny random-weight GGUF models, written on the spot for tests.

The files load and decode in llama.cpp, but the weights are random: the text means nothing.
Each tensor has its own random stream, seeded by the seed and the tensor's name. So a file with
zeroed sublayers or dropped blocks is bit-identical to the plain one in every other tensor, which
makes it an exact oracle for layer-skip masks. This module knows nothing about running models.
"""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tools.models import tiny_archs
from tools.models.tiny_archs import (
    ARCHITECTURES,
    ARCHS,
    N_EXPERT,
    NORM_EPS,
    SLIDING_WINDOW,
    Arch,
    Tensor,
    block_of,
    expert_width,
    ff_width,
    model_tensors,
    n_head,
    n_head_kv,
)
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN, VOCABULARIES, add_vocab, reversed_ids

ROTARY_DIM_PARTIAL = 16
N_EXPERT_USED = 2
SUBLAYER_GAIN = 0.7  # of attention and feed-forward outputs against a residual stream of O(1)
LOGIT_GAIN = 2.0
CONTROL_TOKEN_GAIN = 0.01

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
}


@dataclass(frozen=True)
class Edits:
    """Differences from the plain random model."""

    zero_attn: frozenset[int]
    zero_ffn: frozenset[int]
    late_scale: float
    late_from: int


# --- weights ---------------------------------------------------------------------------------


def tensor_rng(seed: int, name: str) -> np.random.Generator:
    """The random stream of one tensor: depends on the seed and the name, on nothing else."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


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
    writer.add_feed_forward_length(ff_width(n_embd))
    writer.add_head_count(n_head(n_embd))
    writer.add_head_count_kv(n_head_kv(arch, n_embd))
    writer.add_rope_dimension_count(
        ROTARY_DIM_PARTIAL if arch.partial_rotary else tiny_archs.HEAD_DIM
    )
    if arch.rope_sections:
        writer.add_rope_dimension_sections(arch.rope_sections)
    if arch.n_deepstack:
        writer.add_uint32(f"{writer.arch}.n_deepstack_layers", arch.n_deepstack)
    if not arch.fused_qkv:
        writer.add_key_length(tiny_archs.HEAD_DIM)
        writer.add_value_length(tiny_archs.HEAD_DIM)
    if arch.layer_norm:
        writer.add_layer_norm_eps(NORM_EPS)
    else:
        writer.add_layer_norm_rms_eps(NORM_EPS)
    if arch.ffn == "experts":
        writer.add_expert_count(N_EXPERT)
        writer.add_expert_used_count(N_EXPERT_USED)
        writer.add_expert_feed_forward_length(expert_width(n_embd))
    if arch.shared_expert:
        writer.add_expert_shared_feed_forward_length(ff_width(n_embd))
    if arch.window_period:
        writer.add_sliding_window(SLIDING_WINDOW)
        # Per block, so that dropping blocks keeps the window of those that stay.
        writer.add_sliding_window_pattern([(b + 1) % arch.window_period != 0 for b in kept])
    if writer.arch == "gptneox":
        writer.add_parallel_residual(True)
    if writer.arch == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)


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
        add_vocab(writer, vocab)
        if n_ctx_short is not None:
            writer.add_rope_scaling_orig_ctx_len(n_ctx_short)
            for name, last in (("long", 8.0), ("short", 1.0)):
                factors = np.linspace(1, last, tiny_archs.HEAD_DIM // 2, dtype=np.float32)
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
    if n_embd <= 0 or n_embd % (2 * tiny_archs.HEAD_DIM):
        raise ValueError(f"n_embd is {n_embd}: it must be a multiple of {2 * tiny_archs.HEAD_DIM}")
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
