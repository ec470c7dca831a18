"""Command groups as folders with one file per command, named like its click ``command``."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from ..runtime.processor import cpu_backend
from ..util import plugins

SYNONYMS = {  # commands of Ollama and others
    "help": "--help",
    "version": "--version",
    "run": "chat",
    "show": "models info",
    "remove": "models rm",
    "ls": "models list",
}


class CommandFolder(click.Group):
    """Group of the commands in the folder of ``package``. A command is imported when it is used or
    listed with its help text."""

    def __init__(self, *args: Any, package: str, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*plugins.names(self._path)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        cpu_backend()  # or an error, before numpy is imported
        command: click.Command = plugins.load(self._package, "command", cmd_name).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with. Raises click.UsageError, with a suggestion
        from the whole program, if there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            root, typed = ctx.find_root(), args[0]
            assert isinstance(root.command, CommandFolder)
            paths = reversed([*root.command.paths(root)])
            by_last_word = {path.rpartition(" ")[2]: path for path in paths}
            if self is not root.command:  # its own commands come first: models info, not info
                group = ctx.command_path.removeprefix(f"{root.command_path} ")
                by_last_word |= {name: f"{group} {name}" for name in self.list_commands(ctx)}
            near = get_close_matches(typed, by_last_word, 1, 0.4)
            if typed not in SYNONYMS and not near:
                raise
            found = SYNONYMS[typed] if typed in SYNONYMS else by_last_word[near[0]]
            hint = f"{error.message} Did you mean {found!r}?"
            raise click.UsageError(hint, ctx) from None

    def paths(self, ctx: click.Context) -> Iterator[str]:
        """Yield the command lines below this group, like ``models pull``, without loading any
        command but groups."""
        yield from self.list_commands(ctx)
        for module in pkgutil.iter_modules(self._path):
            group = self.get_command(ctx, module.name) if module.ispkg else None
            if isinstance(group, CommandFolder):
                yield from (f"{module.name} {each}" for each in group.paths(ctx))

    @property
    def _path(self) -> list[str]:
        return [*import_module(self._package).__path__]
