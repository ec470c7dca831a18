"""Instructions of the inner loops on 64-bit ARM, ours and upstream's: python tools/arm_loops.py

Cross-compiles the kernels and upstream's products of the pinned llama.cpp, and counts the
instructions in the disassembly of their inner loops. Needs GNU's cross compiler; nothing is run, so
the numbers say nothing about time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "pyselfspec" / "native"
GGML = ROOT / "vendor" / "llama.cpp" / "ggml"
PREFIX = "aarch64-linux-gnu-"
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)

# bytes of a block and weights in it
BLOCKS = {
    "Q4_0": (18, 32),
    "Q4_1": (20, 32),
    "Q5_0": (22, 32),
    "Q5_1": (24, 32),
    "Q8_0": (34, 32),
    "IQ4_NL": (18, 32),
    "MXFP4": (17, 32),
    "Q2_K": (84, 256),
    "Q3_K": (110, 256),
    "Q4_K": (144, 256),
    "Q5_K": (176, 256),
    "Q6_K": (210, 256),
    "IQ4_XS": (136, 256),
}
MARCHS = {"dotprod": "armv8.2-a+dotprod", "baseline": "armv8-a"}

# multiplications of bytes, and how many a vector has
PRODUCTS = {
    "dotprod": (re.compile(r"\tsdot\t"), 16),
    "baseline": (re.compile(r"\tsm(?:ull|lal)2?\tv\d+\.8h"), 8),
}


@dataclass(frozen=True, slots=True)
class Loop:
    """The loop of a function that has most products of bytes.

    n_weights: multiplied in one round, by every token.
    """

    n_instructions: int
    n_weights: float


def functions(listing: str) -> dict[str, list[tuple[int, str]]]:
    """Address and text of every instruction, by function."""
    found: dict[str, list[tuple[int, str]]] = {}
    name = ""
    for line in listing.splitlines():
        if head := re.fullmatch(r"[0-9a-f]+ <(.*)>:", line):
            name = head[1]
            found[name] = []
        elif body := re.match(r"\s+([0-9a-f]+):(\t.*)", line):
            found[name].append((int(body[1], 16), body[2] + "\t"))
    return found


def inner_loop(code: Sequence[tuple[int, str]], instructions: str, n_tokens: int) -> Loop | None:
    """The shortest of the loops with most products; None if nothing is multiplied in a loop."""
    product, lanes = PRODUCTS[instructions]
    found: list[tuple[int, int]] = []
    for address, text in code:
        branch = re.match(r"\t(?:b\.?\w*|cbn?z|tbn?z)\t.*?\b([0-9a-f]+) <", text)
        if branch and int(branch[1], 16) < address:
            start = int(branch[1], 16)
            body = [each for at, each in code if start <= at <= address]
            found.append((sum(bool(product.search(each)) for each in body), -len(body)))
    n_products, n_instructions = max(found, default=(0, 0))
    return Loop(-n_instructions, n_products * lanes / n_tokens) if n_products else None


def per_line(loop: Loop, name: str) -> float:
    """Instructions for 64 bytes of weights."""
    n_bytes, n_weights = BLOCKS[name]
    return loop.n_instructions * 64 / (loop.n_weights * n_bytes / n_weights)


def listing(source: Path, march: str, folder: Path) -> str:
    """The disassembly of a source file, compiled as the library is."""
    cpu = GGML / "src" / "ggml-cpu"
    include = (NATIVE, NATIVE / "kernels", GGML / "include", GGML / "src", cpu)
    of_c = ["gcc", "-D_GNU_SOURCE"] if source.suffix == ".c" else ["g++", "-std=gnu++17"]
    to = folder / f"{source.stem}.o"
    options = ["-O3", "-DNDEBUG", "-fno-tree-ter", f"-march={march}", "-c"]
    words = [PREFIX + of_c[0], *of_c[1:], *options, *(f"-I{path}" for path in include)]
    subprocess.run([*words, str(source), "-o", str(to)], check=True)
    show = [PREFIX + "objdump", "-d", "-C", "--no-show-raw-insn", str(to)]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout


def ours(name: str, n_tokens: int, code: dict[str, list[tuple[int, str]]]) -> Iterable[str]:
    """The functions that multiply n_tokens tokens by weights that were not unpacked before."""
    wanted = re.compile(rf"rows?_times_tokens<[^<>]*::{name}, {n_tokens}[,>]")
    for each, body in code.items():
        if wanted.search(each) and any("\tprfm\t" in text for _, text in body):
            yield each


def rows(instructions: str, folder: Path) -> Iterable[list[str]]:
    """For each type: name, upstream's at one token, ours by width."""
    march = MARCHS[instructions]
    kernels = NATIVE / "kernels"
    code = functions(listing(kernels / "blocks.cpp", march, folder))
    code |= functions(listing(kernels / "superblocks.cpp", march, folder))
    upstream = functions(
        listing(GGML / "src" / "ggml-cpu" / "arch" / "arm" / "quants.c", march, folder)
    )
    for name in BLOCKS:
        of_type = name.lower().replace("_k", "_K")
        bodies = [c for f, c in upstream.items() if f.startswith(f"ggml_vec_dot_{of_type}_q8_")]
        loops = [inner_loop(body, instructions, 1) for body in bodies]
        yield [
            name,
            *(f"{per_line(loop, name):.0f}" for loop in loops[:1] if loop),
            *(_width(name, n, code, instructions) for n in WIDTHS),
        ]


def _width(name: str, n: int, code: dict[str, list[tuple[int, str]]], instructions: str) -> str:
    loops = [inner_loop(code[each], instructions, n) for each in ours(name, n, code)]
    return " / ".join(f"{per_line(loop, name):.0f}" for loop in loops if loop)


@click.command(help=__doc__)
@click.option("--instructions", type=click.Choice(list(MARCHS)), default="dotprod")
def main(instructions: str) -> None:
    if not shutil.which(PREFIX + "g++"):
        raise click.ClickException(
            f"there is no compiler {PREFIX}g++: install g++-aarch64-linux-gnu"
        )
    print("| type | upstream, 1 token | ours, " + " | ".join(map(str, WIDTHS)) + " |")
    print("|---|" + "---:|" * (len(WIDTHS) + 1))
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(instructions, Path(folder)):
            print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    sys.exit(main())
