"""Makes a mixture of experts out of a llama model: every expert is a copy of the block's own
feed-forward part, so the text is the model's, and passes cost what a mixture's cost.

    python tools/models/upcycle.py smollm2-135m-q4_0.gguf moe.gguf --experts 16 --used 2

The beginning of sparse upcycling (https://arxiv.org/abs/2212.05055). Routers are random, and the
shares of the chosen experts add up to 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import click
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType
from gguf.gguf_writer import GGUFValue

sys.path.append(str(Path(__file__).resolve().parents[2]))

from pyselfspec.convert.stream import Copy, Source, StoredTensor, Tensor, read_model
from pyselfspec.errors import SelfSpecError, UnsupportedError

FEED_FORWARD = re.compile(r"(blk\.(\d+)\.ffn_(gate|up|down))\.weight")


def upcycle(source: Source, n_experts: int, n_used: int) -> Copy:
    """Return the mixture. Raises UnsupportedError for another architecture than llama, and for
    models that have experts already."""
    architecture = source.file.architecture
    counts = {"expert_count": n_experts, "expert_used_count": n_used}
    if architecture != "llama" or source.value("llama.expert_count"):
        raise UnsupportedError(
            f"{source.file.path}: only llama models without experts can become mixtures, this is "
            f"{architecture}" + (" with experts" if architecture == "llama" else "")
        )
    keys = {source.key(name): GGUFValue(n, GGUFValueType.UINT32) for name, n in counts.items()}
    tensors = (new for old in source.tensors for new in _tensors(old, n_experts))
    return Copy(source, source.metadata | keys, tuple(tensors))


def _tensors(old: StoredTensor, n_experts: int) -> Iterator[Tensor]:
    found = FEED_FORWARD.fullmatch(old.name)
    if found is None:
        yield old.copy()
        return
    name, block, part = found.groups()
    copied = replace(old.copy(), pieces=repeat(old.rows, n_experts), name=f"{name}_exps.weight")
    yield replace(copied, shape=(n_experts, *old.shape))
    if part == "gate":
        router = np.random.default_rng(int(block)).standard_normal(
            (n_experts, old.shape[-1]), np.float32
        )
        name = f"blk.{block}.ffn_gate_inp.weight"
        yield Tensor(name, GGMLQuantizationType.F32, router.shape, (router,))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--experts", "n_experts", type=click.IntRange(2, 256), default=16)
@click.option("--used", "n_used", type=click.IntRange(min=1), default=2, help="By each token.")
def main(model: Path, out: Path, n_experts: int, n_used: int) -> None:
    """Write OUT, a mixture whose experts are copies of MODEL's feed-forward parts."""
    if n_used > n_experts:
        raise click.ClickException(f"--used is at most --experts = {n_experts}, got {n_used}")
    try:
        upcycle(read_model(model), n_experts, n_used).write(out)
    except (SelfSpecError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
