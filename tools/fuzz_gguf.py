"""Breaks GGUF files in all ways and requires one short line for each: no signal, no hang.

    python tools/fuzz_gguf.py [--runs 300] [--seed 1] [MODEL.gguf or FOLDER ...]
    python tools/fuzz_gguf.py --target MODEL.gguf HEAD.gguf ...

Models: the demo and some tiny architectures unless told; those of tools/archs.py are others. Files
go through ``info`` and four tokens of ``generate``, draft heads through ``generate`` with their
model, each file in a fork of one process that has loaded the library. A copy of each model is
broken and put right again, so large ones do, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyselfspec.util.closable import Closing
from pyselfspec.util.paths import DEMO
from tools.gguf_breakage import breakage, tensors, tokenizer_of
from tools.models import hybrids, random_gguf, tiny_archs, tiny_gguf

CPU_SECONDS = 60  # for one file
SECONDS = 10 * CPU_SECONDS  # on a busy machine
MEMORY = 8 << 30  # bytes that a broken file may make the program ask for
MAX_LINE = 500  # characters of a message, the file's name aside
ALIGNMENT = 32  # of tensors
NO_TOKENIZER = (b"none", b"no_vocab")

# Runs in a process of its own: commands for a file per line in, as JSON; per line out what one came
# to, and how the fork ended.
WORKER = f"""
import json, os, resource, signal, sys
from click.testing import CliRunner
from pyselfspec.cli import main
import pyselfspec.runtime.model
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        signal.alarm({SECONDS})
        resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
        resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
        for args in json.loads(line):
            done = CliRunner().invoke(main, args)
            crash = None if isinstance(done.exception, SystemExit) else done.exception
            outcome = [args[0], done.exit_code, done.stderr, crash and repr(crash)]
            print(json.dumps(outcome), flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, help="files, or folders of them")
    parser.add_argument("--runs", type=int, default=300, help="files in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=Path, help="the files are draft heads for this model")
    parser.add_argument("--keep", type=Path, help="folder for files that were not refused well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models = files_of(options.models) or [DEMO, *tiny_models(folder)]
        n_faults = 0
        statuses: Counter[str] = Counter()
        for i, model in enumerate(models):
            n_runs = (options.runs + i) // len(models)
            found, ends = fuzz(model, n_runs, options.seed, folder, options.keep, options.target)
            statuses += ends
            n_faults += len(found)
    ends_of_all = ", ".join(f"{end}: {n}" for end, n in sorted(statuses.items()))
    print(f"{options.runs} broken files of {len(models)} models; {ends_of_all}; {n_faults} faults")
    return bool(n_faults)


def files_of(paths: list[Path]) -> list[Path]:
    return [
        file
        for path in paths
        for file in (sorted(path.glob("*.gguf")) if path.is_dir() else [path])
    ]


def tiny_models(folder: Path) -> list[Path]:
    archs = tiny_archs.ARCHITECTURES
    made = [tiny_gguf.write(folder / f"tiny-{arch}.gguf", arch) for arch in archs]
    return made + [random_gguf.write_tiny(folder / f"{arch}.gguf", arch) for arch in hybrids.TINY]


def fuzz(
    model: Path,
    n_runs: int,
    seed: int,
    folder: Path,
    keep: Path | None = None,
    target: Path | None = None,
) -> tuple[list[str], Counter[str]]:
    """Return the faults, a line for each, printed as well, and how often commands ended with which
    status.

    target: the model that a draft head is for.
    """
    faults: list[str] = []
    ends: Counter[str] = Counter()
    with Copy(model, folder) as copy, Worker(folder) as worker:
        for i in range(n_runs):
            with copy.broken(random.Random(f"{seed} {model.name} {i}")) as path:
                for fault, end in worker.outcomes(path, copy.has_tokenizer, target):
                    ends[end] += 1
                    if not fault:
                        continue
                    faults.append(f"{model.name}, seed {seed}, run {i}: {fault}")
                    print(faults[-1], flush=True)
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(path, keep / f"{seed}-{i}-{model.name}")
    return faults, ends


class Worker(Closing):
    """A process that tries commands on files, in a fork for each file."""

    def __init__(self, folder: Path) -> None:
        self._log: IO[bytes] = (folder / "log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )

    def close(self) -> None:
        self._process.communicate()
        self._log.close()

    def outcomes(
        self, path: Path, has_tokenizer: bool, target: Path | None = None
    ) -> Iterator[tuple[str, str]]:
        """For each command that a file goes through: what is wrong or "", and how it ended."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None
        prompt = ["-p", "Once upon a time"] if has_tokenizer else ["--prompt-tokens", "1,2,3,4"]
        generate = "-t 1 -n 4 --temp 0 -c 256".split()
        commands = [
            ["models", "info", str(path), "-t", "1"],
            ["generate", str(path), *generate, *prompt],
        ]
        if target is not None:
            drafting = ["--draft", f"head:{path}", "--draft-max", "3"]
            commands[1:] = [["generate", str(target), *generate, *prompt, *drafting]]
        self._log.seek(0)
        self._log.truncate()
        print(json.dumps(commands), file=to, flush=True)
        for line in iter(back.readline, ""):
            answer = json.loads(line)
            if isinstance(answer, list):
                command, status, message, crash = answer
                yield fault_of(str(path), command, status, message, crash), f"{command} {status}"
            elif answer == 0:
                return
            else:
                last = (Path(self._log.name)).read_text(errors="replace").strip()[-200:]
                yield f"ended with status {answer}: {last}", f"ended {answer}"
                return
        yield "the process that tries files has ended", "ended"


def fault_of(name: str, command: str, code: int, message: str, crash: str | None) -> str:
    """Return the fault of an outcome, or ""."""
    if crash is not None:
        return f"{command}: {crash[:200]}"
    if code not in (0, 1):
        return f"{command}: exit status {code}"
    errors = [line for line in message.splitlines() if not line.startswith("Warning: ")]
    if code and (len(errors) != 1 or not errors[0].startswith("Error: ")):
        return f"{command}: {len(errors)} lines, {message[:200]!r}"
    if code and len(message) - message.count(name) * len(name) > MAX_LINE:
        return f"{command}: {len(message)} characters, {message[:200]!r}"
    return ""


class Copy(Closing):
    """A copy of a model, broken and put right again."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._path = folder / f"broken-{model.name}"
        shutil.copyfile(model, self._path)
        self._n_bytes = model.stat().st_size
        with model.open("rb") as file:
            start = bytearray(file.read(min(self._n_bytes, 64 << 20)))
        *_, (_first, end) = tensors(start)
        self._head = bytes(start[: end + -end % ALIGNMENT])
        self.has_tokenizer = tokenizer_of(start) not in NO_TOKENIZER

    def close(self) -> None:
        self._path.unlink()

    @contextmanager
    def broken(self, rng: random.Random) -> Iterator[Path]:
        what = breakage(self._head, self._n_bytes, rng)
        with self._path.open("r+b") as file:
            file.write(what.head)
            for offset, data in what.data.items():
                file.seek(offset)
                file.write(data)
            file.truncate(what.n_bytes)
        try:
            yield self._path
        finally:
            with self._model.open("rb") as model, self._path.open("r+b") as file:
                file.write(self._head)
                for offset, data in what.data.items():
                    model.seek(offset)
                    file.seek(offset)
                    file.write(model.read(len(data)))
                model.seek(what.n_bytes)
                file.seek(what.n_bytes)
                shutil.copyfileobj(model, file)


if __name__ == "__main__":
    sys.exit(main())
