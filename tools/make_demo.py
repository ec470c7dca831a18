"""Turns a trained F16 model into the bundled demo: Q8_0, with the mask to draft with in its
metadata.

    python tools/make_demo.py TRAINED.gguf --exit 3

Embeddings, attention and feed-forward matrices become Q8_0; norms stay F32. The result is the same
on every machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants

from pyselfspec.model import MASK_KEY
from pyselfspec.models import DEMO
from pyselfspec.types import LayerMask

Q8_0 = GGMLQuantizationType.Q8_0


def copy_metadata(reader: GGUFReader, writer: GGUFWriter, replaced: set[str]) -> None:
    """Every key of the source but those that are written anew."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in replaced:
            continue
        kind = field.types[0]
        item = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=item)


def write(reader: GGUFReader, out: Path, mask: LayerMask, name: str) -> None:
    writer = GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    new = {
        "general.name": name,
        "general.license": "MIT",
        MASK_KEY: mask.to_json(),
    }
    copy_metadata(reader, writer, {"general.architecture", "general.file_type", *new})
    for key, value in new.items():
        writer.add_string(key, value)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    for tensor in reader.tensors:
        data = quants.dequantize(tensor.data, tensor.tensor_type)
        if data.ndim == 1:
            writer.add_tensor(tensor.name, data.astype(np.float32))
        else:
            writer.add_tensor(tensor.name, quants.quantize(data, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@click.command(help=__doc__)
@click.argument("trained", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--exit", "keep", type=int, required=True, help="Blocks that run in a draft.")
@click.option("--name", default="pyselfspec demo", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=DEMO, help="[default: the package's]"
)
def main(trained: Path, keep: int, name: str, out: Path) -> None:
    reader = GGUFReader(trained)
    n_layer = int(reader.fields["llama.block_count"].contents())
    part = out.with_suffix(".part")
    try:
        write(reader, part, LayerMask.early_exit(n_layer, keep), name)
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
    click.echo(
        f"{out.name}: {out.stat().st_size / 1e6:.1f} MB, drafts leave after {keep} of {n_layer}"
    )


if __name__ == "__main__":
    main()
