"""llama.cpp's own tests, on the tree with our patches and our C++ in the library.

    python tools/upstream_tests.py FOLDER                # build what is missing, run all
    python tools/upstream_tests.py FOLDER --unpatched    # the same, without patches: to compare
    python tools/upstream_tests.py FOLDER batch-alloc thread-safety

The sources are those of the pinned distribution. FOLDER keeps the programs and the toy models of
all architectures (1 GB), which test-llama-archs writes. On the CPU, test-backend-ops compares with
the same backend as a reference: what our kernels take, they leave to llama.cpp there. The tests
that need a model with text get the demo. Counts are the programs' own; the log of each lies beside
it. The status is 1 when a test fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyselfspec.util.paths import DEMO
from tools import upstream

DEMO_TEXT = ["-m", str(DEMO), "-p", "The meaning of life is", "-t", "2"]


@dataclass(frozen=True)
class Test:
    """One program. arguments: {models} stands for the folder of toy models.

    passed, failed: what to look for in its output; a pattern with a group gives the number,
    otherwise its matches are counted. Not in what llama.cpp logs last: a program that ends may lose
    it.
    """

    arguments: tuple[str, ...] = ()
    passed: str = r"\bPASS\b"
    failed: str = r"\bFAIL\b"


TESTS = {
    "backend-ops": Test(
        ("test", "-b", "CPU", "-j", "2"), r"(\d+)/\d+ tests passed", r": .*\bFAIL\b"
    ),
    "batch-alloc": Test(passed=r"assertions *: *(\d+)", failed=r"failures *: *(\d+)"),
    "thread-safety": Test(
        (*DEMO_TEXT, "-n", "64", "-c", "256", "-ub", "32", "-np", "4"),
        r"Creating context \d+/",
        r"failed to",
    ),
    "save-load-state": Test(("--models", "{models}")),
    "llama-archs": Test(passed=r"OK \("),
    "recurrent-state-rollback": Test(("--models", "{models}")),
    "state-restore-fragmented": Test(tuple(DEMO_TEXT), "SUCCESS", "FAILED|failed to"),
    "tiled-mulmat": Test(passed=r": PASS", failed=r": FAIL"),
    "alloc": Test(passed=r"PASSED", failed=r"FAILED"),
}


@dataclass(frozen=True)
class Outcome:
    """n_passed, n_failed: checks, as the program counts them. seconds: wall time."""

    name: str
    n_passed: int
    n_failed: int
    status: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.status == 0 and self.n_passed > 0 and self.n_failed == 0


def count(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return sum(int(each) if each.isdigit() else 1 for each in found)


def run(name: str, programs: Path, models: Path) -> Outcome:
    test = TESTS[name]
    arguments = [argument.format(models=models) for argument in test.arguments]
    start = time.monotonic()
    done = subprocess.run(
        [programs / f"test-{name}", *arguments], capture_output=True, text=True, errors="replace"
    )
    seconds = time.monotonic() - start
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    (programs / f"test-{name}.log").write_text(text)
    n_passed, n_failed = count(test.passed, text), count(test.failed, text)
    return Outcome(name, n_passed, n_failed, done.returncode, seconds)


def prepare(folder: Path, names: Sequence[str], patched: bool) -> Path:
    """The programs, all built unless those of these names are there."""
    programs = folder / ("patched" if patched else "unpatched")
    if not all((programs / f"test-{name}").exists() for name in names):
        upstream.build(programs, [f"test-{name}" for name in TESTS], ["TESTS"], patched=patched)
    return programs


def toy_models(folder: Path, programs: Path) -> Path:
    """One of every architecture, written unless they are there."""
    models = folder / "models"
    if not models.exists():
        models.mkdir(parents=True)
        command = [str(programs / "test-llama-archs"), "-o", str(models)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return models


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, type=click.Choice(list(TESTS)))
@click.option("--unpatched", is_flag=True, help="llama.cpp as it is.")
def main(folder: Path, names: tuple[str, ...], unpatched: bool) -> None:
    folder, names = folder.absolute(), names or tuple(TESTS)
    programs = prepare(folder, names, not unpatched)
    models = toy_models(folder, programs)
    click.echo("| test | passed | failed | status | seconds |\n|---|---:|---:|---:|---:|")
    outcomes = []
    for name in names:
        o = run(name, programs, models)
        outcomes.append(o)
        click.echo(f"| test-{name} | {o.n_passed} | {o.n_failed} | {o.status} | {o.seconds:.0f} |")
    sys.exit(not all(outcome.is_good for outcome in outcomes))


if __name__ == "__main__":
    main()
