"""Arguments and output of the commands that write a model."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import cloup
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from ...convert.stream import Copy, Source, read_model
from ...gguf.file import GgufFile, check
from ...hub import model_path
from ...util.sizes import size_text
from .._options import bar_console, complete_model, json_option
from .._types import FILE, F, together

out_argument = cloup.argument("out", type=FILE, help="GGUF file to write; replaced if it exists.")


def copy_arguments(command: F) -> F:
    """Add the arguments IN and OUT, and --json."""
    return together(
        cloup.argument(
            "name",
            metavar="IN",
            shell_complete=complete_model,
            help="GGUF file, or a name that pyselfspec models list shows.",
        ),
        out_argument,
        json_option,
    )(command)


def read(name: str) -> Source:
    """Read a model, given by path or name."""
    return read_model(model_path(name))


def write(copy: Copy, out: Path, as_json: bool) -> None:
    """Write a copy to ``out`` with a progress bar, then describe it."""
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    console = bar_console()
    with (
        Progress(*columns, console=console, disable=console.quiet) as bar,
        closing(copy.write_steps(out)) as steps,
    ):
        task = bar.add_task("writing", total=copy.n_bytes)
        for n_bytes in steps:
            bar.advance(task, n_bytes)
    show_written(out, as_json)


def show_written(out: Path, as_json: bool) -> None:
    """Print a description of a written model."""
    facts = _facts(check(out))
    click.echo(json.dumps(facts) if as_json else _text(facts))


def _facts(file: GgufFile) -> dict[str, Any]:
    return {
        "model": str(file.path),
        "architecture": file.architecture,
        "n_layer": file.n_layer,
        "n_embd": file.n_embd,
        "n_params": file.n_params,
        "file_type": file.file_type,
        "tensor_types": dict(Counter(tensor.type for tensor in file.tensors).most_common()),
        "n_bytes": file.n_bytes,
    }


def _text(facts: dict[str, Any]) -> str:
    """Return one line that describes a model; its tensor types show llama.cpp's substitutes."""
    types = ", ".join(f"{n} {name}" for name, n in facts["tensor_types"].items())
    return (
        f"{facts['model']}: {facts['architecture']}, {facts['n_layer']} blocks of width "
        f"{facts['n_embd']}, {facts['n_params'] / 1e6:.1f} M parameters, {facts['file_type']}, "
        f"{size_text(facts['n_bytes'])}; tensors: {types}"
    )
