"""Measurements of the runtime, alternating what is compared; results can be kept as JSON lines.

    python tools/random_gguf.py model.gguf --params 0.85B --type Q8_0
    python tools/bench.py overhead model.gguf    # our plain decoding against the barest C loop
    python tools/bench.py masks model.gguf       # cost of masked passes against their weight bytes
    python tools/bench.py switch model.gguf      # draft steps in turn with checks, and alone
    python tools/bench.py speed model.gguf       # drafting against plain decoding, see speed.py
    python tools/bench.py widths model.gguf      # passes over a few tokens against a stock build
    python tools/bench.py scan model.gguf        # what prefix reuse and giving up save in scans
    python tools/bench.py table                  # what benchmarks/README.md shows

With --out FILE each measurement is appended as one JSON object: counts and times with what is
needed to repeat them. Ratios are derived when they are shown.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
from rich.progress import track

import bench_scan
import peers
import speed
import widths as width_times
from pyselfspec import GREEDY, Completion, Context, KVSequence, LayerMask, Model
from pyselfspec.runtime._lib import LIB_DIR, system_info
from pyselfspec.util.machine import usable_cores
from records import Record, append, provenance, rounded

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.jsonl"
N_WARM_UP = 8  # tokens, as in plain_loop.c


#
# overhead
#


def build_plain_loop(folder: Path) -> Path:
    """Compile the C loop against the installed library and the unpacked headers."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    source = ROOT / "vendor" / "llama.cpp"
    if compiler is None or not source.exists():
        raise click.ClickException(
            "the C loop needs a C compiler and vendor/llama.cpp; install from this checkout first"
        )
    program = folder / "plain_loop"
    includes = [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]
    libraries = [f"-L{LIB_DIR}", f"-Wl,-rpath,{LIB_DIR}", "-lllama", "-lggml", "-lggml-base"]
    options = ["-O2", "-o", str(program), str(ROOT / "tools" / "plain_loop.c")]
    subprocess.run([compiler, *options, *includes, *libraries, "-lm"], check=True)
    return program


def python_loop(model: Path, n_tokens: int, threads: int) -> float:
    """Microseconds per token of plain decoding through the package, in this process."""
    with Model(model) as loaded, loaded.context(n_ctx=1024, n_threads=threads) as context:
        completion = Completion(
            context, [1], n_predict=N_WARM_UP + n_tokens, draft="off", sampling=GREEDY
        )
        pieces = iter(completion)
        for _ in range(N_WARM_UP):
            next(pieces)
        start = time.perf_counter_ns()
        for _ in range(n_tokens):
            next(pieces)
        return (time.perf_counter_ns() - start) / 1000 / n_tokens


def in_own_process(program: list[str], model: Path, n_tokens: int, threads: int) -> float:
    """What a program prints. Each run loads the model anew, since where its pages land counts."""
    command = [*program, str(model), str(n_tokens), str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@click.group(help=__doc__)
def main() -> None:
    pass


def options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--out", type=click.Path(path_type=Path), help="Append the result here."),
        click.option("-t", "--threads", type=int, default=usable_cores(), show_default=True),
        click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    ):
        command = option(command)
    return command


@main.command()
@options
@click.option("--pairs", type=click.IntRange(min=5), default=7, show_default=True)
@click.option("--tokens", type=click.IntRange(min=1), default=48, show_default=True)
def overhead(model: Path, threads: int, out: Path | None, pairs: int, tokens: int) -> None:
    """Speed of the Python loop relative to the C loop (1 = no overhead)."""
    ours: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        c_program = [str(build_plain_loop(Path(folder)))]
        python_program = [sys.executable, __file__, "python-loop"]
        for _ in track(range(pairs), "pairs", disable=not sys.stderr.isatty()):
            ours.append(in_own_process(python_program, model, tokens, threads))
            bare.append(in_own_process(c_program, model, tokens, threads))
    record = {"python_us": rounded(ours), "c_us": rounded(bare)}
    append(provenance("overhead", model, threads) | record, out)
    ratios = overhead_ratios(record)
    click.echo(
        f"{model.name}: Python {statistics.median(ours) / 1000:.2f} ms per token, "
        f"C {statistics.median(bare) / 1000:.2f} ms, median ratio {statistics.median(ratios):.3f} "
        f"of {pairs} pairs ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def overhead_ratios(record: Record) -> list[float]:
    """Speed of the Python loop over that of the C loop, pair by pair."""
    return [c / p for p, c in zip(record["python_us"], record["c_us"], strict=True)]


@main.command("python-loop", hidden=True)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("n_tokens", type=int)
@click.argument("threads", type=int)
def print_python_loop(model: Path, n_tokens: int, threads: int) -> None:
    click.echo(python_loop(model, n_tokens, threads))


#
# masks
#


def masks_to_time(n_layer: int) -> dict[str, LayerMask]:
    """Exits, and masks that thin out the inside."""
    inside = range(1, n_layer - 1)
    return {
        "full": LayerMask.full(n_layer),
        "exit after 1/4": LayerMask.early_exit(n_layer, n_layer // 4),
        "exit after 1/2": LayerMask.early_exit(n_layer, n_layer // 2),
        "alternate blocks": LayerMask.alternate(n_layer),
        "no attention inside": LayerMask.skipping(n_layer, attn=inside),
        "no feed-forward inside": LayerMask.skipping(n_layer, ffn=inside),
    }


def time_pass(context: Context, seq: KVSequence, mask: LayerMask, pos: int) -> float:
    """Microseconds of a one-token pass with its arg-max."""
    start = time.perf_counter_ns()
    context.decode([1], seq=seq, pos=pos, mask=mask, outputs=context.best_only)
    context.argmax(0)
    return (time.perf_counter_ns() - start) / 1000


def time_mask(context: Context, mask: LayerMask, n_tokens: int) -> float:
    """Median microseconds of a one-token pass; the first, which builds the graph, is left out."""
    seq = context.sequence()
    n_past = seq.n_past
    times = [time_pass(context, seq, mask, n_past + i) for i in range(n_tokens + 1)]
    seq.rollback(n_past)
    return statistics.median(times[1:])


@main.command()
@options
@click.option("--rounds", type=click.IntRange(min=3), default=9, show_default=True)
@click.option("--tokens", type=click.IntRange(min=1), default=6, show_default=True)
def masks(model: Path, threads: int, out: Path | None, rounds: int, tokens: int) -> None:
    """Cost of masked one-token passes against the share of weight bytes that they read."""
    with Model(model) as loaded:
        context = loaded.context(n_ctx=1024, n_threads=threads)
        context.prefill([1] * 32)
        named = masks_to_time(loaded.n_layer)
        times: dict[str, list[float]] = {name: [] for name in named}
        for _ in track(range(rounds), "rounds", disable=not sys.stderr.isatty()):
            for name, mask in named.items():
                times[name].append(time_mask(context, mask, tokens))
        bytes_read = {
            name: loaded.file.weight_bytes(mask.skip_attn, mask.skip_ffn)
            for name, mask in named.items()
        }
    record = {
        "mask_us": {name: rounded(us) for name, us in times.items()},
        "mask_bytes": bytes_read,
    }
    append(provenance("masks", model, threads) | record, out)
    for line in mask_rows(record):
        click.echo(line)


def mask_shares(record: Record) -> Iterator[tuple[str, float, float]]:
    """Each mask with its cost and its weight bytes, both over those of a full pass."""
    full_us = statistics.median(record["mask_us"]["full"])
    full_bytes = record["mask_bytes"]["full"]
    for name, us in record["mask_us"].items():
        yield name, statistics.median(us) / full_us, record["mask_bytes"][name] / full_bytes


def mask_rows(record: Record) -> list[str]:
    return ["mask                      measured  by bytes  ratio"] + [
        f"{name:24}  {measured:8.3f}  {predicted:8.3f}  {measured / predicted:5.2f}"
        for name, measured, predicted in mask_shares(record)
    ]


#
# switch
#


def draft_steps(context: Context, mask: LayerMask, n_steps: int, check: bool) -> list[float]:
    """Times of the steps of a draft in the text's own sequence; then, if so, its check."""
    seq, first = context.sequence(), mask.first_skipped
    n_past = seq.n_past
    times, states = [], []
    for i in range(n_steps):
        start = time.perf_counter_ns()
        done = context.decode(
            [1], seq=seq, pos=n_past + i, mask=mask, hidden_at=first, outputs=context.best_only
        )
        context.argmax(0)
        times.append((time.perf_counter_ns() - start) / 1000)
        states.append(done.hidden)
    if check:
        rest = LayerMask.enter_at(mask.n_layer, first)
        hidden = np.concatenate([state for state in states if state is not None])
        context.decode([1] * n_steps, seq=seq, pos=n_past, mask=rest, hidden=hidden, in_place=True)
    seq.rollback(n_past)
    return times


@main.command()
@options
@click.option("--rounds", type=click.IntRange(min=5), default=15, show_default=True)
@click.option("--draft-max", type=click.IntRange(min=1), default=4, show_default=True)
def switch(model: Path, threads: int, out: Path | None, rounds: int, draft_max: int) -> None:
    """Draft steps in turn with checks against the same steps repeated alone."""
    in_turn: list[list[float]] = []
    alone: list[list[float]] = []
    with Model(model) as loaded, loaded.context(n_ctx=1024, n_threads=threads) as context:
        context.prefill([1] * 32)
        mask = LayerMask.early_exit(loaded.n_layer, max(1, loaded.n_layer // 4))
        for _ in track(range(rounds), "rounds", disable=not sys.stderr.isatty()):
            for times, check in ((in_turn, True), (alone, False)):
                draft_steps(context, mask, draft_max, check)  # after the other kind
                times += [draft_steps(context, mask, draft_max, check) for _ in range(3)]
    record = {
        "draft_max": draft_max,
        "in_turn_us": [rounded(times) for times in in_turn],
        "alone_us": [rounded(times) for times in alone],
    }
    append(provenance("switch", model, threads) | record, out)
    turn_us, alone_us, first_us = switch_medians(record)
    click.echo(
        f"{model.name}: draft step {turn_us / 1000:.3f} ms in turn with checks, "
        f"{alone_us / 1000:.3f} ms alone, ratio {turn_us / alone_us:.3f}; "
        f"the first after a check {first_us / alone_us:.3f}"
    )


def switch_medians(record: Record) -> tuple[float, float, float]:
    """Microseconds of a draft step in turn with checks, of one alone, and of the first after a
    check. The medians are of means over a draft."""
    in_turn, alone = record["in_turn_us"], record["alone_us"]
    return (
        statistics.median(map(statistics.mean, in_turn)),
        statistics.median(map(statistics.mean, alone)),
        statistics.median(times[0] for times in in_turn),
    )


#
# widths
#


@main.command()
@options
@click.option("--rounds", type=click.IntRange(min=2), default=3, show_default=True)
@click.option(
    "--stock",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="PYSELFSPEC_STOCK_LIB",
    required=True,
    help="Library folder of an unpatched build.  [env: PYSELFSPEC_STOCK_LIB]",
)
def widths(model: Path, threads: int, out: Path | None, rounds: int, stock: Path) -> None:
    """Passes over 1 to 16 tokens, relative to a stock build's pass over one."""
    builds = {"stock": stock, "pyselfspec": LIB_DIR}
    times = width_times.alternate(model, builds, threads, rounds)
    record: Record = {"system": system_info(), "us": times}
    record = provenance("widths", model, threads) | record
    append(record, out)
    for line in (*width_times.TABLE_HEAD, *width_times.table_rows(record)):
        click.echo(line)


#
# scan
#


@main.command()
@options
@click.option("-c", "--ctx-size", "n_ctx", default=512, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--chunks", "n_chunks", type=click.IntRange(min=1), default=15, show_default=True)
@click.option("--only", type=click.Choice(["reuse", "greedy"]), help="[default: both]")
def scan(
    model: Path,
    threads: int,
    out: Path | None,
    n_ctx: int,
    rounds: int,
    n_chunks: int,
    only: str | None,
) -> None:
    """Scans with and without prefix reuse in time; greedy searches in blocks evaluated."""
    if only != "greedy":
        record = bench_scan.reuse(model, threads, n_ctx, rounds)
        given = f" -c {n_ctx} --rounds {rounds} --only reuse"
        append(provenance("scan reuse", model, threads, given, "bench.py scan") | record, out)
        click.echo("\n".join(reuse_rows({"model": model.name} | record)))
    if only != "reuse":
        record = bench_scan.greedy(model, threads, n_ctx, n_chunks)
        given = f" -c {n_ctx} --chunks {n_chunks} --only greedy"
        append(provenance("scan greedy", model, threads, given, "bench.py scan") | record, out)
        click.echo("\n".join(greedy_rows({"model": model.name} | record)))


def reuse_rows(record: Record) -> list[str]:
    reused, anew = (statistics.median(record[key]) for key in ("reused_us", "anew_us"))
    return [
        f"| {record['model']} | {record['n_layer']} | {record['n_masks']} | {reused / 1e6:.1f} "
        f"| {anew / 1e6:.1f} | {anew / reused:.2f} |"
    ]


def greedy_rows(record: Record) -> list[str]:
    arms = record["arms"]
    most = next(iter(arms.values()))["n_block_tokens"]
    rows = []
    for name, arm in arms.items():
        mask = arm["mask"]
        skipped = (len(mask["skip_attn"]) + len(mask["skip_ffn"])) / (2 * mask["n_layer"])
        ratio = most / arm["n_block_tokens"]
        rows.append(
            f"| {record['model']} | {name} | {arm['n_block_tokens'] / 1e6:.1f} | {ratio:.1f} "
            f"| {skipped:.0%} | {arm['full_perplexity']:.1f} | {arm['perplexity']:.1f} "
            f"| {arm['further_perplexity']:.1f} |"
        )
    return rows


#
# table
#


def overhead_row(record: Record) -> str:
    ratios = overhead_ratios(record)
    ms = statistics.median(record["python_us"]) / 1000
    return (
        f"| {record['model']} | {record['machine']} | {record['threads']} | {ms:.2f} "
        f"| {statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} |"
    )


def mask_table_rows(record: Record) -> list[str]:
    return [
        f"| {record['model']} | {name} | {measured:.3f} | {predicted:.3f} |"
        for name, measured, predicted in mask_shares(record)
        if name != "full"
    ]


def switch_row(record: Record) -> str:
    in_turn, alone, first = switch_medians(record)
    return (
        f"| {record['model']} | {in_turn / 1000:.3f} | {alone / 1000:.3f} | {in_turn / alone:.3f} "
        f"| {first / alone:.3f} |"
    )


TABLES: dict[str, tuple[str, str, Callable[[Record], list[str]]]] = {
    "overhead": (
        "| model | machine | threads | ms per token | speed over the C loop | spread |",
        "|---|---|---:|---:|---:|---|",
        lambda record: [overhead_row(record)],
    ),
    "masks": (
        "| model | mask | cost over a full pass | share of weight bytes |",
        "|---|---|---:|---:|",
        mask_table_rows,
    ),
    "switch": (
        "| model | draft step in turn with checks, ms | alone, ms | ratio | first after a check |",
        "|---|---:|---:|---:|---:|",
        lambda record: [switch_row(record)],
    ),
    "widths": (*width_times.TABLE_HEAD, lambda record: list(width_times.table_rows(record))),
    "scan reuse": (
        "| model | blocks | masks | seconds with reuse | without | ratio |",
        "|---|---:|---:|---:|---:|---:|",
        reuse_rows,
    ),
    "scan greedy": (
        "| model | search | block tokens, millions | times fewer | skipped | perplexity, full "
        "| masked | masked, further text |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        greedy_rows,
    ),
    "speed": (speed.HEAD, speed.RULE, speed.rows),
    "peers": (peers.HEAD, peers.RULE, peers.rows),
    "transformers": (peers.EXIT_HEAD, peers.EXIT_RULE, peers.exit_rows),
    "perplexity": (peers.PPL_HEAD, peers.PPL_RULE, lambda record: [peers.ppl_row(record)]),
}


@main.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path), default=RESULTS)
def table(results: Path) -> None:
    """The tables of benchmarks/README.md, in Markdown."""
    records = [json.loads(line) for line in results.read_text().splitlines()]
    tables = []
    for bench, (head, rule, rows_of) in TABLES.items():
        rows = [row for record in records if record["bench"] == bench for row in rows_of(record)]
        if rows:
            tables.append("\n".join([head, rule, *rows]))
    click.echo("\n\n".join(tables))


main.add_command(speed.speed)
main.add_command(speed.peak)
speed.peak.hidden = True

if __name__ == "__main__":
    main()
