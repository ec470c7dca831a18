"""The mask oracle over every architecture that llama.cpp knows.

    python tools/archs.py build FOLDER    # upstream's test program writes a toy model of each
    python tools/archs.py folder          # says where tests keep these between runs
    python tools/archs.py check FOLDER    # masked passes against files with sublayers zeroed

A masked pass must equal, bit for bit, the file whose skipped sublayers end in zeroed tensors: for
attention (or the recurrent mixer in its place), feed-forward, and both, for every block alone, over
a prompt and the tokens after it. What the library does not offer it must refuse by name. Hidden
states that enter a block must give the ordinary pass, or be refused. Each model is checked in a
process of its own, so that a crash is one result among others.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import platformdirs
from gguf import GGUFReader
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyselfspec import Context, LayerMask, Model
from pyselfspec.errors import UnsupportedError
from tools import upstream

SEED = 1234  # of the weights; 0 to 99 are ids that every toy vocabulary has
N_PROMPT, N_TOKENS = 12, 15
PROGRAM = "test-llama-archs"
STOCK = "stock"  # where the unpatched build is kept beside the models
PROJECT = Path(__file__).with_name("toy_models")
BUILT_BY = (Path(upstream.__file__), PROJECT / "CMakeLists.txt")

PARTS = {"attn": ("attn_output", "ssm_out"), "ffn": ("ffn_down",)}
KINDS = {"attn": ("attn",), "ffn": ("ffn",), "both": ("attn", "ffn")}

Logits = NDArray[np.float32]
T = TypeVar("T")


@dataclass(slots=True)
class Result:
    """One model: for each kind of skip, blocks that are exact, wrong, and refused with a reason."""

    model: str
    n_layer: int = 0
    exact: dict[str, list[int]] = field(default_factory=dict)
    wrong: dict[str, list[int]] = field(default_factory=dict)
    refused: dict[str, dict[int, str]] = field(default_factory=dict)
    enter_exact: list[int] = field(default_factory=list)
    enter_wrong: list[int] = field(default_factory=list)
    enter_refused: dict[int, str] = field(default_factory=dict)
    crash: str | None = None

    @property
    def is_exact(self) -> bool:
        """Every kind of skip of every block."""
        return not self.crash and all(len(self.exact[kind]) == self.n_layer for kind in KINDS)

    @property
    def is_wrong(self) -> bool:
        return bool(self.crash or self.enter_wrong or any(self.wrong.values()))


#
# the toy models
#


def build_models(folder: Path) -> None:
    """Build upstream's test program from the pinned source and let it write its models.

    The program and the unpatched library it was linked with stay in the folder ``stock``. Models
    appear only when all are written.
    """
    upstream.build(folder / STOCK, [PROGRAM], ["TESTS"], project_folder=PROJECT)
    with tempfile.TemporaryDirectory(dir=folder) as written:
        subprocess.run([folder / STOCK / PROGRAM, "-s", str(SEED), "-o", written], check=True)
        for path in Path(written).glob("*.gguf"):
            path.rename(folder / path.name)


def cached_folder() -> Path:
    """Return where models and library stay between runs, by what they are made from and for.

    The stock library has the instructions of the processor that it was compiled on.
    """
    pin = upstream.pin()
    made_from = f"{pin.sha256} {SEED} {cpu_flags()}".encode()
    digest = hashlib.sha256(made_from + b"".join(p.read_bytes() for p in BUILT_BY)).hexdigest()[:12]
    return platformdirs.user_cache_path("pyselfspec-tests") / f"archs-{pin.version}-{digest}"


def cpu_flags() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((li for li in lines if li.startswith(("flags", "Features"))), platform.machine())


#
# the oracle, for one model
#


def write_zeroed(path: Path, out: Path, il: int, parts: tuple[str, ...]) -> None:
    """A copy of the model in which the output tensors of these parts of block il are zero."""
    prefixes = tuple(f"blk.{il}.{name}" for part in parts for name in PARTS[part])
    shutil.copyfile(path, out)
    with out.open("r+b") as file:
        for tensor in GGUFReader(path).tensors:
            if tensor.name.startswith(prefixes) and "norm" not in tensor.name:
                file.seek(int(tensor.data_offset))
                file.write(bytes(int(tensor.n_bytes)))


def forget(context: Context) -> None:
    if context.abilities.has_memory:
        context.sequence().drop()


def run(context: Context, tokens: list[int], mask: LayerMask | None = None) -> Logits:
    """Logits of a prompt and, where there is a memory, of the tokens after it one by one."""
    forget(context)
    rows = [context.decode(tokens[:N_PROMPT], mask=mask).logits]
    if context.abilities.has_memory:
        rows += [context.decode([token], mask=mask).logits for token in tokens[N_PROMPT:]]
    return np.concatenate(rows)


def new_context(model: Model) -> Context:
    return model.context(n_ctx=256, n_batch=64, n_threads=1)


def check_mask(
    result: Result, kind: str, il: int, path: Path, context: Context, tokens: list[int]
) -> None:
    parts = KINDS[kind]
    mask = LayerMask.skipping(
        result.n_layer,
        attn=[il] if "attn" in parts else [],
        ffn=[il] if "ffn" in parts else [],
    )
    try:
        got = run(context, tokens, mask)
    except UnsupportedError as error:
        result.refused[kind][il] = str(error)
        return
    with tempfile.TemporaryDirectory() as temporary:
        zeroed = Path(temporary, "zeroed.gguf")
        write_zeroed(path, zeroed, il, parts)
        with Model(zeroed) as model:
            want = run(new_context(model), tokens)
    (result.exact if np.array_equal(got, want) else result.wrong)[kind].append(il)


def check_entry(result: Result, first: int, context: Context, tokens: list[int]) -> None:
    """Enter block ``first`` in place with the states of an ordinary pass, then go on. Whether that
    works is what ``can_enter`` must have said."""
    prompt, following = tokens[:N_PROMPT], tokens[N_PROMPT:]
    can_enter = context.can_enter(first)
    forget(context)
    try:
        ordinary = context.decode(prompt, hidden_at=first)
        logits, hidden = ordinary.logits, ordinary.hidden
        mask = LayerMask.enter_at(result.n_layer, first)
        entered = context.decode(prompt, hidden=hidden, mask=mask, pos=0, in_place=True).logits
        after = context.decode(following).logits
    except UnsupportedError as error:
        result.enter_refused[first] = str(error)
        if can_enter:
            result.enter_wrong.append(first)
        return
    forget(context)
    context.decode(prompt)
    same = (
        can_enter
        and np.array_equal(entered, logits)
        and np.array_equal(after, context.decode(following).logits)
    )
    (result.enter_exact if same else result.enter_wrong).append(first)


def random_tokens(n: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(SEED).integers(0, 100, n)]


def check_model(path: Path) -> Result:
    tokens = random_tokens(N_TOKENS)
    with Model(path) as model:
        context = new_context(model)
        result = Result(
            path.stem,
            model.n_layer,
            exact={kind: [] for kind in KINDS},
            wrong={kind: [] for kind in KINDS},
            refused={kind: {} for kind in KINDS},
        )
        for kind in KINDS:
            for il in range(model.n_layer):
                check_mask(result, kind, il, path, context, tokens)
        for first in range(1, model.n_layer):
            check_entry(result, first, context, tokens)
    return result


#
# all models
#


def run_in_own_process(script: str, path: Path) -> tuple[dict[str, Any], str | None]:
    """The JSON object that ``script check-one path`` prints, and how it ended where it failed."""
    run = subprocess.run(
        [sys.executable, script, "check-one", str(path)], capture_output=True, text=True
    )
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or ["no output"])[-1]
        return {}, f"exit status {run.returncode}: {last}"
    return json.loads(run.stdout), None


def check_in_own_process(path: Path) -> Result:
    fields, crash = run_in_own_process(__file__, path)
    return Result(path.stem, crash=crash) if crash else Result(**fields)


def for_each_model(folder: Path, function: Callable[[Path], T]) -> Iterator[T]:
    """Results in the order of the file names; as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(function, sorted(folder.glob("*.gguf")))


def check_models(folder: Path) -> Iterator[Result]:
    return for_each_model(folder, check_in_own_process)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def build(folder: Path) -> None:
    """Write the toy models into FOLDER (about 0.9 GB)."""
    build_models(folder)


@main.command("folder")
def print_folder() -> None:
    """Print the folder in the cache directory that PYSELFSPEC_ARCHS should name."""
    click.echo(cached_folder())


@main.command("check-one", hidden=True)
@click.argument("path", type=click.Path(path_type=Path))
def check_one(path: Path) -> None:
    click.echo(json.dumps(asdict(check_model(path))))


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per model.")
def check(folder: Path, as_json: bool) -> None:
    """Check every model in FOLDER; status 1 when one is wrong or crashes."""
    results = []
    for result in check_models(folder):
        results.append(result)
        if as_json:
            click.echo(json.dumps(asdict(result)))
        elif result.is_wrong:
            click.echo(f"{result.model}: WRONG {result.crash or result.wrong}")
        elif not result.is_exact:
            reasons = {text for by_block in result.refused.values() for text in by_block.values()}
            click.echo(f"{result.model}: refused {'; '.join(sorted(reasons))}")
    n_exact = sum(result.is_exact for result in results)
    n_wrong = sum(result.is_wrong for result in results)
    click.echo(f"{n_exact} of {len(results)} exact throughout, {n_wrong} wrong", err=as_json)
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
