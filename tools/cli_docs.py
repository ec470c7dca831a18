#!/usr/bin/env python3
"""Writes docs/cli.md, the reference of all commands, from their help texts. Options that several
commands share are listed once.

python tools/cli_docs.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import cloup
from cloup.formatting import HelpSection

from pyselfspec.cli import main
from pyselfspec.cli._help import SHOWS_ALL

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
WIDTH = 80  # columns of the help texts, independent of the terminal
SHARED = "Shared options"
INTRODUCTION = f"""\
# Commands

The help text of every command, with all its options, as --help-all shows them. Those of several
commands are below [{SHARED}](#shared-options). `python tools/cli_docs.py` writes this page.
"""

Record = tuple[str, str]  # names and help text of an option


@dataclass(frozen=True, slots=True)
class Page:
    """A command with its options, by heading."""

    command: click.Command
    context: click.Context
    options: dict[str, list[Record]]

    @property
    def name(self) -> str:
        return self.context.command_path

    def records(self) -> Iterator[tuple[str, Record]]:
        """Yield each option with its heading."""
        return ((title, each) for title, records in self.options.items() for each in records)


def pages(command: click.Command, name: str, parent: click.Context | None) -> Iterator[Page]:
    """Yield a command, then those of a group."""
    width = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    with command.make_context(name, [], parent, resilient_parsing=True, **width) as context:
        context.meta[SHOWS_ALL] = True
        yield Page(command, context, _options(command, context))
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                assert found is not None, f"{child} is listed"
                yield from pages(found, child, context)


def _options(command: click.Command, context: click.Context) -> dict[str, list[Record]]:
    if not isinstance(command, cloup.Command):
        return {}
    groups = [*command.option_groups, command.get_default_option_group(context)]
    return {each.title: each.get_help_records(context) for each in groups if not each.hidden}


def shared(found: Sequence[Page]) -> dict[tuple[str, tuple[str, ...]], list[Record]]:
    """Return the options of several commands, by heading and commands."""
    users: dict[tuple[str, Record], list[str]] = {}
    for page in found:
        for place in page.records():
            users.setdefault(place, []).append(page.name)
    groups: dict[tuple[str, tuple[str, ...]], list[Record]] = {}
    for (title, record), names in users.items():
        if len(names) > 1:
            groups.setdefault((title, tuple(names)), []).append(record)
    return groups


def section(page: Page, left_out: set[tuple[str, Record]]) -> str:
    """Return the section of a command, in Markdown. left_out: the shared options."""
    command, context = page.command, page.context
    titles = []
    if isinstance(command, cloup.Command):
        formatter = context.make_formatter()
        assert isinstance(formatter, cloup.HelpFormatter)
        command.format_usage(context, formatter)
        command.format_help_text(context, formatter)
        arguments = command.get_arguments_help_section(context)
        sections = [] if arguments is None else [arguments]
        for title, records in page.options.items():
            own = [each for each in records if (title, each) not in left_out]
            sections += [HelpSection(title, own)] if own else []
            titles += [title.partition(" (")[0]] if len(own) < len(records) else []
        formatter.write_many_sections(sections)
        text = formatter.getvalue()
    else:
        text = command.get_help(context)
    level = "##" if context.parent is None or context.parent.parent is None else "###"
    more = f"\n{SHARED}: {', '.join(titles)}\n" if titles else ""
    return f"{level} {page.name}\n\n{_block(text)}{more}"


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return f"```text\n{lines}\n```\n"


def _shared_section(
    found: Sequence[Page], groups: dict[tuple[str, tuple[str, ...]], list[Record]]
) -> Iterator[str]:
    yield f"## {SHARED}\n"
    formatter_of = next(page.context for page in found if page.options).make_formatter
    for title in dict.fromkeys(title for title, _ in groups):
        yield f"### {title}\n"
        for (heading, names), records in groups.items():
            if heading == title:
                formatter = formatter_of()
                formatter.write_dl(records)
                short = ", ".join(name.removeprefix("pyselfspec ") for name in names)
                yield f"{short}:\n\n{_block(formatter.getvalue())}"


def page() -> str:
    """Return the whole page, in Markdown."""
    found = [*pages(main, "pyselfspec", None)]
    groups = shared(found)
    left_out = {(title, each) for (title, _), records in groups.items() for each in records}
    sections = [section(each, left_out) for each in found]
    return "\n".join([INTRODUCTION, *sections, *_shared_section(found, groups)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
