"""The commands and programs on the pages of docs/ run as printed, and the site builds.

Blocks marked ``sh`` and ``python`` run in the order of their page, in one folder. A block that
cannot run in a test (with the reader's model, for minutes, in an editor) is marked ``text``. A
block after ``<!-- real -->`` needs a real model; one after ``<!-- file: NAME -->`` is the content
of that file.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import commands

import pyselfspec
from tools import api_docs, cli_docs

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"(<!-- real -->\n+)?```(sh|python)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"<!-- file: (\S+) -->\n+```python\n(.*?)```\n", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# of llama-server, ollama, tools/gpu/first_hour.sh and .ci/run
OTHER_PROGRAMS = {
    "--api-key", "--backend", "--embedding", "--full", "--modelfile", "--models-max",
    "--reranking", "--spec-type",
}  # fmt: skip


def blocks(page: Path, *, real: bool) -> list[tuple[str, str]]:
    found = BLOCK.findall(FILE.sub("", page.read_text(encoding="utf-8")))
    return [(language, code) for mark, language, code in found if bool(mark) == real]


def run_all(page: Path, folder: Path, *, real: bool) -> None:
    """Each block must end well and print something."""
    (folder / "bin").mkdir()
    for name, arguments in (("pyselfspec", "-m pyselfspec"), ("python", "")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    for name, code in FILE.findall(page.read_text(encoding="utf-8")):
        (folder / name).write_text(code, encoding="utf-8")
    env = os.environ | {
        "PATH": os.pathsep.join([str(program.parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    if not real:  # profiles that a page makes are its own
        env["XDG_CACHE_HOME"] = env["XDG_DATA_HOME"] = str(folder / "home")
    for language, code in blocks(page, real=real):
        command = ["bash", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        assert done.stdout.strip(), code


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, real=False)], ids=lambda p: p.stem)
def test_blocks_of_a_page_run(page, tmp_path):
    run_all(page, tmp_path, real=False)


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, real=True)], ids=lambda p: p.stem)
def test_blocks_with_real_models_run(page, tmp_path):
    run_all(page, tmp_path, real=True)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(p for p in PAGES if p != cli_docs.PAGE)], ids=lambda p: p.stem
)
def test_options_that_a_page_names_exist(page):
    parameters = [p for _, command in commands() for p in command.params]
    known = {o for p in parameters for o in (*p.opts, *p.secondary_opts)}
    named = set(OPTION.findall(page.read_text(encoding="utf-8")))
    assert named - OTHER_PROGRAMS <= known


def test_the_page_of_commands_is_current():
    """The page is as wide everywhere: help follows neither terminal nor environment."""
    shown = cli_docs.PAGE.read_text(encoding="utf-8")
    assert shown == cli_docs.page(), "python tools/cli_docs.py writes it anew"


def test_the_page_of_the_api_is_current():
    shown = api_docs.PAGE.read_text(encoding="utf-8")
    assert shown == api_docs.page(), "python tools/api_docs.py writes it anew"


def test_completion_in_a_shell_offers_the_public_names_only():
    assert set(dir(pyselfspec)) == {*pyselfspec.__all__, "Llama"}


def test_the_page_of_the_api_has_every_public_name():
    shown = api_docs.page()
    sections = re.findall(r"^(?:### |- `)(\w+)(?:`: .*)?$", shown, re.MULTILINE)
    assert set(pyselfspec.__all__) <= set(sections)


@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_page_of_commands_does_not_depend_on_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    test_the_page_of_commands_is_current()


def test_no_page_is_a_link():
    """Checkouts without symbolic links have the same documentation."""
    assert not [path for path in (ROOT / "docs").rglob("*") if path.is_symlink()]


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"- ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in PAGES)


def test_the_site_builds(tmp_path):
    """Links that lead nowhere are errors."""
    pytest.importorskip("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    changes = tmp_path / "build" / "site" / "changelog" / "index.html"
    assert "Keep a Changelog" in changes.read_text(encoding="utf-8")
