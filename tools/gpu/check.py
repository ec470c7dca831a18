"""Builds, tests and measures on a machine with a GPU; what first_hour.sh starts.

Models are made while the library is compiled. Then come, as long as time is left: tests, and the
benches divergence, speed, switch and overhead. Where there is no GPU, or with --cpu, the same is
done on the CPU with small models.

With CUDA, tests run once more under compute-sanitizer, where the toolkit has it. All output of
what is run goes to FOLDER/log. FOLDER/result.json, also the last line on stdout, is one JSON object
with everything that is worth sending.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

import click

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tools.gpu import cuda_toolkit

ROOT = Path(__file__).resolve().parents[2]
FORMAT = 1
NATIVE = ("gpu", "masks", "lossless", "kv", "context")
# file: its folder
TESTS = {
    **dict.fromkeys(("texts", "failures", "states", "heads"), "device"),
    **dict.fromkeys(NATIVE, "native"),
    "divergence": "tools",
}
BACKENDS = ("cuda", "vulkan")
NODES = Path("/dev/dri")  # where Linux shows cards
SOFTWARE = {"GGML_VK_VISIBLE_DEVICES": "0"}  # Mesa's llvmpipe, where Vulkan has no other device
SANITIZED = "gpu"  # the file of tests that compute-sanitizer watches
TAIL = 20  # lines of what failed
LEFT_OUT_S = 5.0  # nothing is started with less time left

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The models to make and the time to spend. types: of the models, most important first."""

    random: tuple[str, ...]  # options of models/random_gguf.py
    wide: str  # parameters of the widened demo
    types: tuple[str, ...]
    n_tokens: int
    overhead: tuple[str, ...] = ()

    def models(self, folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
        """Kind, file and command of every model."""
        for name in self.types:
            random, wide = folder / f"random-{name}.gguf", folder / f"wide-{name}.gguf"
            options = ["--type", name.upper(), *self.random]
            yield "random", random, tool("models/random_gguf.py", random, *options)
            options = ["--params", self.wide, "--type", name, "--out", str(wide)]
            yield "wide", wide, tool("models/make_bench_model.py", *options)


# Late blocks that change little give the random model drafts that are often right.
LATE = ("--late-scale", "0.02", "--late-from")
GPU = Plan(
    ("--params", "8B", "--blocks", "32", "--vocab", "128256", *LATE, "8"),
    "2B",
    ("q4_k_m", "f16"),
    64,
)
CPU = Plan(
    ("--params", "8M", "--blocks", "8", "--vocab", "1024", *LATE, "2"),
    "40M",
    ("q4_k_m", "f16"),
    16,
    ("--pairs", "5", "--tokens", "8"),
)


def tool(name: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, str(ROOT / "tools" / name), *map(str, arguments)]


def say(text: str) -> None:
    click.echo(text, err=True)


# --- running things ------------------------------------------------------------------------------


def finish(command: Sequence[str], seconds: float | None, log: IO[str], env: dict[str, str]) -> str:
    """Run a command to its end, or end it with all that it has started."""
    with subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ | env,
        start_new_session=True,
    ) as process:
        try:
            return "failed" if process.wait(seconds) else "ok"
        except subprocess.TimeoutExpired:
            return "cut off"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@dataclass(slots=True)
class Runner:
    """Runs commands with their output in files, until a moment."""

    folder: Path
    threads: int
    end: float = field(default=float("inf"))  # of time.monotonic()

    def run(self, name: str, command: Sequence[str], **env: str) -> Report:
        """How a command went: status ok, failed, cut off, or left out for want of time."""
        log = self.folder / "log" / f"{name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        left = self.end - start
        if left < LEFT_OUT_S:
            return {"status": "left out"}
        with log.open("w") as file:
            file.write(shlex.join(command) + "\n")
            file.flush()
            status = finish(command, None if left == float("inf") else left, file, env)
        went: Report = {"status": status, "s": round(time.monotonic() - start, 1)}
        if status != "ok":
            went["log"] = log.read_text(errors="replace").splitlines()[-TAIL:]
        say(f"{name}: {went['status']}, {went['s']} s")
        return went

    def records(self, name: str, command: Sequence[str]) -> Report:
        """Run a tool that appends its record with --out; the report includes the record."""
        out = self.folder / "log" / f"{name}.jsonl"
        out.unlink(missing_ok=True)
        went = self.run(name, [*command, "--threads", str(self.threads), "--out", str(out)])
        with suppress(OSError, IndexError, ValueError):  # cut off before or while it wrote
            went["record"] = compact(json.loads(out.read_text().splitlines()[-1]))
        return went


EVERYWHERE = ("format", "version", "build", "machine", "threads", "date", "command", "mask")


def compact(value: Any) -> Any:
    """A record without what the report says once, with times of four digits, and with the median
    of each column where rows are repetitions."""
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items() if key not in EVERYWHERE}
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            return [compact(float(median(column))) for column in zip(*value, strict=True)]
        return [compact(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


# --- the machine ---------------------------------------------------------------------------------


def card(backend: str) -> Report | None:
    """The card that a backend can use, None where there is none."""
    found = nvidia()
    if found is None and backend == "vulkan":
        names = sorted(path.name for path in NODES.glob("renderD*"))
        return {"name": names[0]} if names else None  # the library names it later
    return found


def nvidia() -> Report | None:
    """Name, driver and memory of the first GPU, None where nvidia-smi finds none."""
    names = ("name", "driver_version", "memory.total", "compute_cap")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    return dict(zip(names, map(str.strip, lines[0].split(",")), strict=True)) if lines else None


# --- stages --------------------------------------------------------------------------------------


def build(runner: Runner, options: Sequence[str]) -> Report:
    """Install the checkout into this Python, with the options for CMake."""
    arguments = shlex.join(options)
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation"]
    pip += ["--no-deps", "--force-reinstall", "--verbose", "."]
    jobs = str(len(os.sched_getaffinity(0)))
    went = runner.run("build", pip, CMAKE_ARGS=arguments, CMAKE_BUILD_PARALLEL_LEVEL=jobs)
    return went | {"cmake_args": arguments, "jobs": int(jobs)}


def test(runner: Runner, name: str, *under: str) -> Report:
    """One file of tests, under another program if one is given; kernels of a GPU may depend on the
    width, so CI's insistence is off."""
    stage = f"{'sanitized' if under else 'tests'}-{name}"
    result = runner.folder / "log" / f"{stage}.xml"
    result.unlink(missing_ok=True)
    # -P: the installed package, not the checkout's folder
    command = [*under, sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    file = f"tests/{TESTS[name]}/test_{name}.py"
    ours = "device" if TESTS[name] == "device" else "not archs and not nightly"
    marked = f"{ours} and not slow"
    command += ["-m", marked, f"--junitxml={result}", file]
    went = runner.run(stage, command, CI="")
    return went | (counts(result) if result.exists() else {})


def counts(junit: Path) -> Report:
    """Numbers of tests by outcome, and which failed."""
    suite = next(ElementTree.parse(junit).getroot().iter("testsuite"))
    n = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = [
        str(case.get("name"))
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return n | ({"failed": failed} if failed else {})


def measure(runner: Runner, plan: Plan, kind: str, model: Path) -> Iterator[tuple[str, Report]]:
    """Everything that is measured of one model, most important first."""
    tokens = ("--tokens", plan.n_tokens)
    exit_layer = () if kind == "wide" else ("--exit-layer", plan.random[-1])
    command = tool("bench.py", "divergence", model, *map(str, (*tokens, *exit_layer)))
    yield f"divergence {model.stem}", runner.records(f"divergence-{model.stem}", command)
    speed = map(str, (*tokens, *exit_layer, "--mode", "4", "--mode", "auto"))
    command = tool("bench.py", "speed", model, *speed, "--pairs", "5", "--no-memory")
    yield f"speed {model.stem}", runner.records(f"speed-{model.stem}", command)
    if kind == "random":
        command = tool("bench.py", "switch", model)
        yield f"switch {model.stem}", runner.records(f"switch-{model.stem}", command)
        command = tool("bench.py", "overhead", model, *plan.overhead)
        yield f"overhead {model.stem}", runner.records(f"overhead-{model.stem}", command)


def check(
    runner: Runner, plan: Plan, making: dict[str, Any], sanitizer: str | None
) -> Iterator[tuple[str, Report]]:
    """Tests, several files at a time, then every model that could be made, and tests under the
    sanitizer."""
    with ThreadPoolExecutor(max(1, min(len(TESTS), runner.threads // 2))) as pool:
        went = pool.map(lambda name: test(runner, name), TESTS)
        yield from zip((f"tests {name}" for name in TESTS), went, strict=True)
    for kind, model, command in plan.models(runner.folder):
        made = making[model.name].result() if kind == "random" else None
        if made is None:
            made = runner.run(f"make-{model.stem}", command)
        yield f"make {model.stem}", made
        if made["status"] == "ok":
            yield from measure(runner, plan, kind, model)
    if sanitizer is not None:
        under = (sanitizer, "--target-processes", "all", "--error-exitcode", "9")
        yield f"sanitized {SANITIZED}", test(runner, SANITIZED, *under)


# --- command line --------------------------------------------------------------------------------


def cmake_options(
    backend: str, cpu: bool, arch: str | None, cublas: Path | None = None
) -> list[str]:
    if cpu:
        return []
    if backend == "vulkan":
        return ["-DGGML_VULKAN=ON"]
    toolkit = cuda_toolkit.find(cublas)
    return toolkit.cmake_options() + ([f"-DCMAKE_CUDA_ARCHITECTURES={arch}"] if arch else [])


def failed(stages: dict[str, Report]) -> list[str]:
    """Stages that went wrong: a measurement may be cut off by the clock, the tests may not."""
    bad = {name for name, went in stages.items() if went["status"] == "failed"}
    bad |= {name for name in stages if name.startswith("tests") and stages[name]["status"] != "ok"}
    return sorted(bad)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build" / "gpu_check")
@click.option("--backend", type=click.Choice(BACKENDS), default="cuda", help="What to build with.")
@click.option("--cpu", is_flag=True, help="No GPU, small models.  [default: where there is no GPU]")
@click.option("--arch", help="Architectures to compile for.  [default: this machine's]")
@click.option("--cublas", type=click.Path(exists=True, path_type=Path), help="Folder with cuBLAS.")
@click.option("--minutes", default=45.0, help="For tests and measurements; the rest is left out.")
@click.option("--installed", is_flag=True, help="Check the package that is installed, build none.")
def main(
    folder: Path,
    backend: str,
    cpu: bool,
    arch: str | None,
    cublas: Path | None,
    minutes: float,
    installed: bool,
) -> None:
    """Build for this machine's GPU, test, measure; FOLDER/result.json says how it went."""
    device = card(backend)
    if device is None and backend == "vulkan" and not cpu:
        device = {"name": "software"}
        os.environ.update(SOFTWARE)
    cpu = cpu or device is None
    plan = CPU if cpu or device == {"name": "software"} else GPU
    say("on the CPU, with small models" if cpu else f"on {device}")
    try:
        options = cmake_options(backend, cpu, arch, cublas)
    except cuda_toolkit.ToolkitError as error:
        raise click.ClickException(str(error)) from None
    folder = folder.absolute()
    runner = Runner(folder, len(os.sched_getaffinity(0)))
    is_cuda = backend == "cuda" and not cpu
    sanitizer = cuda_toolkit.program("compute-sanitizer") if is_cuda else None
    stages: dict[str, Report] = {}
    with ThreadPoolExecutor(2) as pool:  # numpy makes random weights on one core each
        making = {
            model.name: pool.submit(runner.run, f"make-{model.stem}", command)
            for kind, model, command in plan.models(folder)
            if kind == "random"
        }
        if not installed:
            stages["build"] = build(runner, options)
        if not failed(stages):
            runner.end = time.monotonic() + minutes * 60
            stages |= check(runner, plan, making, sanitizer)
    report = {"format": FORMAT, "device": device, "cpu": cpu} | versions(runner)
    text = json.dumps(report | {"stages": stages}, separators=(",", ":"))
    result = folder / "result.json"
    result.write_text(text + "\n")
    click.echo(text)
    say(f"the file to send back: {result}")
    if failed(stages):
        sys.exit(1)


def versions(runner: Runner) -> Report:
    """Return the build and its devices as the library describes them."""
    code = (
        "import json; from pyselfspec import BUILD_ID; from pyselfspec.runtime.ffi import devices; "
        "from pyselfspec.costs import store; "
        "print(json.dumps({'build': BUILD_ID, 'machine': store.machine(), "
        "'system': devices.system_info(), 'gpus': devices.gpus()}))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    found: Report = {"threads": runner.threads, "date": time.strftime("%Y-%m-%d")}
    return found | (json.loads(done.stdout) if done.returncode == 0 else {})


if __name__ == "__main__":
    main()
