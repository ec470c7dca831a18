"""What the commands that write a model share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from ..convert.stream import Copy, Source, read_model
from ..gguf.file import GgufFile, check
from ..hub import model_path
from ..util.sizes import size_text
from ._completion import complete_model
from ._options import bar_console

F = TypeVar("F", bound=Callable[..., Any])


def copy_arguments(command: F) -> F:
    """IN, OUT and --json."""
    json_flag = cloup.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    out = click.argument("out", type=click.Path(path_type=Path))
    name = click.argument("name", metavar="IN", shell_complete=complete_model)
    return name(out(json_flag(command)))


def read(name: str) -> Source:
    """The model at a path or of a name."""
    return read_model(model_path(name))


def write(copy: Copy, out: Path, as_json: bool) -> None:
    """Write with a progress bar, then say what was written."""
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
    """Say what a written model is."""
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
    """The types of tensors show where llama.cpp took a substitute."""
    types = ", ".join(f"{n} {name}" for name, n in facts["tensor_types"].items())
    return (
        f"{facts['model']}: {facts['architecture']}, {facts['n_layer']} blocks of width "
        f"{facts['n_embd']}, {facts['n_params'] / 1e6:.1f} M parameters, {facts['file_type']}, "
        f"{size_text(facts['n_bytes'])}; tensors: {types}"
    )
