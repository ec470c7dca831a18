"""Install the wheel, and have every variant in it write texts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyselfspec.util.paths import DEMO

from . import arm
from .environment import QEMU, Environment, generate, installed, probed
from .targets import Target, arch_option, folder_argument

# emulated processor -> the variant that must be chosen there; None: too old
EMULATED = {
    "core2duo": None,
    "qemu64": None,
    "Nehalem": "sse42",
    "SandyBridge": "sse42",
    "Haswell": "haswell",
}
TYPES = ("f16", "q4_k_m", "q2_k", "q4_0")  # of the demo model, which is q8_0 itself


def models_of(folder: Path) -> list[Path]:
    """The demo model in several types."""
    from pyselfspec.convert.quantize import quantize
    from pyselfspec.convert.stream import read_model
    from tools.models.real import as_f32

    floats = folder / "f32.gguf"
    as_f32(read_model(DEMO)).write(floats)
    for name in TYPES:
        quantize(floats, folder / f"{name}.gguf", name)
    return [*(folder / f"{name}.gguf" for name in TYPES), Path(DEMO)]


def faults(said: Any, variant: str | None) -> list[str]:
    """Return the fault in a result of `texts` on a processor for this variant, None: too old."""
    if isinstance(said, str):
        is_sentence = "status 1: Error: " in said and "which this one lacks" in said
        return [] if variant is None and is_sentence else [said]
    found = [] if said["variant"] == variant else [f"chose {said['variant']}, not {variant}"]
    for name, model in said["models"].items():
        if model["exact_width"]:
            found += [f"{name}: {text} differs" for text in model["wrong"]]
            found += [] if model["same_at_widths"] else [f"{name}: bits depend on the width"]
        found += [] if model["accepted"] else [f"{name}: nothing was drafted"]
    return found


def counts(results: Sequence[Any]) -> str:
    """Say how many texts with drafts were compared, and how many of them differ, by whether the
    promise holds for their model and variant."""
    models = [
        model for said in results if not isinstance(said, str) for model in said["models"].values()
    ]
    words = []
    for kind, chosen in (
        ("promised", [model for model in models if model["exact_width"]]),
        ("not promised", [model for model in models if not model["exact_width"]]),
    ):
        n_texts = sum(model["compared"] for model in chosen)
        n_wrong = sum(len(model["wrong"]) for model in chosen)
        words.append(f"{kind}: {n_texts} texts with drafts, {n_wrong} differ from the plain ones")
    return "; ".join(words)


def line(where: str, said: Any) -> str:
    if isinstance(said, str):
        return f"{where:18} {said}"
    cells = [
        f"{name} {model['digest']} {'exact' if model['exact_width'] else '-'}"
        f"{'' if model['same_at_widths'] else ' (bits differ)'}"
        f"{' (text differs)' if model['wrong'] else ''}"
        for name, model in said["models"].items()
    ]
    return f"{where:18} {said['variant']:12} {'  '.join(cells)}"


@dataclass(frozen=True, slots=True)
class Run:
    """Texts by one processor. expected: the variant that must be chosen there; None: too old."""

    where: str
    environment: Environment
    models: Sequence[Path]
    expected: str | None
    forced: str = ""


@click.command("try")
@folder_argument
@arch_option
@click.option("--emulate", is_flag=True, help="Also older processors, under qemu-user.")
@click.option("--quick", is_flag=True, help="Only the demo model.")
def try_wheel(folder: Path, target: Target, emulate: bool, quick: bool) -> None:
    """Install from FOLDER, and generate texts with every variant."""
    if emulate and not shutil.which(QEMU):
        raise click.ClickException(f"{QEMU} is not installed (Debian: qemu-user)")
    found, results = [], []
    with tempfile.TemporaryDirectory() as temporary:
        models = [Path(DEMO)] if quick else models_of(Path(temporary))
        with runs_of(folder, target, models, emulate) as runs:
            for run in runs:
                said = probed(run.environment, "texts", *run.models, variant=run.forced)
                click.echo(line(run.where, said))
                results.append(said)
                found += [f"{run.where}: {fault}" for fault in faults(said, run.expected)]
    click.echo(counts(results))
    if found:
        raise click.ClickException("\n".join(found))


@contextmanager
def runs_of(folder: Path, target: Target, models: list[Path], emulate: bool) -> Iterator[list[Run]]:
    """Yield the runs of a wheel, once it is installed and has generated a text."""
    if target.arch == "x86_64":
        with installed(folder) as environment:
            generate(environment)
            here = probed(environment, "variants")
            runs = [Run("this processor", environment, models, name, name) for name in here]
            if emulate:
                runs += [
                    Run(f"qemu {cpu}", environment.on(QEMU, cpu), models[-1:], name)
                    for cpu, name in EMULATED.items()
                ]
            yield runs
    else:
        with arm.installed(folder) as environment:
            runs = [
                Run(f"qemu {sets}", environment.on(arm.QEMU, cpu), models, name)
                for cpu, (sets, name) in arm.PROCESSORS.items()
            ]
            # The last processor has all that the older variant needs, too.
            older = next(name for _, name in arm.PROCESSORS.values())
            runs.append(Run(runs[-1].where, runs[-1].environment, models, older, older))
            generate(runs[0].environment, timeout=1200)
            yield runs
