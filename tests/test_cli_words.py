"""Errors of the library name its parameters, those of the command line its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import pyselfspec
from pyselfspec.cli import main
from pyselfspec.cli._words import OPTIONS, in_options

ROOT = Path(pyselfspec.__file__).parent
NOT_OURS = ROOT / "converter"  # llama.cpp's, in an installed package; it names its options
LIBRARY = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent.name != "cli" and NOT_OURS not in path.parents
]
OPTION = re.compile(r"(?<![\w-])-{1,2}[a-z][a-z-]*")
OTHER_PROGRAMS = {"llama-gguf-split --merge"}


def messages(path: Path) -> Iterator[str]:
    """What this file's errors say, as far as it stands there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            parts = (part for part in ast.walk(node.exc) if isinstance(part, ast.Constant))
            yield "".join(part.value for part in parts if isinstance(part.value, str))


def all_options() -> set[str]:
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in main.list_commands(context)]
    parameters = [p for command in commands if command is not None for p in command.params]
    profile = main.get_command(context, "profile")
    assert isinstance(profile, click.Group)
    parameters += [p for command in profile.commands.values() for p in command.params]
    return {option for parameter in parameters for option in parameter.opts}


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_library_knows_no_options(path: Path) -> None:
    for message in messages(path):
        for program in OTHER_PROGRAMS:
            message = message.replace(program, "")
        assert not OPTION.findall(message), message


def test_every_word_is_used_and_means_an_option() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in LIBRARY)
    known = all_options()
    for word, meaning in OPTIONS.items():
        assert word in source, word
        assert set(OPTION.findall(meaning)) <= known and OPTION.findall(meaning), meaning


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("give a larger n_ctx or a shorter prompt", "give a larger -c or a shorter prompt"),
        (
            "drafting needs; decode plainly, draft=None",
            "drafting needs; decode plainly, --draft off",
        ),
        ("models/n_ctx/a.gguf: broken", "models/n_ctx/a.gguf: broken"),
        ("n_ctx.gguf: broken", "n_ctx.gguf: broken"),
        ("my_n_ctx or n_ctx2", "my_n_ctx or n_ctx2"),
        ("the context is n_ctx.", "the context is -c."),
    ],
)
def test_only_whole_words_are_translated(message: str, shown: str) -> None:
    assert in_options(message) == shown
