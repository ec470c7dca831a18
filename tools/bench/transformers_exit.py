"""Early-exit speculation in transformers and here, each against plain decoding in the same program.

Both sides run one checkpoint in float32 on the CPU with equally many threads, greedily, with the
same prompt, draft length and confidence to go on drafting. All four alternate; a time is that of a
whole text, prompt included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, Model
from pyselfspec.convert.huggingface import convert
from pyselfspec.speculate.config import AUTO
from tools.records import Record, provenance, rounded

from ._options import keep, progress, run_options
from ._table import Table

N_CTX = 1024  # tokens
PROMPT = "Once upon a time there was"
SIDES = ("transformers", "pyselfspec")
Run = Callable[[], list[int]]


def judge_runs(
    checkpoint: Path, prompt: list[int], n_predict: int, exit: int, fixed: Fixed
) -> dict[str, Run]:
    """Texts from transformers, plain and with drafts of the first `exit` layers."""
    import torch  # here, since tables are made without
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    config = model.generation_config
    config.num_assistant_tokens = fixed.n_max
    config.assistant_confidence_threshold = fixed.p_min

    def run(**options: Any) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(ids, max_new_tokens=n_predict, do_sample=False, **options)
        text: list[int] = out[0, len(prompt) :].tolist()
        return text

    return {
        "transformers_plain": run,
        "transformers_exit": lambda: run(assistant_early_exit=exit),
    }


def our_runs(
    context: Context, prompt: list[int], n_predict: int, exit: int, fixed: Fixed
) -> dict[str, Run]:
    """Texts from here, plain and with drafts of the first `exit` blocks."""

    def run(draft: str | None, mask: LayerMask | None = None) -> list[int]:
        context.sequence().drop()  # the peer reads the prompt each time as well
        completion = Completion(
            context,
            prompt,
            n_predict=n_predict,
            draft=draft,
            mask=mask,
            controller=fixed,
            sampling=GREEDY,
        )
        for _piece in completion:
            pass
        return completion.tokens

    mask = LayerMask.early_exit(context.model.n_layer, exit)
    return {
        "pyselfspec_plain": lambda: run(None),
        "pyselfspec_exit": lambda: run(AUTO, mask),
    }


def measure(runs: dict[str, Run], rounds: int) -> Record:
    """Times of every run in turn, after one that is not counted, and whether texts are equal."""
    texts = {name: run() for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in progress(range(rounds), "rounds"):
        for name, run in runs.items():
            start = time.perf_counter_ns()
            run()
            times[name].append((time.perf_counter_ns() - start) / 1000)
    n_tokens = {name: len(text) for name, text in texts.items()}
    same = {f"{side}_same_text": texts[f"{side}_plain"] == texts[f"{side}_exit"] for side in SIDES}
    return {f"{name}_us": rounded(us) for name, us in times.items()} | same | {"n_tokens": n_tokens}


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@run_options
@click.option("--exit", type=click.IntRange(min=1), required=True, help="Layers that draft.")
@click.option("-p", "--prompt", default=PROMPT)
@click.option("-n", "--n-predict", type=click.IntRange(min=2, max=900), default=128)
@click.option("--draft-max", type=click.IntRange(min=1), default=Fixed().n_max)
@click.option("--draft-p-min", type=click.FloatRange(0, 1), default=Fixed().p_min)
@click.option("--rounds", type=click.IntRange(min=3), default=7)
def command(
    checkpoint: Path,
    threads: int,
    out: Path | None,
    exit: int,
    prompt: str,
    n_predict: int,
    draft_max: int,
    draft_p_min: float,
    rounds: int,
) -> None:
    """Compare what early-exit speculation gains in transformers and here.

    CHECKPOINT is the folder of a Hugging Face model whose early layers can draft.
    """
    import torch
    import transformers

    torch.set_num_threads(threads)
    fixed = Fixed(draft_max, draft_p_min)
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{checkpoint.resolve().name}-f32.gguf"
        convert(checkpoint, file, "f32")
        with Model(file) as model, model.context(n_ctx=N_CTX, n_threads=threads) as context:
            ids = model.tokenize(prompt)
            runs = judge_runs(checkpoint, ids, n_predict, exit, fixed)
            runs |= our_runs(context, ids, n_predict, exit, fixed)
            record = provenance("transformers", file, threads) | measure(runs, rounds)
    record |= {
        "command": f"python tools/bench.py transformers-exit {checkpoint.resolve().name} "
        f"--exit {exit} -n {n_predict} --draft-max {draft_max} --draft-p-min {draft_p_min} "
        f"--threads {threads}",
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "exit": exit,
    }
    keep(record, TABLES[0], out)


#
# figures
#


def speed(record: Record, run: str) -> float:
    """Tokens per second of one of the four runs."""
    return float(1e6 * record["n_tokens"][run] / statistics.median(record[f"{run}_us"]))


def cells(record: Record) -> list[list[str]]:
    """One row per side."""
    rows = []
    for side in SIDES:
        plain, drafted = (speed(record, f"{side}_{kind}") for kind in ("plain", "exit"))
        ratio, same = f"{drafted / plain:.2f}", record[f"{side}_same_text"]
        figures = [f"{plain:.1f}", f"{drafted:.1f}", ratio, "yes" if same else "no"]
        rows.append([record["model"], side, *figures])
    return rows


TABLES = (
    Table(
        "transformers",
        (
            "model",
            "program",
            "plain, tokens/s",
            "drafts of first blocks, tokens/s",
            "ratio",
            "same text",
        ),
        "<<>>><",
        cells,
    ),
)
