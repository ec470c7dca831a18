"""llama-cpp-python's own tests, with ``pyselfspec.Llama`` in the place of ``llama_cpp.Llama``.

    python tools/llama_cpp_tests.py              # needs scipy and huggingface_hub, as they do
    python tools/llama_cpp_tests.py --stock      # the same with llama_cpp.Llama: to compare
    python tools/llama_cpp_tests.py --table      # both, as the table of the docs

The tests are those of the pinned source distribution, which pip gets. Where they would download a
small transformer that can be any, they get the demo. Tests of models that only a download brings
are left out, by name and with the reason. The status is 1 when a test fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "vendor"))

import pyselfspec
import source

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "from-llama-cpp-python.md"
BEGIN, END = "<!-- table of tests -->\n", "<!-- end of the table -->\n"
NEEDED = ("pytest", "scipy", "huggingface_hub")
FOLDERS = ("tests", "vendor/llama.cpp/models")
STAND_INS = {"ggml-org/models": pyselfspec.DEMO}
LEFT_OUT = {
    "test_real_model": "compares with texts of a Qwen3.5 that must be downloaded",
    "test_real_llama": "compares with texts of a Qwen3.5 that must be downloaded",
    "test_real_llama_repeated_prompt_cache": "compares with a text of the same model",
    "test_recurrent_model_prompt_cache_reset": "downloads a Mamba model",
    "test_hybrid_model_prompt_cache_reset": "downloads a Falcon-H1 model",
    "llama_cpp_recurrent_model_path": "downloads a Mamba model",
    "llama_cpp_hybrid_model_path": "downloads a Falcon-H1 model",
    "test_real_llama_embeddings": "downloads an embedding model",
}


class Run:
    """A plugin for pytest: leaves out what needs a download, and counts the others."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self.counts: Counter[str] = Counter()
        self.outcomes: dict[str, str] = {}  # by test

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        out = [item for item in items if _reason(item.name)]
        self.left_out = [item.name for item in out]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
            name = report.nodeid.rpartition("::")[2]
            self.outcomes[name] = "as there" if report.outcome == "passed" else report.outcome


def _reason(test: str) -> str | None:
    """Why a test is left out, by its name or that of the model in its brackets."""
    name, _, parameters = test.rstrip("]").partition("[")
    return next((why for key, why in LEFT_OUT.items() if key in (name, _model(parameters))), None)


def _model(parameters: str) -> str:
    return parameters.partition("-")[0]


def _stand_in(repo_id: str, filename: str, **_options: Any) -> str:
    return str(STAND_INS[repo_id])


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
@click.option("--stock", is_flag=True, help="Leave llama_cpp.Llama in its place.")
@click.option("--outcomes", type=click.Path(path_type=Path), help="Write them here, as JSON.")
@click.option("--table", is_flag=True, help="Run both, and write the table of the docs.")
def main(stock: bool, outcomes: Path | None, table: bool) -> None:
    if table:
        PAGE.write_text(_with_table(PAGE.read_text("utf-8"), *map(_run, (True, False))), "utf-8")
        return
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"these tests need {', '.join(missing)}: pip install them")
    drop_in = pyselfspec.Llama
    import huggingface_hub
    import llama_cpp
    import pytest

    vars(huggingface_hub)["hf_hub_download"] = _stand_in
    made = Counter[str]()
    if not stock:
        llama_cpp.Llama = _counted(drop_in, made)  # type: ignore[misc]
    run = Run()
    sdist = source.fetch_sdist(source.Project(ROOT))
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        _unpack(sdist, Path(folder))
        status = pytest.main(["-q", "-p", "no:cacheprovider", "tests"], plugins=[run])
    if outcomes is not None:
        left_out = {name: f"left out: {_reason(name)}" for name in run.left_out}
        outcomes.write_text(json.dumps(run.outcomes | left_out), "utf-8")
    for name in run.left_out:
        click.echo(f"left out: {name}: {_reason(name)}")
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(run.counts.items()))
    click.echo(
        f"{counts}; {len(run.left_out)} left out; {made['drafting']} Llamas could draft, "
        f"{made['plain']} could not"
    )
    sys.exit(int(status))


def _run(stock: bool) -> dict[str, str]:
    """Return the outcome of each test, run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        command = [sys.executable, __file__, "--outcomes", str(file), *(["--stock"] * stock)]
        subprocess.run(command, check=False, stdout=sys.stderr)
        found: dict[str, str] = json.loads(file.read_text("utf-8"))
        return found


def _with_table(page: str, stock: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Return the page with a row for each test of that package."""
    rows = [
        f"| {name.removeprefix('test_').replace('_', ' ')} "
        f"| {stock[name].replace('as there', 'passes')} | {ours.get(name, 'missing')} |\n"
        for name in sorted(stock)
        if not stock[name].startswith("left out")
    ]
    reasons = Counter(text.partition(": ")[2] for text in ours.values() if text.startswith("left"))
    left = "; ".join(f"{why} ({n})" for why, n in sorted(reasons.items()))
    table = ["| test | `llama_cpp.Llama` | `pyselfspec.Llama` |\n|---|---|---|\n", *rows]
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    table.append(f"\nLeft out, with the number of tests: {left}.\n")
    return f"{before}{BEGIN}{''.join(table)}{END}{after}"


def _counted(drop_in: Any, made: Counter[str]) -> Any:
    """The class, counting what is made of it."""

    class Counted(drop_in):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made["plain" if self.draft is None else "drafting"] += 1

    return Counted


def _unpack(sdist: Path, target: Path) -> None:
    """The tests, and the vocabularies that they read."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            _top, _, name = member.name.partition("/")
            if name.startswith(FOLDERS):
                member.name = name
                archive.extract(member, target, filter="data")


if __name__ == "__main__":
    main()
