"""The command line. One file per command, named like it; each has a click command called
``command``."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import click

from .. import BUILD_ID, __version__
from ..errors import SelfSpecError


class CommandFolder(click.Group):
    """Commands are the modules of this folder; errors meant for users become one line and status
    1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        modules = (m.name for m in pkgutil.iter_modules(__path__))
        return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except SelfSpecError as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            raise  # click ends quietly when the reader of a pipe has gone
        except OSError as error:
            raise click.ClickException(_os_error(error)) from error


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else "cannot read or write: "
    return f"{where}{error.strerror or error}"


@click.group(cls=CommandFolder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, "--version", message=f"pyselfspec {__version__}, library {BUILD_ID}"
)
def main() -> None:
    """Lossless self-speculative generation with GGUF models.

    The model drafts with part of itself, checks the draft in one full pass, and the text stays its
    own.
    """
