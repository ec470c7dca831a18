"""Arguments and output of the commands that write a model."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import click
import cloup
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from ...convert.stream import Copy
from ...gguf.file import check
from ...util.sizes import size_text
from .._model import complete_model
from .._options import json_option
from .._progress import progress
from .._types import FILE, together

out_argument = cloup.argument("out", type=FILE, help="GGUF file to write; replaced if it exists.")


# For commands that write a changed copy.
copy_arguments = together(
    cloup.argument(
        "name",
        metavar="IN",
        shell_complete=complete_model,
        help="GGUF file, or a name that pyselfspec models list shows.",
    ),
    out_argument,
    json_option,
)


def write(copy: Copy, out: Path, as_json: bool) -> None:
    """Write a copy to ``out`` with a progress bar, then describe it."""
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with progress(*columns) as bar, closing(copy.write_steps(out)) as steps:
        task = bar.add_task("writing", total=copy.n_bytes)
        for n_bytes in steps:
            bar.advance(task, n_bytes)
    show_written(out, as_json)


def show_written(out: Path, as_json: bool) -> None:
    """Print a description of a written model; its tensor types show llama.cpp's substitutes."""
    file = check(out)
    types = dict(Counter(tensor.type for tensor in file.tensors).most_common())
    if as_json:
        names = ("architecture", "n_layer", "n_embd", "n_params", "file_type")
        facts = {"model": str(file.path)} | {name: getattr(file, name) for name in names}
        click.echo(json.dumps(facts | {"tensor_types": types, "n_bytes": file.n_bytes}))
        return
    click.echo(
        f"{file.path}: {file.architecture}, {file.n_layer} blocks of width {file.n_embd}, "
        f"{file.n_params / 1e6:.1f} M parameters, {file.file_type}, {size_text(file.n_bytes)}; "
        f"tensors: {', '.join(f'{n} {name}' for name, n in types.items())}"
    )
