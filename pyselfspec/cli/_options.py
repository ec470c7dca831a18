"""Options that several commands share, and functions that read their values."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import cloup

from .. import plots
from ..errors import ArgumentError
from ..runtime.ffi import load
from ..templates.fallbacks import FALLBACKS
from ..util.files import read_limited, require_no_model
from ..util.paths import without_password
from ..util.records import MAX_BYTES
from ..util.sizes import INT32_MAX
from ._types import FILE, F, Integer, of_value, option, rare, together

MAX_TEXT = 1 << 30  # bytes of a text or prompt


def parse_tokens(text: str) -> tuple[int, ...]:
    """Read token ids, like ``1,5,9``."""
    if not re.fullmatch(r"\s*-?[0-9]+\s*(,\s*-?[0-9]+\s*)*", text):
        raise click.BadParameter(f"{text!r} is not a list of token ids; give e.g. 1,5,9")
    return tuple(int(part) for part in text.split(","))


verbose_option = cloup.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=of_value(load.set_verbose),
    help="Show more, and llama.cpp's log, on stderr.",
)
json_option = cloup.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
yes_option = cloup.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")

common_options = together(verbose_option, json_option)  # of every command that loads a model


def n_predict_option(default: int) -> Any:
    return option(
        "-n",
        "--n-predict",
        "--max-tokens",
        type=Integer(-1),
        callback=of_value(_n_predict),
        default=default,
        help="Most tokens to generate, -1 for no limit.",
    )


def _n_predict(n: int) -> int:
    if n == 0:
        raise click.BadParameter("0 is not allowed; give at least 1, or -1 for no limit")
    return INT32_MAX if n == -1 else n


def template_option() -> Any:
    return rare(
        "--chat-template",
        metavar="|".join((*FALLBACKS, "FILE")),
        help="Chat template to use instead of the model's own: a built-in one, or a Jinja file; "
        "plain suits models that were not trained to chat.",
    )


def mmproj_option() -> Any:
    return rare(
        "--mmproj",
        type=FILE,
        help="Projector file of the model, with which it reads pictures.",
    )


def template_from(given: str | None) -> str | None:
    """Return a template's name, or the text of its file. Raises ArgumentError for a file that holds
    no template."""
    if given is None or given in FALLBACKS:
        return given
    from ..templates.rendering import Renderer  # jinja2 is slow to load

    source = read_text(given)
    try:
        Renderer(source)
    except ArgumentError as error:
        raise ArgumentError(f"{given}: {error}") from None
    return source


STDIN = "-"


def require_one_reader_of_stdin(*paths: str | None) -> None:
    if paths.count(STDIN) > 1:
        raise click.UsageError(
            "stdin can be read only once; give - for one of prompt, mask and grammar"
        )


def read_text(path: str, max_bytes: int = MAX_BYTES) -> str:
    """Return the UTF-8 text of a file, or of stdin for ``-``. Raises ArgumentError for other text,
    or more than ``max_bytes``."""
    if path == STDIN and sys.stdin is None:
        raise ArgumentError("stdin is closed; give a file")
    if not path:
        raise ArgumentError("the name of a file is empty; give a file, or - for stdin")
    where = "stdin" if path == STDIN else path
    try:
        if path == STDIN:
            data = read_limited(sys.stdin.buffer, max_bytes)
        else:
            with Path(path).open("rb") as file:
                data = read_limited(file, max_bytes)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{where} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from None
    except ArgumentError as error:
        raise ArgumentError(f"{where} is too long: {error}") from None


def prompt_option(what: str) -> Any:
    return rare(
        "-p",
        "--prompt",
        metavar="TEXT",
        callback=of_value(_typed),
        help=f"{what}, in place of the argument TEXT.",
    )


def _typed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(
            "this is not UTF-8 text, or your locale is not UTF-8: set LC_ALL=C.UTF-8, or give a "
            "file with -f"
        ) from None
    return text


def prompt_file_option(help: str) -> Any:
    return option("-f", "--file", metavar="FILE", help=help)


def text_argument(help: str) -> Callable[[F], F]:
    """Return the argument after MODEL."""
    return cloup.argument("text", required=False, callback=of_value(_typed), help=help)


def command_line() -> str:
    return without_password(shlex.join(["pyselfspec", *sys.argv[1:]]))


def plot_option(action: str) -> Callable[[F], F]:
    """Return the option --plot; ``action``: verb and object of its help text."""
    return cloup.option(
        "--plot",
        type=FILE,
        callback=of_value(plots.require),
        help=f"{action} into this file, .png or .svg; replaced if it exists.",
    )


def target(path: Path) -> Path:
    """Return the path of a file to write. Raises ArgumentError for a model's."""
    require_no_model(path)
    return path


def out_option(what: str, default: str, check: Callable[[Path], Path] = target) -> Callable[[F], F]:
    """Return the option --out; ``what``: the result of the command."""
    return cloup.option(
        "--out",
        type=FILE,
        callback=of_value(check),
        help=f"Write {what} to this file; replaced if it exists.  [default: {default}]",
    )


def results_option(default: str) -> Any:
    return rare(
        "--results",
        type=FILE,
        callback=of_value(target),
        help="Keep each result in this file as soon as it is measured; resumed if it exists.  "
        f"[default: {default}]",
    )
