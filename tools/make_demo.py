"""Turns a trained F16 model into the bundled demo: Q8_0, with the mask to draft with in its
metadata.

    python tools/make_demo.py TRAINED.gguf --exit 3

Embeddings, attention and feed-forward matrices become Q8_0; norms stay F32. The result is the same
on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from gguf import GGMLQuantizationType, GGUFValueType, LlamaFileType, quants
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

from pyselfspec.errors import SelfSpecError
from pyselfspec.model import MASK_KEY
from pyselfspec.models import DEMO
from pyselfspec.surgery.stream import Copy, Source, StoredTensor, Tensor, read_model
from pyselfspec.types import LayerMask

Q8_0 = GGMLQuantizationType.Q8_0
QUANTIZATION_VERSION = 2


def quantized(source: Source, mask: LayerMask, name: str) -> Copy:
    new = {
        "general.name": GGUFValue(name, GGUFValueType.STRING),
        "general.license": GGUFValue("MIT", GGUFValueType.STRING),
        MASK_KEY: GGUFValue(mask.to_json(), GGUFValueType.STRING),
        "general.file_type": GGUFValue(int(LlamaFileType.MOSTLY_Q8_0), GGUFValueType.UINT32),
        "general.quantization_version": GGUFValue(QUANTIZATION_VERSION, GGUFValueType.UINT32),
    }
    tensors = tuple(
        Tensor(t.name, Q8_0, t.shape, _quantized(t)) if len(t.shape) > 1 else t.copy()
        for t in source.tensors
    )
    return Copy(source, source.metadata | new, tensors)


def _quantized(tensor: StoredTensor) -> Iterator[NDArray[Any]]:
    yield quants.quantize(quants.dequantize(tensor.rows, tensor.type), Q8_0)


@click.command(help=__doc__)
@click.argument("trained", type=click.Path(path_type=Path))
@click.option("--exit", "keep", type=int, required=True, help="Blocks that run in a draft.")
@click.option("--name", default="pyselfspec demo", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=DEMO, help="[default: the package's]"
)
def main(trained: Path, keep: int, name: str, out: Path) -> None:
    try:
        source = read_model(trained)
        mask = LayerMask.early_exit(source.file.n_layer, keep)
        quantized(source, mask, name).write(out)
    except SelfSpecError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{out.name}: {out.stat().st_size / 1e6:.1f} MB, "
        f"drafts leave after {keep} of {mask.n_layer}"
    )


if __name__ == "__main__":
    main()
