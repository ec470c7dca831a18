"""Messages of the library name its parameters; the command line shows its options instead."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import commands

import pyselfspec
from pyselfspec.cli._words import OPTIONS, in_options
from pyselfspec.errors import ArgumentError, Parameter, prompt_too_long

ROOT = Path(pyselfspec.__file__).parent
# In an installed package; these name options and parameters of their own.
NOT_OURS = {"converter", "bindings"}
LIBRARY = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if not {"cli", "serve", *NOT_OURS} & {*path.relative_to(ROOT).parts}
]
OPTION = re.compile(r"(?<![\w-])-{1,2}[a-z][a-z-]*")
OTHER_PROGRAMS = {"llama-gguf-split --merge"}


def messages(path: Path) -> Iterator[str]:
    """Yield the literal parts of the error messages in this file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            parts = (part for part in ast.walk(node.exc) if isinstance(part, ast.Constant))
            yield "".join(part.value for part in parts if isinstance(part.value, str))


def all_options() -> set[str]:
    return {option for _, command in commands() for p in command.params for option in p.opts}


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_library_knows_no_options(path: Path) -> None:
    for message in messages(path):
        for program in OTHER_PROGRAMS:
            message = message.replace(program, "")
        assert not OPTION.findall(message), message


def parameters(path: Path) -> set[str]:
    """Return the parameters that this file's messages name by a constant."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {
        node.args[0].value
        for node in calls
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Parameter"
        and isinstance(node.args[0], ast.Constant)
    }


def test_every_parameter_has_an_option() -> None:
    assert set(OPTIONS) == set().union(*map(parameters, LIBRARY))
    for option in OPTIONS.values():
        names = OPTION.findall(option)
        assert names and set(names) <= all_options(), option


def test_parameters_never_stand_in_plain_text() -> None:
    """Such a name would not become an option."""
    for path in LIBRARY:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for arg in node.exc.args:
                    text = "".join(
                        part.value
                        for part in ast.walk(arg)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    )
                    assert text in OPTIONS or not re.search(r"\b(n_ctx|type_[kv])\b", text), path


def test_only_parameters_become_options() -> None:
    error = ArgumentError("n_ctx.gguf: give a larger ", Parameter("n_ctx"), " or a shorter prompt")
    assert str(error) == "n_ctx.gguf: give a larger n_ctx or a shorter prompt"
    assert in_options(error) == "n_ctx.gguf: give a larger -c or a shorter prompt"
    assert in_options("n_ctx") == "n_ctx"


def test_other_parameters_keep_their_names() -> None:
    assert in_options(ArgumentError(Parameter("n_seq_max"), " is at most 256")) == (
        "n_seq_max is at most 256"
    )


def test_messages_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(prompt_too_long(9, 8)))
    assert in_options(error) == in_options(prompt_too_long(9, 8))
