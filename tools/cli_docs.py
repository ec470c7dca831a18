#!/usr/bin/env python3
"""Writes docs/cli.md, the reference of all commands, from their help texts.

python tools/cli_docs.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from pyselfspec.cli import main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
WIDTH = 80  # columns of the help texts, independent of the terminal
INTRODUCTION = """\
# Commands

The help text of every command. `python tools/cli_docs.py` writes this page.
"""


def pages(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    """The section of a command, then the ones of its subcommands."""
    width = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    with command.make_context(name, [], parent, resilient_parsing=True, **width) as context:
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        level = "##" if parent is None or parent.parent is None else "###"
        yield f"{level} {context.command_path}\n\n```text\n{text}\n```\n"
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                assert found is not None, f"{child} is listed"
                yield from pages(found, child, context)


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([INTRODUCTION, *pages(main, "pyselfspec", None)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
