"""Fixtures of all rooms: folders of the tests' own, tiny models and contexts on them.

Nothing here imports the native library before a fixture is used that needs it.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fixture_types import CONTEXT, NewContext, RealModel, RunPython, TinyModel, TinyPath

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "tests" / "models"
# Last: the installed package is tested, not the folder of the checkout, if there is one.
sys.path.append(str(ROOT))

if TYPE_CHECKING:
    from pyselfspec import Context, Model

USER_CACHE = os.environ.get("XDG_CACHE_HOME")  # before cache_folder hides it

# A background job of a shell ignores SIGINT, and one under nohup SIGHUP; programs that tests start
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the files that took longest, where durations are asked for."""
    if terminalreporter.config.getoption("durations") is None:
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.location[0]] += report.duration
    terminalreporter.section("slowest files")
    for file, took in seconds.most_common(40):
        terminalreporter.write_line(f"{took:7.1f} s  {file}")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's stored costs and models out of the tests and of the processes that they
    start."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("OLLAMA_MODELS", str(folder / "ollama"))
        yield folder


@pytest.fixture(scope="session")
def user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths for one user after another; nothing is there yet."""
    folder = tmp_path_factory.mktemp("users")
    return (folder / str(i) for i in itertools.count())


@pytest.fixture(autouse=True)
def user_data(user_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the profiles and scans of a test, in place of the user's. It is made by
    what writes there, as most tests do not."""
    folder = next(user_folders)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> TinyPath:
    """Paths of tiny models, by the arguments of tiny_gguf.write; equal arguments share a file."""
    from tools.models import tiny_gguf

    folder = tmp_path_factory.mktemp("tiny")
    paths: dict[str, Path] = {}

    def path(arch: str = "llama", **options: Any) -> Path:
        key = repr((arch, sorted(options.items())))
        if key not in paths:
            paths[key] = tiny_gguf.write(folder / f"{len(paths)}.gguf", arch, **options)
        return paths[key]

    return path


@pytest.fixture(scope="session")
def tiny(tiny_path: TinyPath) -> Iterator[TinyModel]:
    """Loaded tiny models, by the arguments of tiny_gguf.write. Do not close them."""
    from pyselfspec import Model

    models: dict[Path, Model] = {}
    with ExitStack() as stack:

        def model(arch: str = "llama", **options: Any) -> Model:
            path = tiny_path(arch, **options)
            if path not in models:
                models[path] = stack.enter_context(Model(path))
            return models[path]

        yield model


@pytest.fixture(scope="session")
def archs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy model of every architecture; PYSELFSPEC_ARCHS names a folder, to build them once."""
    from tools import archs

    folder = Path(os.environ.get("PYSELFSPEC_ARCHS") or tmp_path_factory.mktemp("archs"))
    if not any(folder.glob("*.gguf")):
        archs.build_models(folder)
    return folder


# One of each family: dense, with experts, latent attention, windows, positions in a table, halves
# side by side, windows in chunks, hybrids, recurrent, attention over the whole batch.
FAMILIES = (
    *("llama-dense", "qwen3moe-moe", "deepseek2-moe", "gemma3-dense", "gpt2-dense", "phi2-dense"),
    *("llama4-moe", "deepseek4-moe", "lfm2-dense", "qwen35-dense", "nemotron_h-dense"),
    *("jamba-dense", "minimax-01-moe", "mamba-dense", "mamba2-dense", "dream-dense"),
)


@pytest.fixture(
    scope="session", params=["families", pytest.param("all", marks=pytest.mark.nightly)]
)
def toy_models(
    request: pytest.FixtureRequest, archs_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with toy models: archs_folder with all, or one with a model of each family."""
    if request.param == "all":
        return archs_folder
    folder = tmp_path_factory.mktemp("families")
    for name in FAMILIES:
        folder.joinpath(f"{name}.gguf").symlink_to(
            (archs_folder / f"{name}.gguf").resolve(strict=True)
        )
    return folder


@pytest.fixture(scope="session")
def demo_path() -> Path:
    """The model that the package brings; PYSELFSPEC_TEST_MODEL names another one."""
    from pyselfspec import DEMO

    return Path(os.environ.get("PYSELFSPEC_TEST_MODEL", DEMO))


@pytest.fixture(scope="session")
def demo(demo_path: Path) -> Iterator[Model]:
    from pyselfspec import Model

    with Model(demo_path) as model:
        yield model


@pytest.fixture(scope="session")
def real_model() -> RealModel:
    """Paths of real models, by the arguments of tools.models.real.path: name and type."""
    from pyselfspec.errors import PullError
    from pyselfspec.hub import packages
    from tools.models import real

    with pytest.MonkeyPatch.context() as patch:
        if USER_CACHE is None:
            patch.delenv("XDG_CACHE_HOME")
        else:
            patch.setenv("XDG_CACHE_HOME", USER_CACHE)
        folder = packages.cache()

    def path(name: str, type_name: str | None = None) -> Path:
        try:
            return real.path(name, type_name, folder)
        except PullError as error:
            return (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))

    return path


@pytest.fixture
def new_context() -> Iterator[NewContext]:
    """Small one-thread contexts, closed at the end of the test."""
    with ExitStack() as stack:

        def context(model: Model, **options: Any) -> Context:
            return stack.enter_context(model.context(**(CONTEXT | options)))

        yield context


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run code in a fresh interpreter, for what can happen once per process only, or end it."""
    import pyselfspec

    def run(code: str, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if k != "LLAMA_CPP_LIB_PATH"}
        package = Path(pyselfspec.__file__).parents[1]  # the one under test, installed or not
        paths = [str(package), inherited.get("PYTHONPATH", ""), str(MODELS), str(ROOT)]
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, args)],
            env=inherited | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | env,
            capture_output=True,
            text=True,
            timeout=300,  # sanitizers are slow
        )

    return run


PRELUDE = """
import sys
import numpy as np
from pyselfspec import *
from pyselfspec.errors import *
model = Model(sys.argv[1])
context = model.context(n_ctx=256, n_batch=64, n_threads=1)
"""


@pytest.fixture(scope="session")
def error_of(tiny_path: TinyPath, run_python: RunPython) -> Callable[..., str]:
    """Run code that could end the process in a fresh interpreter; return "ErrorClass: message".

    The code finds a tiny model and a context on it under these names.
    """

    def error(code: str, **model: Any) -> str:
        run = run_python(PRELUDE + code, tiny_path(**model), GGML_NO_BACKTRACE="1")
        assert run.returncode == 1, f"exit status {run.returncode}: {run.stdout}{run.stderr}"
        return run.stderr.strip().splitlines()[-1].removeprefix("pyselfspec.errors.")

    return error


@pytest.fixture(scope="session")
def token_ids() -> Callable[..., list[int]]:
    """Seeded token ids that no tiny model treats specially."""

    import numpy as np

    from tools.models import tiny_vocab

    def ids(n: int, seed: int = 0) -> list[int]:
        low, high = tiny_vocab.N_CONTROL, tiny_vocab.N_VOCAB_MIN
        return [int(t) for t in np.random.default_rng(seed).integers(low, high, n)]

    return ids


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C as a pass returns, which is where nearly all of them land; counted from 1."""
    from pyselfspec import Context

    def at(n_passes: int) -> None:
        run_pass, left = Context.run, n_passes

        def interrupted(*args: Any, **options: Any) -> Any:
            nonlocal left
            decoded = run_pass(*args, **options)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return decoded

        monkeypatch.setattr(Context, "run", interrupted)

    return at
