"""Random-weight models for benchmarks of speed and memory: llama of any size, hybrids, mixtures.

Tensors are made and written one at a time. Nothing is quantized: quantized tensors are random
but valid blocks, written as raw bytes, with one scale per tensor that gives the weights the
spread of a trained model. Kernels see realistic data; the text means nothing.

Architectures with recurrent states are those of hybrids.py, whose greedy text repeats, and those
with experts those of mixtures.py, all in published sizes.
"""

from __future__ import annotations

import errno
import math
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
from gguf import GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quant_shape_to_byte_shape
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tools.models.hybrids import HYBRIDS, N_VOCAB, TINY, Layout, previous_ids
from tools.models.mixtures import MIXTURES
from tools.models.random_blocks import IN_TABLES, Type, random_rows
from tools.models.tiny_archs import NORM_EPS, Tensor, block_of
from tools.models.tiny_gguf import CONTROL_TOKEN_GAIN, SUBLAYER_GAIN, replacing, tensor_rng
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN, add_spm_vocab

ROW_UNIT = 256  # K-quant blocks: every row length is a multiple of it
FFN_RATIO = 8 / 3  # feed-forward width over model width that the shape search aims at
MAX_EMBD = 32768
N_PARAMS, N_BLOCKS = "0.85B", 16  # of a llama model
SUBLAYER_OUTPUTS = r"attn_output|ffn_down|ssm_out|shortconv\.out_proj"
PUBLISHED = HYBRIDS | MIXTURES

MODEL_TYPES = {
    "F32": (Type.F32, LlamaFileType.ALL_F32),
    "F16": (Type.F16, LlamaFileType.MOSTLY_F16),
    "BF16": (Type.BF16, LlamaFileType.MOSTLY_BF16),
    "Q8_0": (Type.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (Type.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "Q4_K": (Type.Q4_K, LlamaFileType.MOSTLY_Q4_K_S),
    "Q5_K": (Type.Q5_K, LlamaFileType.MOSTLY_Q5_K_S),
    "Q6_K": (Type.Q6_K, LlamaFileType.MOSTLY_Q6_K),
    "Q4_K_M": (Type.Q4_K, LlamaFileType.MOSTLY_Q4_K_M),
    "MXFP4_MOE": (Type.Q8_0, LlamaFileType.MOSTLY_MXFP4_MOE),
    **{t.name: (t, LlamaFileType[f"MOSTLY_{t.name}"]) for t in IN_TABLES},
}


@dataclass(frozen=True, kw_only=True)
class Shape(Layout):
    """Sizes of a llama model."""

    arch: ClassVar[str] = "llama"

    n_ff: int

    @property
    def head_dim(self) -> int:
        return 128 if self.n_embd % 512 == 0 and self.n_embd >= 2048 else 64

    @property
    def n_head(self) -> int:
        return self.n_embd // self.head_dim

    @property
    def n_head_kv(self) -> int:
        return self.n_head // 4

    def block(self, index: int) -> list[Tensor]:
        n_embd, n_ff, n_kv = self.n_embd, self.n_ff, self.n_head_kv * self.head_dim
        sizes = {
            "attn_norm": (n_embd,),
            "attn_q": (n_embd, n_embd),
            "attn_k": (n_kv, n_embd),
            "attn_v": (n_kv, n_embd),
            "attn_output": (n_embd, n_embd),
            "ffn_norm": (n_embd,),
            "ffn_gate": (n_ff, n_embd),
            "ffn_up": (n_ff, n_embd),
            "ffn_down": (n_embd, n_ff),
        }
        return [Tensor(f"{name}.weight", size, len(size) == 1) for name, size in sizes.items()]

    def add_header(self, writer: GGUFWriter) -> None:
        super().add_header(writer)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_head_count(self.n_head)
        writer.add_head_count_kv(self.n_head_kv)
        writer.add_rope_dimension_count(self.head_dim)
        writer.add_layer_norm_rms_eps(NORM_EPS)


def find_shape(n_params: int, n_layer: int, n_vocab: int) -> Shape:
    """The shape nearest to n_params, with a feed-forward width of about 8/3 of the model's.

    Raises ValueError when no shape comes within a quarter of n_params.
    """
    shapes = []
    for n_embd in range(ROW_UNIT, MAX_EMBD + 1, ROW_UNIT):
        unit = Shape(n_layer=n_layer, n_embd=n_embd, n_ff=ROW_UNIT, n_vocab=n_vocab)
        per_unit = 3 * n_layer * n_embd * ROW_UNIT
        n_unit = 1 + round((n_params - _n_params(unit)) / per_unit)
        if n_unit >= 1:
            shapes.append(replace(unit, n_ff=n_unit * ROW_UNIT))
    near = [s for s in shapes if abs(_n_params(s) - n_params) <= n_params / 4]
    if not near:
        raise ValueError(
            f"no model of {n_params} parameters has {n_layer} blocks and {n_vocab} tokens: "
            "change --params, --blocks or --vocab"
        )
    return min(near, key=lambda s: abs(math.log(s.n_ff / s.n_embd / FFN_RATIO)))


def _n_params(shape: Shape) -> int:
    """Matrices only, in closed form, for the search."""
    n_kv = shape.n_head_kv * shape.head_dim
    block = 2 * shape.n_embd**2 + 2 * shape.n_embd * n_kv + 3 * shape.n_embd * shape.n_ff
    return shape.n_layer * block + 2 * shape.n_vocab * shape.n_embd


# --- one model -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the bytes of the file."""

    shape: Layout
    type_name: str
    seed: int
    late_scale: float
    late_from: int

    def tensor_type(self, tensor: Tensor) -> Type:
        """The type of a tensor. Q4_K_M mixes types by llama.cpp's rule, with Q8_0 for rows that are
        no whole blocks; MXFP4_MOE has MXFP4 experts."""
        if tensor.keep_f32:
            return Type.F32
        if self.type_name == "MXFP4_MOE" and "_exps." in tensor.name:
            return Type.MXFP4
        if MODEL_TYPES[self.type_name][0].name.endswith("_K") and tensor.shape[-1] % ROW_UNIT:
            return Type.Q8_0
        if self.type_name == "Q4_K_M":
            block = block_of(tensor.name)
            if tensor.name == "output.weight" and not self.shape.loops:
                return Type.Q6_K
            if block is not None and re.search(r"\.(attn_v|ffn_down|ffn_down_exps)\.", tensor.name):
                if _more_bits(block, self.shape.n_layer):
                    return Type.Q6_K
        return MODEL_TYPES[self.type_name][0]

    def n_bytes(self, tensor: Tensor) -> int:
        block_size, block_bytes = GGML_QUANT_SIZES[self.tensor_type(tensor)]
        return int(np.prod(tensor.shape)) // block_size * block_bytes

    def std(self, name: str) -> float:
        """Standard deviation times sqrt(inputs); 1 keeps the size of what flows through."""
        if not re.search(SUBLAYER_OUTPUTS, name):
            return 1.0
        return SUBLAYER_GAIN * (self.late_scale if (block_of(name) or 0) >= self.late_from else 1.0)

    def data(self, tensor: Tensor) -> NDArray[Any]:
        if tensor.name == "output.weight" and self.shape.loops:
            embeddings = self.data(replace(tensor, name="token_embd.weight"))
            return embeddings[previous_ids(self.shape.n_vocab)]
        rng = tensor_rng(self.seed, tensor.name)
        if tensor.keep_f32:
            return self.shape.small_weights(tensor, rng)
        n_rows, n_in = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        ggml_type = self.tensor_type(tensor)
        fan_in = 1 if tensor.name == "token_embd.weight" else n_in
        std = self.std(tensor.name) / math.sqrt(fan_in)
        rows = random_rows(n_rows, n_in, ggml_type, std, rng)
        if fan_in == 1 or tensor.name == "output.weight":  # greedy text does not end by itself
            few = std * CONTROL_TOKEN_GAIN
            rows[:N_CONTROL] = random_rows(N_CONTROL, n_in, ggml_type, few, rng)
        return rows.reshape(*tensor.shape[:-1], -1)


def _more_bits(block: int, n_layer: int) -> bool:
    """llama.cpp's choice of blocks that a mixed type gives more bits to."""
    eighth = n_layer // 8
    return block < eighth or block >= 7 * n_layer // 8 or (block - eighth) % 3 == 2


def write(path: Path, recipe: Recipe, n_ctx: int, progress: Callable[[int], None]) -> None:
    """Write the model; `progress` is called with the bytes of each tensor written.

    Raises OSError when the disk is full; nothing stays under `path` then.
    """
    needed = sum(recipe.n_bytes(tensor) for tensor in recipe.shape.tensors())
    free = shutil.disk_usage(path.absolute().parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"the model needs {needed} bytes, but only {free} are free")
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, recipe.shape.arch)
        try:
            _write_header(writer, recipe, n_ctx)
            for tensor in recipe.shape.tensors():
                writer.write_tensor_data(recipe.data(tensor))
                progress(recipe.n_bytes(tensor))
        finally:
            writer.close()


def write_tiny(
    path: Path, arch: str, *, gain: float = 1.0, seed: int = 0, n_ctx: int = 512
) -> Path:
    """Write a float model of four blocks with recurrent states, and return its path.

    gain: factor on what the sublayers add; with a larger one, states decide the text.
    """
    recipe = Recipe(TINY[arch], "F32", seed, late_scale=gain, late_from=0)
    write(path, recipe, n_ctx, lambda _n_bytes: None)
    return path


def _write_header(writer: GGUFWriter, recipe: Recipe, n_ctx: int) -> None:
    writer.add_name("random model")
    writer.add_file_type(MODEL_TYPES[recipe.type_name][1])
    writer.add_context_length(n_ctx)
    recipe.shape.add_header(writer)
    add_spm_vocab(writer, recipe.shape.n_vocab)
    for tensor in recipe.shape.tensors():
        ggml_type = recipe.tensor_type(tensor)
        size = quant_shape_to_byte_shape(tensor.shape, ggml_type)
        raw = ggml_type not in (Type.F32, Type.F16)
        dtype = np.dtype(np.uint8 if raw else np.float32)
        writer.add_tensor_info(
            tensor.name, size if raw else tensor.shape, dtype, recipe.n_bytes(tensor), ggml_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


# --- command line ----------------------------------------------------------------------------


def parse_count(text: str) -> int:
    """Parameters such as 850000000, 850M or 0.85B. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.strip().upper())
    if not match:
        raise ValueError(f"{text!r}: give a count such as 850M or 0.85B")
    return round(float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}[match[2]])


def _layout(arch: str, params: str | None, blocks: int | None, n_vocab: int) -> Layout:
    """The sizes that the options ask for. Raises ValueError."""
    if arch == Shape.arch:
        return find_shape(parse_count(params or N_PARAMS), blocks or N_BLOCKS, n_vocab)
    if params is not None:
        raise ValueError(f"--params does not apply to {arch}: give --blocks")
    published = PUBLISHED[arch]
    layout = replace(published, n_vocab=n_vocab, n_layer=blocks or published.n_layer)
    if published.has_attention and not layout.has_attention:  # llama.cpp would end the process
        raise ValueError(f"the first {blocks} blocks of {arch} have no attention: give more")
    return layout


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--arch", type=click.Choice([Shape.arch, *PUBLISHED]), default=Shape.arch, show_choices=True
)
@click.option("--params", help=f"About how many parameters; llama only.  [default: {N_PARAMS}]")
@click.option(
    "--blocks",
    type=click.IntRange(1, 512),
    help=f"Blocks.  [default: {N_BLOCKS} for llama, the published number for the others]",
)
@click.option("--type", "type_name", type=click.Choice(list(MODEL_TYPES)), default="Q4_0")
@click.option("--vocab", "n_vocab", type=click.IntRange(N_VOCAB_MIN), default=N_VOCAB)
@click.option("--ctx", "n_ctx", type=click.IntRange(1), default=4096, help="Context, tokens.")
@click.option("--seed", default=0)
@click.option("--late-scale", default=1.0, help="Factor on the outputs of late blocks.")
@click.option("--late-from", type=int, help="First late block.  [default: the second half]")
def main(
    out: Path,
    arch: str,
    params: str | None,
    blocks: int | None,
    type_name: str,
    n_vocab: int,
    n_ctx: int,
    seed: int,
    late_scale: float,
    late_from: int | None,
) -> None:
    """Write a random-weight model to OUT.

    A llama model has about the parameters that --params asks for. The other architectures have
    the sizes of small published models; --blocks repeats or cuts their pattern of blocks.
    Quantized types are random valid blocks, not quantized weights. Q4_K_M mixes Q4_K and Q6_K
    as llama.cpp does; MXFP4_MOE has MXFP4 in experts and Q8_0 elsewhere.
    """
    try:
        shape = _layout(arch, params, blocks, n_vocab)
        first_late = shape.n_layer // 2 if late_from is None else late_from
        recipe = Recipe(shape, type_name, seed, late_scale, first_late)
        total = sum(recipe.n_bytes(tensor) for tensor in shape.tensors())
        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        console.quiet = not console.is_terminal  # a bar that is off would end its line all the same
        with Progress(*columns, console=console, disable=console.quiet) as bar:
            task = bar.add_task(out.name, total=total)
            write(out, recipe, n_ctx, lambda n_bytes: bar.advance(task, n_bytes))
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror or error}") from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{out}: {shape.n_params / 1e9:.3g} B parameters, "
        f"{shape.n_layer} blocks of {shape.n_embd}, {out.stat().st_size} bytes",
        err=True,
    )


if __name__ == "__main__":
    main()
