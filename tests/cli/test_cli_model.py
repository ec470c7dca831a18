"""The model of a command: where it is typed, and which one is taken if none is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import ONE_THREAD, USAGE, check_error, run

from pyselfspec.chat import installed
from pyselfspec.cli.serve import _options_of_all

SHORT = ("-n", "2", "--temp", "0", *ONE_THREAD)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model that somebody has pulled, with any program."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("pyselfspec.hub.huggingface.installed", lambda: iter(()))


@pytest.mark.parametrize(
    "args", ["generate -p hi", "bench", "serve", "tune", "models info", "lab generate -p hi"]
)
def test_without_a_chat_model_there_is_a_way_to_get_one(args: str) -> None:
    check_error(run(*args.split()), 1, "no chat model", "pyselfspec models pull smollm2-135m")


def test_without_a_model_it_is_the_one_of_the_last_chat(path: Path) -> None:
    installed.remember(path)
    outcome = run("generate", "-p", "hi", "--json", *SHORT)
    assert outcome.json["model"] == str(path)
    assert outcome.stderr == f"model: {path} (used or pulled last)\n"


def test_commands_for_layers_say_that_they_take_the_demo() -> None:
    outcome = run("layers", "profile", "show")
    assert outcome.stderr.splitlines()[0] == "model: demo (bundled; for another one, give MODEL)"


@pytest.mark.parametrize("given", [["-m"], ["--model"]])
def test_m_names_the_first_argument_wherever_it_stands(
    given: list[str], path: Path, tmp_path: Path
) -> None:
    named: list[Any] = [*given, path]
    answer = run("chat", path, "hi", *SHORT).stdout
    assert run("chat", *named, "hi", *SHORT).stdout == answer
    assert run("chat", "hi", *SHORT, *named).stdout == answer
    mask = tmp_path / "mask.json"
    mask.write_text('{"n_layer": 12, "skip_attn": [3], "skip_ffn": []}')
    imported = run("layers", "profile", "import", mask, given[0], "demo", "--json").json
    assert imported["model"] == "demo.gguf"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("bench a.gguf -m b.gguf", ["-m b.gguf already names the model", "'a.gguf'"]),
        ("serve a.gguf -m b.gguf", ["a.gguf is given beside --model"]),
        (
            "generate -hf user/repo:Q8_0 -p hi",
            ["type pyselfspec models pull hf:user/repo:Q8_0, then ", " generate hf:user/repo:Q8_0"],
        ),
        ("serve --hf-repo user/repo", ["type pyselfspec models pull hf:user/repo"]),
        ("chat -md small.gguf", ["type --draft ngram+model:small.gguf"]),
        ("bench --draft-model small.gguf", ["type --draft ngram+model:small.gguf"]),
    ],
)
def test_what_llama_cpp_takes_is_told_what_to_type(args: str, words: list[str]) -> None:
    check_error(run(*args.split()), USAGE, *words)


def test_a_server_of_several_models_passes_on_all_options_but_their_names() -> None:
    line = "pyselfspec serve -m a=a.gguf -mb=b.gguf --model c=c.gguf -mg 1 --json -t 2"
    assert _options_of_all(line.split()) == ["-mg", "1", "-t", "2"]
