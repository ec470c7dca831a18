"""The table of memory in the FAQ is what the program computes for models of these sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from pyselfspec.gguf.file import GgufFile
from pyselfspec.runtime.memory import needed_bytes
from tools.models.random_gguf import MODEL_TYPES, Recipe, Shape
from tools.models.tiny_archs import Tensor

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faq.md"
N_HEAD_KV = 8  # of each of these models
TIED = 3072  # widths up to here: the embedding is the output layer, and has its type


@dataclass(frozen=True, kw_only=True)
class Published(Shape):
    """Sizes of a published model, whose text is of no interest here."""

    @property
    def head_dim(self) -> int:
        return 64 if self.n_embd == 2048 else 128

    @property
    def n_head_kv(self) -> int:
        return N_HEAD_KV

    def tensors(self) -> Iterator[Tensor]:
        is_tied = self.n_embd <= TIED
        left_out = "token_embd.weight" if is_tied else None
        return (tensor for tensor in super().tensors() if tensor.name != left_out)


SHAPES = {
    "1.2 B": Published(n_layer=16, n_embd=2048, n_ff=8192, n_vocab=128256),
    "3.2 B": Published(n_layer=28, n_embd=3072, n_ff=8192, n_vocab=128256),
    "8 B": Published(n_layer=32, n_embd=4096, n_ff=14336, n_vocab=128256),
    "14 B": Published(n_layer=48, n_embd=5120, n_ff=13824, n_vocab=152064),
    "32 B": Published(n_layer=64, n_embd=5120, n_ff=27648, n_vocab=152064),
    "70 B": Published(n_layer=80, n_embd=8192, n_ff=28672, n_vocab=128256),
}


def needed(shape: Published, file_type: str, n_ctx: int) -> str:
    """Return the gigabytes of a file of this type with a context of F16, as the program does."""
    assert file_type in MODEL_TYPES
    recipe = Recipe(shape, file_type, seed=0, late_scale=1.0, late_from=0)
    n_values = shape.n_layer * N_HEAD_KV * shape.head_dim
    file = SimpleNamespace(
        n_bytes=sum(map(recipe.n_bytes, shape.tensors())), kv_values=(n_values, n_values)
    )
    file.kv_bytes = lambda *args: GgufFile.kv_bytes(file, *args)  # type: ignore[arg-type]
    return f"{needed_bytes(file, n_ctx, 'f16', 'f16') / 1e9:.1f}"  # type: ignore[arg-type]


def test_the_sizes_are_those_of_the_published_models() -> None:
    for name, shape in SHAPES.items():
        stated = float(name.removesuffix(" B")) * 1e9
        n_params = sum(math.prod(tensor.shape) for tensor in shape.tensors())
        assert 0.97 < n_params / stated < 1.06, name


def test_the_table_of_memory_is_what_the_program_computes() -> None:
    columns = (("Q4_K_M", 0), ("Q4_K_M", 4096), ("Q4_K_M", 32768), ("Q8_0", 4096))
    computed = [
        f"| {name} | {' | '.join(needed(shape, *column) for column in columns)} |"
        for name, shape in SHAPES.items()
    ]
    table = PAGE.read_text(encoding="utf-8").partition("<!-- memory -->")[2]
    assert re.findall(r"^\| [\d.]+ B \|.*$", table, re.MULTILINE) == computed
