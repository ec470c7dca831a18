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
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyselfspec.util.closable import Closing
from pyselfspec.util.paths import DEMO
from tools.models import hybrids, random_gguf, tiny_archs, tiny_gguf

CPU_SECONDS = 60  # for one file
SECONDS = 10 * CPU_SECONDS  # on a busy machine
MEMORY = 8 << 30  # bytes that a broken file may make the program ask for
MAX_LINE = 500  # characters of a message, the file's name aside
NUMBERS = (0, 1, 2, 3, 7, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of value types
STRING, ARRAY = 8, 9
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


@dataclass
class Breakage:
    """A damaged file.

    head: all that comes before the tensors' data, of the length that it had. n_bytes: of the file.
    data: changed bytes behind the head, by their offsets.
    """

    head: bytearray
    n_bytes: int
    data: dict[int, bytes] = field(default_factory=dict)


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


def tokenizer_of(data: bytearray) -> bytes | None:
    for key_at, type_at, end in pairs(data):
        if data[key_at + 8 : type_at] == b"tokenizer.ggml.model":
            return bytes(data[type_at + 12 : end])
    return None


#
# ways to break a file
#


def breakage(head: bytes, n_bytes: int, rng: random.Random) -> Breakage:
    what = Breakage(bytearray(head), n_bytes)
    ways: tuple[Way, ...] = (
        cut_off,
        change_data,
        *map(in_head, (change_bytes, change_word, remove_part)),
        *4 * (in_head(change_value),),
        *2 * (in_head(change_tensor),),
    )
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            rng.choice(ways)(what, rng)
        except (struct.error, IndexError, KeyError, OverflowError, ValueError):
            pass  # broken before so that it cannot be taken apart
    return what


Way = Callable[[Breakage, random.Random], None]


def in_head(change: Callable[[bytearray, random.Random], None]) -> Way:
    return lambda what, rng: change(what.head, rng)


def cut_off(what: Breakage, rng: random.Random) -> None:
    what.n_bytes = rng.randrange(1, rng.choice((what.n_bytes, len(what.head))))


def change_data(what: Breakage, rng: random.Random) -> None:
    """Weights: any bytes, infinite, not a number, or zero."""
    size = rng.choice((1, 32, 4096))
    for _ in range(rng.choice((1, 20))):
        offset = rng.randrange(len(what.head), max(len(what.head) + 1, what.n_bytes - size))
        fill = rng.choice((rng.randbytes(size), b"\xff" * size, bytes(size), b"\0\x7c" * size))
        what.data[offset] = fill[: min(size, what.n_bytes - offset)]


def header_end(data: bytearray) -> int:
    *_, (_start, end) = tensors(data)
    return end


def change_bytes(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 8)):
        data[rng.randrange(rng.choice((24, header_end(data))))] = rng.randrange(256)


def change_word(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(header_end(data) - 8)
    code = rng.choice("IQ")
    struct.pack_into(f"<{code}", data, at, rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(code)))


def remove_part(data: bytearray, rng: random.Random) -> None:
    """Remove bytes; later bytes move up, except the tensors' data."""
    at = rng.randrange(header_end(data))
    n = min(rng.randrange(1, 500), len(data) - at)
    del data[at : at + n]
    data.extend(bytes(n))


def change_value(data: bytearray, rng: random.Random) -> None:
    """A metadata value: a scalar, the type, an item of an array, its length, or a key."""
    key_at, type_at, end = rng.choice(list(pairs(data)))
    kind = struct.unpack_from("<I", data, type_at)[0]
    what = rng.randrange(10)
    if what == 0:
        struct.pack_into("<I", data, type_at, rng.randrange(14))
    elif what == 1:
        data[rng.randrange(key_at + 8, type_at)] = rng.choice(b"\0x.")
    elif kind in SIZES:
        fill(data, type_at + 4, SIZES[kind], rng)
    elif kind == STRING:
        if end > type_at + 12:
            data[rng.randrange(type_at + 12, end)] = rng.choice(b"\0\n\xffa0")
    elif what == 2:
        struct.pack_into("<Q", data, type_at + 8, rng.choice(NUMBERS))
    else:
        item = struct.unpack_from("<I", data, type_at + 4)[0]
        size = SIZES.get(item, 1)
        n = (end - type_at - 16) // size
        if n:
            fill(data, type_at + 16 + rng.randrange(n) * size, size, rng)


def change_tensor(data: bytearray, rng: random.Random) -> None:
    """Its name, number of dimensions, a size, type or offset."""
    start, end = rng.choice(list(tensors(data)))
    n_name = struct.unpack_from("<Q", data, start)[0]
    dims_at = start + 8 + n_name
    what = rng.randrange(5)
    if what == 0:
        data[rng.randrange(start + 8, dims_at)] = rng.choice(b"\0x.9")
    elif what == 1:
        struct.pack_into("<I", data, dims_at, rng.choice((0, 1, 2, 3, 4, 5, 2**31)))
    elif what == 2:
        n_dims = struct.unpack_from("<I", data, dims_at)[0]
        at = dims_at + 4 + 8 * rng.randrange(max(1, n_dims))
        size = struct.unpack_from("<Q", data, at)[0]
        near = (size - 1, size + 1, size * 2, size // 2, size * 32, rng.choice(NUMBERS))
        struct.pack_into("<Q", data, at, rng.choice(near) % 2**64)
    elif what == 3:
        struct.pack_into("<I", data, end - 12, rng.randrange(45))
    else:
        struct.pack_into("<Q", data, end - 8, rng.choice(NUMBERS))


def fill(data: bytearray, at: int, size: int, rng: random.Random) -> None:
    number = rng.choice((rng.choice(NUMBERS), rng.randrange(64), rng.getrandbits(64)))
    data[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")


def pairs(data: bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield the offsets of the key, the type and the end of each metadata entry."""
    at = 24
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        key_at = at
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        type_at = at
        at = value_end(data, at + 4, struct.unpack_from("<I", data, at)[0])
        yield key_at, type_at, at


def value_end(data: bytearray, at: int, kind: int) -> int:
    if kind == STRING:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    if kind != ARRAY:
        return at + SIZES[kind]
    item, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if item != STRING:
        return at + int(n) * SIZES[item]
    for _ in range(n):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
    return at


def tensors(data: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the beginning and the end of each tensor's entry."""
    *_, (_key, _type, at) = pairs(data)
    for _ in range(struct.unpack_from("<Q", data, 8)[0]):
        start = at
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
        yield start, at


if __name__ == "__main__":
    sys.exit(main())
