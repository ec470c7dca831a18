"""The command line. Each file without an underscore is a command, a click command ``command``."""

# ruff: noqa: E402
from __future__ import annotations

import signal
import threading

_on_ctrl_c = signal.getsignal(signal.SIGINT)
_alone = threading.current_thread() is threading.main_thread()
if _alone:  # while modules load, Ctrl-C ends the program without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from shutil import get_terminal_size
from typing import Any

import click
import cloup

from .. import __version__
from ..errors import SelfSpecError, UnknownModelError, out_of_memory
from ..runtime.processor import cpu_backend, variant
from ..util import build
from ..util.paths import elsewhere, on_one_line
from ..util.streams import take_any_text
from ._folder import CommandFolder
from ._signals import as_ctrl_c, exit_status

WIDTH_MIN = 20  # columns of a terminal


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors meant for users into one line: status 2 for an unknown model, else 1."""
    try:
        yield
    except UnknownModelError as error:
        raise click.UsageError(on_one_line(str(error))) from error
    except SelfSpecError as error:
        raise click.ClickException(on_one_line(str(error))) from error
    except BrokenPipeError:
        raise  # click ends quietly when the reader of a pipe has gone
    except OSError as error:
        where = error.filename or ("stdout" if error.errno == ENOSPC else "stdin or stdout")
        message = on_one_line(f"{where}: {error.strerror or error}{elsewhere(where)}")
        raise click.ClickException(message) from error
    except MemoryError:
        raise click.ClickException(str(out_of_memory())) from None
    except KeyboardInterrupt:
        sys.exit(exit_status())


def _one_line_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {on_one_line(str(message))}", err=True)


class Program(CommandFolder):
    """The whole command line. Errors meant for users become one line, and signals act as Ctrl-C."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with one_line_errors():  # help and version are printed here
            return super().make_context(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = "options go after a command, like pyselfspec chat -m MODEL"
            raise click.UsageError(f"{error.option_name}: {advice}", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_errors(), as_ctrl_c(), warnings.catch_warnings():
            warnings.showwarning = _one_line_warning
            if sys.stdout is None:
                raise OSError("stdout is closed")
            take_any_text(sys.stdout)
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(
            f"pyselfspec {__version__}, library {build.BUILD_ID}, CPU code {variant(cpu_backend())}"
        )
        ctx.exit()


@click.group(
    cls=Program,
    package=__name__,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        # click cannot lay out a help text in fewer columns; None: as many as the terminal has
        "terminal_width": WIDTH_MIN if get_terminal_size().columns < WIDTH_MIN else None,
    },
)
@cloup.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run GGUF models faster on CPUs, with the same output (lossless speculative decoding).

    Each step drafts several tokens, mostly copies of earlier text, and the model verifies them in
    one pass.

    \b
    pyselfspec models pull smollm2-135m
    pyselfspec chat smollm2-135m
    pyselfspec bench model.gguf
    """


if _alone:
    signal.signal(signal.SIGINT, _on_ctrl_c)
