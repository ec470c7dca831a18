"""The command line has every option that a message of the library names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from command_line import commands

import pyselfspec

ROOT = Path(pyselfspec.__file__).parent
# In an installed package; these name options of their own.
NOT_OURS = {"converter", "bindings"}
OPTION = re.compile(r" \((-{1,2}[a-z][a-z-]*)")  # in brackets after the name of the parameter


def named(path: Path) -> Iterator[str]:
    """Yield the options that the strings of this file name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from OPTION.findall(node.value)


def test_every_option_in_a_message_exists() -> None:
    exist = {option for _, command in commands() for p in command.params for option in p.opts}
    paths = (p for p in ROOT.rglob("*.py") if not NOT_OURS & {*p.relative_to(ROOT).parts})
    found = {option: path.name for path in paths for option in named(path)}
    assert {"-c", "-ngl", "--draft"} <= found.keys()
    assert {option: name for option, name in found.items() if option not in exist} == {}
