"""Texts on a device against plain decoding on it, for models of any architecture.

    python tools/device_texts.py check FOLDER          # toy models, see tools/archs.py
    python tools/device_texts.py check FOLDER --json   # one JSON object per model

For each number of layers on the device, from none to all, every way to draft writes a text, which
must have the tokens of its replay: the same passes without the drafter. How many texts have the
tokens of plain decoding is counted; they need not, since the kernels of a device may round
differently for several tokens. Each number of layers has another sampling. Each model is checked in
a process of its own, so that a crash is one result among others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyselfspec import GREEDY, Completion, Context, LayerMask, Model, SamplingParams, Step
from pyselfspec.errors import SelfSpecError
from pyselfspec.runtime.ffi import devices
from tools import archs
from tools.replay import AsDrafted, Recorded, Replay, run_steps

N_PREDICT = 10
N_DRAFT = 3
PROMPT = archs.random_tokens(6) * 2
SAMPLINGS = {
    "greedy": GREEDY,
    "drawn": SamplingParams(temperature=1.0, top_k=0, seed=5),
    "penalties": SamplingParams(temperature=0.7, repeat_penalty=1.3, presence_penalty=0.5, seed=6),
}
# Twenty and more architectures: dense and experts, sliding windows, several kinds of attention,
# states beside and in place of K/V.
CHOSEN = (
    *("llama-dense", "llama-moe", "qwen2-dense", "qwen3-dense", "qwen3moe-moe", "gemma-dense"),
    *("gemma2-dense", "gemma3-dense", "phi2-dense", "phi3-dense", "gpt2-dense", "gptneox-dense"),
    *("mpt-dense", "falcon-dense", "bloom-dense", "starcoder2-dense", "stablelm-dense"),
    *("command-r-dense", "cohere2-dense", "olmo2-dense", "granitemoe-moe", "gpt-oss-moe"),
    *("deepseek2-moe", "minicpm3-dense", "glm4moe-moe", "exaone4-dense", "llama4-moe"),
    *("mamba2-dense", "falcon-h1-dense", "granitehybrid-dense", "lfm2-dense", "qwen35-dense"),
)


@dataclass(slots=True)
class Result:
    """Texts of one model: names are "LAYERS/SAMPLING/WAY".

    same: number of texts that equal their replays, of n_texts.
    as_plain: number of texts that equal those of plain decoding.
    wrong: names of texts that differ from their replays.
    refused: the library's error message, by name of the text.
    width: at each number of layers, the exact width that the library promises.
    same_as_cpu: number of plain texts equal to those without the device, of n_plain.
    """

    model: str
    architecture: str = ""
    layers: list[int] = field(default_factory=list)
    n_texts: int = 0
    same: int = 0
    as_plain: int = 0
    same_by_layers: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    width: dict[str, int] = field(default_factory=dict)
    n_plain: int = 0
    same_as_cpu: int = 0
    n_accepted: int = 0
    seconds: float = 0.0
    crash: str | None = None

    @property
    def is_wrong(self) -> bool:
        return bool(self.crash or self.wrong)


def steps(n_layer: int) -> list[int]:
    """Numbers of layers on the device: none, the head, half, all blocks but one, all."""
    return sorted({0, 1, (n_layer + 1) // 2, n_layer, n_layer + 1})


def ways(n_layer: int, *, can_skip: bool) -> dict[str, dict[str, Any]]:
    """Options of Completion: copies, masks whose drafts are forks, and early exits, which are
    verified in place."""
    found: dict[str, dict[str, Any]] = {"copies": {"draft": "ngram"}}
    if can_skip and n_layer > 1:
        skip = LayerMask.skipping(n_layer, attn=[0], ffn=[n_layer - 1])
        found["mask"] = {"draft": "layer-skip", "mask": skip}
        found["exit"] = {"draft": "layer-skip", "mask": LayerMask.early_exit(n_layer, 1)}
    return found


def opened(model: Model) -> Context:
    return model.context(n_ctx=256, n_batch=64, n_threads=1)


def written(
    model: Model, sampling: SamplingParams, **options: Any
) -> tuple[list[int], int, list[Step]]:
    """Return the tokens of a text, how many of them were drafted, and its steps."""
    recorded = Recorded(N_DRAFT)
    if options.get("draft"):
        options |= {"controller": recorded}
    with opened(model) as context:
        text = Completion(context, PROMPT, n_predict=N_PREDICT, sampling=sampling, **options)
        for _ in text:
            pass
        return list(text.tokens), text.stats.n_accepted, recorded.steps


def replayed(model: Model, sampling: SamplingParams, steps: list[Step]) -> list[int]:
    with opened(model) as context:
        again = run_steps(context, PROMPT, Replay(steps), AsDrafted(), sampling, N_PREDICT)
    return [token for step in again for token in step.tokens]


def check_layers(result: Result, path: Path, n: int, cpu: dict[str, list[int]]) -> None:
    """All texts with n layers on the device. cpu: plain texts without it, by sampling."""
    with Model(path, n_gpu_layers=n) as model:
        with opened(model) as context:
            if not context.abilities.can_draft:
                result.refused[f"{n}"] = "no drafts"
                return
            found = ways(model.n_layer, can_skip=context.abilities.can_rollback)
            result.width[str(n)] = context.abilities.exact_width
        result.same_by_layers[str(n)] = 0
        kind = tuple(SAMPLINGS)[result.layers.index(n) % len(SAMPLINGS)]
        plain, *_ = written(model, SAMPLINGS[kind], draft=None)
        if n:
            result.n_plain += 1
            result.same_as_cpu += plain == cpu[kind]
        for way, options in found.items():
            check_way(result, model, f"{n}/{kind}/{way}", SAMPLINGS[kind], options, plain)


def check_way(
    result: Result,
    model: Model,
    name: str,
    sampling: SamplingParams,
    options: dict[str, Any],
    plain: list[int],
) -> None:
    """One way to draft, against its replay and plain decoding."""
    try:
        tokens, n_accepted, steps = written(model, sampling, **options)
        is_same = tokens == replayed(model, sampling, steps)
    except SelfSpecError as error:
        result.refused[name] = str(error)
        return
    result.n_texts += 1
    result.n_accepted += n_accepted
    result.same_by_layers[name.partition("/")[0]] += is_same
    result.same += is_same
    result.as_plain += tokens == plain
    if not is_same:
        result.wrong.append(name)


def check_model(path: Path) -> Result:
    start = time.monotonic()
    result = Result(path.stem)
    try:
        with Model(path, n_gpu_layers=0) as model:
            result.layers = steps(model.n_layer)
            result.architecture = model.file.architecture
            cpu = {
                kind: written(model, sampling, draft=None)[0]
                for kind, sampling in SAMPLINGS.items()
            }
    except SelfSpecError as error:
        result.refused["load"] = str(error)
        return result
    for n in result.layers:
        check_layers(result, path, n, cpu)
    result.seconds = round(time.monotonic() - start, 1)
    return result


def check_in_own_process(path: Path) -> Result:
    fields, crash = archs.run_in_own_process(__file__, path)
    return Result(path.stem, crash=crash) if crash else Result(**fields)


def check_models(paths: list[Path], jobs: int = 1) -> Iterator[Result]:
    """Results in the order of the paths."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(check_in_own_process, paths)


def chosen(folder: Path, names: tuple[str, ...] = CHOSEN) -> list[Path]:
    """Paths of toy models in a folder, those of these names that are there."""
    return [path for name in names if (path := folder / f"{name}.gguf").exists()]


def line(result: Result) -> str:
    if result.crash:
        return f"{result.model}: CRASH {result.crash}"
    text = (
        f"{result.model}: {result.same} of {result.n_texts} as in a replay, {result.as_plain} as "
        "plain decoding; plain as on the CPU: "
        f"{result.same_as_cpu} of {result.n_plain}; layers "
        f"{result.layers}, {result.n_accepted} drafted tokens accepted, {result.seconds} s"
    )
    return text + (f"; WRONG {', '.join(result.wrong)}" if result.wrong else "")


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("check-one", hidden=True)
@click.argument("path", type=click.Path(path_type=Path))
def check_one(path: Path) -> None:
    click.echo(json.dumps(asdict(check_model(path))))


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--all", "every", is_flag=True, help="All models in FOLDER, not those chosen here.")
@click.option("--jobs", default=1, help="Models at a time.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per model.")
def check(folder: Path, every: bool, jobs: int, as_json: bool) -> None:
    """Check models in FOLDER; status 1 when a text is wrong or a process ends."""
    paths = sorted(folder.glob("*.gguf")) if every else chosen(folder)
    click.echo(f"device: {', '.join(devices.gpus()) or 'none'}", err=True)
    n_wrong = 0
    for result in check_models(paths, jobs):
        n_wrong += result.is_wrong
        click.echo(json.dumps(asdict(result)) if as_json else line(result))
    click.echo(f"{len(paths)} models, {n_wrong} wrong", err=True)
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
