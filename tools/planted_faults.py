"""Plants faults in a copy of the committed code, one at a time, and runs tests that must fail.

    python tools/planted_faults.py            # all
    python tools/planted_faults.py stale-cell # one

The tests are files of the short run, without those marked slow or nightly. They pass without a
fault, or nothing is said. Every fault is one that changes the text, or K/V, and that no type
checker sees. Exits with 1 if a fault is not found. A fault in C++ compiles a part of the library.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tools.sanitize import Kind, environment_with  # noqa: E402

PLAIN = Kind("", (), {}, b"", ())  # built without a sanitizer
PASSED = 0  # exit status of pytest
FAILED = re.compile(r"^\d+ failed", re.MULTILINE)  # its status says 1 or, with -n, 2
TIMEOUT = 600


@dataclass(frozen=True)
class Fault:
    """file: below pyselfspec/. old: text that occurs there once. new: what takes its place. tests:
    files below tests/, or what else pytest takes."""

    file: str
    old: str
    new: str
    tests: str


FAULTS = {
    "last-bit-of-a-product": Fault(
        "native/kernels/blocks.cpp",
        "load(step.start) : zero_i(), p.w, step);\n"
        "            sums[t] = fma(to_float(total), mul(p.scale, load_f(step.scales)), sums[t]);",
        "load(step.start) : zero_i(), p.w, step);\n"
        "            sums[t] = T == 3 ?\n"
        "                fma(mul(to_float(total), p.scale), load_f(step.scales), sums[t]) :\n"
        "                fma(to_float(total), mul(p.scale, load_f(step.scales)), sums[t]);",
        "native/test_widths.py",
    ),
    "stolen-twice": Fault(
        "native/kernels/chunks.h",
        "end - 1 - Taken::end(before)",
        "end - 1",
        "native/test_kernels.py",
    ),
    "mask-off-by-one": Fault(
        "native/graph/hooks.cpp",
        "ss->pass.skips(il, part)",
        "ss->pass.skips(il + 1, part)",
        "native/test_masks.py",
    ),
    "graph-of-another-mask": Fault(
        "native/graph/slots.cpp", " && pass == other", "", "native/test_masks.py"
    ),
    "cells-out-of-order": Fault(
        "native/kv/placement.cpp",
        "found.disordered = true;",
        "found.crowded = true;",
        "serve/test_cells.py native/test_branches.py",
    ),
    "rejected-cell-kept": Fault(
        "speculate/generation.py",
        "self._rollback(len(self.history) - 1)",
        "self._rollback(len(self.history))",
        "fake/test_loop.py",
    ),
    "fork-keeps-old-cells": Fault(
        "runtime/kv.py",
        "            other.drop()\n            calls.fork(",
        "            calls.fork(",
        "native/test_kv.py",
    ),
    "rollback-over-a-pass": Fault(
        "native/states/rollback.cpp",
        "n <= std::min(limit(), found.n_rows - 1)",
        "n <= limit()",
        "native/test_rollback.py",
    ),
    "checkpoints-outlive-their-tokens": Fault(
        "runtime/checkpoints.py",
        "if key[0] == seq_id and key[1] > n]",
        "if key[0] == seq_id and key[1] > n + 1]",
        "pure/test_checkpoints.py",
    ),
    "sampler-fed-twice": Fault(
        "speculate/generation.py",
        "            return result.draw(self._sampler, row)\n        p =",
        "            token = result.draw(self._sampler, row)\n"
        "            self._sampler.accept(token)\n            return token\n        p =",
        "native/test_lossless.py",
    ),
    "draft-accepted-unread": Fault(
        "speculate/verify.py",
        "        child = draft.child(node, token)\n        if child is None:",
        "        child = draft.child(node, token)\n"
        "        if child is None and node == 2 and len(draft.tokens) > 3:\n"
        "            child = 3\n        if child is None:",
        "pure/test_verify.py",
    ),
    "prefix-one-too-long": Fault(
        "runtime/kv.py",
        "return n_common(self._tokens, tokens)",
        "return min(n_common(self._tokens, tokens) + 1, len(self._tokens))",
        "native/test_conversation.py",
    ),
    "adapters-forgotten": Fault(
        "speculate/generation.py",
        "None if adapters is None or adapters == own else adapters",
        "None",
        "native/test_lora.py",
    ),
}


class Copy:
    """A copy of what is committed, built into a Python of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self._python = folder / "python"
        self._log = folder / "tests.log"
        archive = folder / "archive.tar"
        subprocess.run(["git", "archive", "-o", archive, "HEAD"], cwd=ROOT, check=True)
        shutil.unpack_archive(archive, self.root)
        if (cache := ROOT / "vendor" / "cache").exists():  # the sources that were downloaded
            shutil.copytree(cache, self.root / "vendor" / "cache", dirs_exist_ok=True)

    def tested(self, fault: Fault) -> int:
        """Build, run a fault's tests, and return pytest's exit status."""
        shutil.rmtree(self._python, ignore_errors=True)
        python = environment_with(self._python, PLAIN, self.root)
        options = ["-q", "-x", "-n", "auto", "-p", "no:cacheprovider"]
        options += ["-m", "not slow and not nightly"]
        tests = [str(self.root / "tests" / test) for test in fault.tests.split()]
        words = [str(python), "-P", "-m", "pytest", *options, *tests]
        with self._log.open("w") as log:
            run = subprocess.run(
                words, cwd=self.root, stdout=log, stderr=subprocess.STDOUT, timeout=TIMEOUT
            )
        return run.returncode

    def log(self) -> str:
        """Return what the last tests said."""
        return self._log.read_text()

    def found(self, fault: Fault) -> bool:
        """Return whether the tests fail with the fault, which is taken back."""
        path = self.root / "pyselfspec" / fault.file
        before = path.read_text()
        if before.count(fault.old) != 1:
            raise click.ClickException(f"{fault.file} has not one place to plant {fault.old!r}")
        path.write_text(before.replace(fault.old, fault.new))
        try:
            return self.tested(fault) != PASSED and bool(FAILED.search(self.log()))
        finally:
            path.write_text(before)


@click.command(help=__doc__)
@click.argument("names", type=click.Choice(list(FAULTS)), nargs=-1)
def main(names: tuple[str, ...]) -> None:
    chosen = {name: FAULTS[name] for name in names or FAULTS}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        every = Fault("", "", "", " ".join(sorted({fault.tests for fault in chosen.values()})))
        if copy.tested(every) != PASSED:
            raise click.ClickException(f"tests fail without a fault:\n{copy.log()[-2000:]}")
        for name, fault in chosen.items():
            start = time.monotonic()
            found = copy.found(fault)
            missed += [] if found else [name]
            said = "found" if found else "NOT FOUND"
            click.echo(f"{name}: {said} by {fault.tests} ({time.monotonic() - start:.0f} s)")
    click.echo(f"{len(chosen) - len(missed)} of {len(chosen)} faults found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
