"""Turns a trained F16 model into the bundled demo: Q8_0, with the mask to draft with, the recipe
and the texts in its metadata.

    python tools/models/make_demo.py TRAINED.gguf --exit 3

Embeddings, attention and feed-forward matrices become Q8_0; norms stay F32. The result is the same
on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from gguf import GGMLQuantizationType, GGUFValueType, Keys, LlamaFileType, quants
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

from pyselfspec.convert.stream import Copy, Source, StoredTensor, Tensor, read_model
from pyselfspec.errors import SelfSpecError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.runtime.model import MASK_KEY
from pyselfspec.util.paths import DEMO

Q8_0 = GGMLQuantizationType.Q8_0
QUANTIZATION_VERSION = 2
RECIPE = (
    "Llama trained with the LayerSkip recipe (https://arxiv.org/abs/2404.16710): layer dropout, "
    "the loss of one rotating early exit per step, and agreement of that exit with the last block. "
    "Plain text, no chat."
)
TEXTS = {  # name to address; all of it in the public domain in the USA
    "novels and short stories, public domain in the USA": "mlschmitt/classic-books-markdown",
    "fairy tales and children's stories, public domain in the USA": "GITenberg",
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"  # the text itself


def described(mask: LayerMask, name: str) -> dict[str, GGUFValue]:
    """Metadata that the trained model does not have."""
    texts = {
        Keys.General.NAME: name,
        Keys.General.DESCRIPTION: RECIPE,
        Keys.General.LICENSE: "MIT",
        Keys.Tokenizer.CHAT_TEMPLATE: TEMPLATE,
        MASK_KEY: mask.to_json(),
    }
    for i, (content, repository) in enumerate(TEXTS.items()):
        texts[Keys.General.DATASET_NAME.format(id=i)] = content
        texts[Keys.General.DATASET_REPO_URL.format(id=i)] = f"https://github.com/{repository}"
    numbers = {
        Keys.General.DATASET_COUNT: len(TEXTS),
        Keys.General.FILE_TYPE: int(LlamaFileType.MOSTLY_Q8_0),
        Keys.General.QUANTIZATION_VERSION: QUANTIZATION_VERSION,
    }
    made = {key: GGUFValue(value, GGUFValueType.STRING) for key, value in texts.items()}
    return made | {key: GGUFValue(value, GGUFValueType.UINT32) for key, value in numbers.items()}


def quantized(source: Source, mask: LayerMask, name: str) -> Copy:
    tensors = tuple(
        Tensor(t.name, Q8_0, t.shape, _quantized(t)) if len(t.shape) > 1 else t.copy()
        for t in source.tensors
    )
    return Copy(source, source.metadata | described(mask, name), tensors)


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
