"""The command line. One file per command, named like it, with a click command ``command``."""

# ruff: noqa: E402
from __future__ import annotations

import signal
import threading

_on_ctrl_c = signal.getsignal(signal.SIGINT)
_alone = threading.current_thread() is threading.main_thread()
if _alone:  # while modules load, Ctrl-C is a quick end without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from errno import ENOSPC
from typing import Any

import click
import cloup

from .. import __version__
from ..errors import SelfSpecError
from ..runtime.processor import cpu_backend, variant
from ..util import by_name
from ..util.build import BUILD_ID
from ..util.paths import on_one_line
from ._signals import as_ctrl_c, exit_status
from ._words import in_options

BAD_ALLOC = "std::bad_alloc"  # how llama.cpp says that memory is short
OUT_OF_MEMORY = (
    "out of memory; give a smaller -c, other types with -ctk and -ctv, or a smaller model"
)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Errors meant for users become one line and status 1."""
    try:
        yield
    except SelfSpecError as error:
        message = OUT_OF_MEMORY if BAD_ALLOC in str(error) else on_one_line(in_options(str(error)))
        raise click.ClickException(message) from error
    except BrokenPipeError:
        raise  # click ends quietly when the reader of a pipe has gone
    except OSError as error:
        where = error.filename or ("stdout" if error.errno == ENOSPC else "stdin or stdout")
        message = on_one_line(f"{where}: {error.strerror or error}")
        raise click.ClickException(message) from error
    except MemoryError:
        raise click.ClickException(OUT_OF_MEMORY) from None
    except KeyboardInterrupt:
        sys.exit(exit_status())


def _one_line_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {on_one_line(in_options(str(message)))}", err=True)


ELSEWHERE = {"run": ["chat"], "show": ["info"], "remove": ["rm"]}  # what Ollama calls our commands


class CommandFolder(click.Group):
    """Commands are the modules of this folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*by_name.names(__path__)]  # the name list is a command of this folder

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        cpu_backend()  # or an error, before numpy is imported
        command: click.Command = by_name.load(__name__, "command", cmd_name).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = ELSEWHERE.get(args[0]) or get_close_matches(
                args[0], self.list_commands(ctx), 1, 0.4
            )
            if not near:
                raise
            hint = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(hint, ctx) from None

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with one_line_errors():  # help and version are printed here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_errors(), as_ctrl_c(), warnings.catch_warnings():
            warnings.showwarning = _one_line_warning
            if sys.stdout is None:
                raise OSError("stdout is closed")
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="replace")  # terminals without Unicode
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(
            f"pyselfspec {__version__}, library {BUILD_ID}, CPU code {variant(cpu_backend())}"
        )
        ctx.exit()


@click.group(cls=CommandFolder, context_settings={"help_option_names": ["-h", "--help"]})
@cloup.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run GGUF models faster, with the same output (lossless speculative decoding).

    Several tokens at a time are drafted, mostly copies of earlier text, and the model verifies them
    in one pass.
    """


if _alone:
    signal.signal(signal.SIGINT, _on_ctrl_c)
