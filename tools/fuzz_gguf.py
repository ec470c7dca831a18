"""Breaks GGUF files in all ways and requires one short line for each: no signal, no hang.

    python tools/fuzz_gguf.py [--runs 300] [--seed 1] [MODEL.gguf ...]

Models: the demo and some tiny architectures unless told. Files go through what ``info`` and four
tokens of ``generate`` do, many in one process; what ends it is kept and named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyselfspec.util.paths import DEMO
from tools.models import tiny_gguf

N_BATCH = 25  # files for one process
SECONDS = 60  # for one file
MAX_LINE = 500  # characters of a message, the file's name aside
NUMBERS = (0, 1, 2, 3, 7, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of value types
STRING, ARRAY = 8, 9

# Runs in a process of its own: a file per line in, its outcome as JSON per line out.
WORKER = """
import json, sys
from click.testing import CliRunner
from pyselfspec.cli import main
for line in sys.stdin:
    name = line.strip()
    print("begin", name, flush=True)
    generate = "-t 1 -n 4 --temp 0 -c 256 -p".split()
    for args in (["info", name, "-t", "1"], ["generate", name, *generate, "Once upon a time"]):
        done = CliRunner().invoke(main, args)
        crash = None if isinstance(done.exception, SystemExit) else repr(done.exception)
        crash = None if done.exception is None else crash
        print(json.dumps([args[0], done.exit_code, done.stderr, crash]), flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=300, help="files in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for files that were not refused well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = options.models or [DEMO, *tiny_models(Path(folder))]
        found = fuzz(models, options.runs, options.seed, Path(folder), options.keep)
    for fault in found:
        print(fault)
    return bool(found)


def tiny_models(folder: Path) -> list[Path]:
    archs = tiny_gguf.ARCHITECTURES
    return [tiny_gguf.write(folder / f"tiny-{arch}.gguf", arch) for arch in archs]


def fuzz(
    models: list[Path], n_runs: int, seed: int, folder: Path, keep: Path | None = None
) -> list[str]:
    """What went wrong, a line for each."""
    faults: list[str] = []
    statuses: Counter[int] = Counter()
    sources = [model.read_bytes() for model in models]
    todo = list(range(n_runs))
    while todo:
        batch, todo = todo[:N_BATCH], todo[N_BATCH:]
        files = {}
        for i in batch:
            path = folder / f"{i}.gguf"
            path.write_bytes(broken(sources[i % len(sources)], random.Random(f"{seed} {i}")))
            files[str(path)] = f"{models[i % len(models)].name}, seed {seed}, run {i}"
        for name, fault, status in outcomes(list(files)):
            statuses[status] += 1
            if fault:
                faults.append(f"{files[name]}: {fault}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{seed}-{Path(name).name}").write_bytes(Path(name).read_bytes())
        for name in files:
            Path(name).unlink()
    print(f"{n_runs} files, exit statuses {dict(statuses)}, {len(faults)} faults", file=sys.stderr)
    return faults


def outcomes(names: list[str]) -> Iterator[tuple[str, str, int]]:
    """For each command on each file: the file, what is wrong or "", the exit status."""
    left = list(names)
    while left:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", WORKER],
                input="\n".join(left) + "\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS + 2 * len(left),
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            )
            output, status, last = done.stdout, done.returncode, done.stderr
        except subprocess.TimeoutExpired as late:
            output, status, last = (late.stdout or b"").decode(errors="replace"), -1, "hangs"
        name = left[0]
        for line in output.splitlines():
            if line.startswith("begin "):
                name = line.removeprefix("begin ")
            elif line.startswith("["):
                command, code, message, crash = json.loads(line)
                yield name, fault_of(name, command, code, message, crash), code
        if status == 0:
            return
        yield name, f"ended with status {status}: {last.strip()[-200:]}", status
        left = left[left.index(name) + 1 :]


def fault_of(name: str, command: str, code: int, message: str, crash: str | None) -> str:
    """What is wrong with an outcome, or ""."""
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


#
# ways to break a file
#


def broken(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    ways = (cut_off, change_bytes, change_word, remove_part, *4 * (change_value,), change_tensor)
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            rng.choice(ways)(changed, rng)
        except (struct.error, IndexError, KeyError, OverflowError, ValueError):
            pass  # broken before so that it cannot be taken apart
    return bytes(changed)


def header_end(data: bytearray) -> int:
    *_, (_start, end) = tensors(data)
    return end


def cut_off(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(1, rng.choice((len(data), header_end(data)))) :]


def change_bytes(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 8)):
        data[rng.randrange(rng.choice((24, header_end(data))))] = rng.randrange(256)


def change_word(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(header_end(data) - 8)
    code = rng.choice("IQ")
    struct.pack_into(f"<{code}", data, at, rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(code)))


def remove_part(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(header_end(data))
    del data[at : at + rng.randrange(1, 500)]


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
    """Where each metadata entry has its key, its type and its end."""
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
    """Where each tensor's entry begins and ends."""
    *_, (_key, _type, at) = pairs(data)
    for _ in range(struct.unpack_from("<Q", data, 8)[0]):
        start = at
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
        yield start, at


if __name__ == "__main__":
    sys.exit(main())
