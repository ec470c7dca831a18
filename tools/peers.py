"""What a user would run instead: llama.cpp's own programs, built from the same pinned source.

    python tools/peers.py build FOLDER                  # unpatched, in minutes
    python tools/peers.py run FOLDER model.gguf --out benchmarks/results.jsonl
    python tools/peers.py perplexity FOLDER model.gguf

Plain decoding with llama-bench; two models with llama-speculative-simple, the draft model being the
first blocks of the same file; n-gram speculation with llama-lookup; llama-perplexity on the bundled
text, beside what scan-layers takes for the full model's. Not part of the package.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from rich.progress import track

import bench_scan
import upstream
from pyselfspec import LayerMask, Model
from pyselfspec.gguf import file as gguf_file
from pyselfspec.selection import chunks
from pyselfspec.selection.objectives import Setting
from pyselfspec.selection.objectives.perplexity import Objective as Perplexity
from pyselfspec.util.machine import usable_cores
from records import Record, append, provenance

PROGRAMS = ("llama-bench", "llama-speculative-simple", "llama-lookup", "llama-perplexity")
PROMPT = "Once upon a time there was a king who had three daughters, and the youngest"
DRAFT_MAX = 4
N_TRIES = 5
SPEED = re.compile(r"decoded +\d+ tokens in .* speed: +([\d.]+) t/s")
ACCEPT = re.compile(r"n_drafted += (\d+).*?n_accept += (\d+)", re.DOTALL)
PPL = re.compile(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)")
BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """tokens_per_second: one figure per run."""

    tokens_per_second: list[float]
    n_drafted: int
    n_accepted: int
    peak_kb: int


def write_first_blocks(path: Path, out: Path, n_keep: int) -> None:
    """A copy of a model with its first n_keep blocks only, tensors byte for byte."""
    reader = GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    arch = fields["general.architecture"].contents()
    writer = GGUFWriter(out, arch)
    for name, field in fields.items():
        if name == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if name == f"{arch}.block_count":
            value = n_keep
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        block = BLOCK.match(tensor.name)
        if block is None or int(block[1]) < n_keep:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(program: Sequence[str | Path]) -> tuple[str, int]:
    """What a program prints on both streams, and its peak memory in kB."""
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(program, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        file.seek(0)
        text = file.read()
    if status != 0:
        raise click.ClickException(f"{program[0]} failed:\n{text[-2000:]}")
    return text, int(usage.ru_maxrss)


def plain(folder: Path, model: Path, threads: int, n_tokens: int, repeats: int) -> Outcome:
    program: list[str | Path] = [
        folder / "llama-bench",
        "-m",
        model,
        "-p",
        "0",
        "-n",
        str(n_tokens),
    ]
    text, peak = run([*program, "-t", str(threads), "-r", str(repeats), "-o", "jsonl"])
    line = next(line for line in text.splitlines() if line.startswith("{"))
    return Outcome(json.loads(line)["samples_ts"], 0, 0, peak)


def speculative(program: Sequence[str | Path], repeats: int) -> Outcome:
    """Runs of a program that reports its speed and how much of its drafts was accepted."""
    speeds, n_drafted, n_accepted, peaks = [], 0, 0, []
    for _ in track(range(repeats), str(program[0]), disable=not sys.stderr.isatty()):
        text, peak = run(program)
        speed, accept = SPEED.search(text), ACCEPT.search(text)
        if speed is None or accept is None:
            raise click.ClickException(f"{program[0]} reports no speed:\n{text[-2000:]}")
        speeds.append(float(speed[1]))
        n_drafted += int(accept[1])
        n_accepted += int(accept[2])
        peaks.append(peak)
    return Outcome(speeds, n_drafted, n_accepted, max(peaks))


def run_all(
    folder: Path, model: Path, threads: int, n_keep: int, n_tokens: int, repeats: int
) -> dict[str, Outcome]:
    common: list[str | Path] = [
        "-m",
        model,
        "-p",
        PROMPT,
        "-n",
        str(n_tokens),
        "-t",
        str(threads),
        "--temp",
        "0",
    ]
    common += ["-c", "1024", "--ignore-eos", "--spec-draft-n-max", str(DRAFT_MAX)]
    with tempfile.TemporaryDirectory() as temporary:
        first = Path(temporary, "first.gguf")
        write_first_blocks(model, first, n_keep)
        draft: list[str | Path] = ["--spec-type", "draft-simple", "-md", first]
        draft += ["--spec-draft-threads", str(threads)]
        return {
            "llama-bench": plain(folder, model, threads, n_tokens, repeats),
            f"llama-speculative-simple, first {n_keep} blocks": speculative(
                [folder / "llama-speculative-simple", *common, *draft], repeats
            ),
            "llama-lookup": speculative([folder / "llama-lookup", *common], repeats),
        }


def their_perplexity(
    folder: Path, model: Path, threads: int, n_ctx: int, n_chunks: int
) -> list[float]:
    """What llama-perplexity says of the bundled text, and its standard error."""
    with tempfile.TemporaryDirectory() as temporary:
        text = Path(temporary, "text.txt")
        text.write_text(chunks.sample_text(), encoding="utf-8")
        sizes = ["-c", str(n_ctx), "-b", str(n_ctx), "-ub", str(n_ctx), "--chunks", str(n_chunks)]
        program: list[str | Path] = [folder / "llama-perplexity", "-m", model, "-f", text, *sizes]
        for _ in range(N_TRIES):  # under load it may end before its log is out
            said, _peak = run([*program, "-t", str(threads), "-ngl", "0"])
            found = PPL.search(said)
            if found is not None:
                break
    if found is None:
        raise click.ClickException(f"llama-perplexity reports no figure:\n{said[-2000:]}")
    return [float(found[1]), float(found[2])]


def our_perplexity(model: Path, threads: int, n_ctx: int, n_chunks: int) -> list[float]:
    """The same as scan-layers computes it."""
    with Model(model) as loaded, bench_scan.context_of(loaded, n_ctx, threads) as context:
        texts = bench_scan.texts_of(loaded, n_ctx, n_chunks)
        score = bench_scan.score_of(
            Perplexity(Setting(context, texts)), LayerMask.full(loaded.n_layer)
        )
    return [score.perplexity, score.perplexity * score.stderr]


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def build(folder: Path) -> None:
    """Build the programs into FOLDER."""
    upstream.build(folder, PROGRAMS, ("TOOLS", "EXAMPLES"))


@main.command("run")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-t", "--threads", type=int, default=usable_cores(), show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Append the result here.")
@click.option("--exit-layer", type=click.IntRange(min=1), help="[default: a quarter of the blocks]")
@click.option("--tokens", type=click.IntRange(min=16), default=96, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
def command(
    folder: Path,
    model: Path,
    threads: int,
    out: Path | None,
    exit_layer: int | None,
    tokens: int,
    repeats: int,
) -> None:
    """Run them all on MODEL."""
    n_keep = exit_layer or max(1, gguf_file.check(model).n_layer // 4)
    outcomes = run_all(folder.resolve(), model, threads, n_keep, tokens, repeats)
    record: Record = {"peers": {name: asdict(outcome) for name, outcome in outcomes.items()}}
    append(provenance("peers", model, threads, program="peers.py run FOLDER") | record, out)
    click.echo("\n".join([HEAD, RULE, *rows(record | {"model": model.name})]))


@main.command("perplexity")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-t", "--threads", type=int, default=usable_cores(), show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Append the result here.")
@click.option("-c", "--ctx-size", "n_ctx", default=512, show_default=True)
@click.option("--chunks", "n_chunks", type=click.IntRange(min=1), default=15, show_default=True)
def perplexity(
    folder: Path, model: Path, threads: int, out: Path | None, n_ctx: int, n_chunks: int
) -> None:
    """Perplexity of MODEL by llama-perplexity and by scan-layers, on the same text."""
    theirs = their_perplexity(folder.resolve(), model, threads, n_ctx, n_chunks)
    ours = our_perplexity(model, threads, n_ctx, n_chunks)
    record = {"n_ctx": n_ctx, "n_chunks": n_chunks, "theirs": theirs, "ours": ours}
    given = f" -c {n_ctx} --chunks {n_chunks}"
    head = provenance("perplexity", model, threads, given, "peers.py perplexity FOLDER")
    append(head | record, out)
    click.echo("\n".join([PPL_HEAD, PPL_RULE, ppl_row(record | {"model": model.name})]))


PPL_HEAD = "| model | chunks | llama-perplexity | scan-layers --objective perplexity |"
PPL_RULE = "|---|---|---:|---:|"


def ppl_row(record: Record) -> str:
    theirs, ours = ("{:.4f} ± {:.4f}".format(*record[key]) for key in ("theirs", "ours"))
    chunks_ = f"{record['n_chunks']} of {record['n_ctx']}"
    return f"| {record['model']} | {chunks_} | {theirs} | {ours} |"


SIDES = ("transformers", "pyselfspec")
EXIT_HEAD = (
    "| model | program | plain, tokens/s | drafts of first blocks, tokens/s | ratio | same text |"
)
EXIT_RULE = "|---|---|---:|---:|---:|---|"


def exit_rows(record: Record) -> list[str]:
    """One row per side of tools/peers_transformers.py."""
    return [_exit_row(record, side) for side in SIDES]


def _exit_row(record: Record, side: str) -> str:
    plain, drafted = (
        1e6 * record["n_tokens"][f"{side}_{kind}"] / statistics.median(record[f"{side}_{kind}_us"])
        for kind in ("plain", "exit")
    )
    same = "yes" if record[f"{side}_same_text"] else "no"
    return (
        f"| {record['model']} | {side} | {plain:.1f} | {drafted:.1f} "
        f"| {drafted / plain:.2f} | {same} |"
    )


HEAD = "| model | program | tokens per second | over llama-bench | spread | accepted | memory |"
RULE = "|---|---|---:|---:|---|---:|---:|"


def rows(record: Record) -> list[str]:
    """One row per program; memory over that of llama-bench."""
    bench = record["peers"]["llama-bench"]
    plain_speed = statistics.median(bench["tokens_per_second"])
    lines = []
    for name, peer in record["peers"].items():
        speeds = peer["tokens_per_second"]
        accepted = f"{peer['n_accepted'] / peer['n_drafted']:.2f}" if peer["n_drafted"] else "-"
        lines.append(
            f"| {record['model']} | {name} | {statistics.median(speeds):.1f} "
            f"| {statistics.median(speeds) / plain_speed:.2f} "
            f"| {min(speeds) / plain_speed:.2f} to {max(speeds) / plain_speed:.2f} "
            f"| {accepted} | {peer['peak_kb'] / bench['peak_kb'] - 1:+.1%} |"
        )
    return lines


if __name__ == "__main__":
    main()
