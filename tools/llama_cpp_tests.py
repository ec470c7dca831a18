"""llama-cpp-python's own tests, with ``pyselfspec.Llama`` in the place of ``llama_cpp.Llama``.

    python tools/llama_cpp_tests.py              # needs scipy and huggingface_hub, as they do
    python tools/llama_cpp_tests.py --stock      # the same with llama_cpp.Llama: to compare

The tests are those of the pinned source distribution, which pip gets. Where they would download a
small transformer that can be any, they get the demo. Tests of models that only a download brings
are left out, by name and with the reason. The status is 1 when a test fails.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections import Counter
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
NEEDED = ("pytest", "scipy", "huggingface_hub")
FOLDERS = ("tests", "vendor/llama.cpp/models")
STAND_INS = {"ggml-org/models": pyselfspec.DEMO}
LEFT_OUT = {
    "test_real_model": "compares with texts of a Qwen3.5 that has to be downloaded",
    "test_real_llama": "compares with texts of a Qwen3.5 that has to be downloaded",
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

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        out = [item for item in items if _reason(item.name)]
        self.left_out = [item.name for item in out]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1


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
def main(stock: bool) -> None:
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
    for name in run.left_out:
        click.echo(f"left out: {name}: {_reason(name)}")
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(run.counts.items()))
    click.echo(
        f"{counts}; {len(run.left_out)} left out; {made['drafting']} Llamas could draft, "
        f"{made['plain']} could not"
    )
    sys.exit(int(status))


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
