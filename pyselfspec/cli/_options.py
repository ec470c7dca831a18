"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from rich.console import Console

from ..chat.fallbacks import FALLBACKS
from ..errors import ArgumentError
from ..hub import DEMO_NAME
from ..runtime import _lib, rpc
from ..runtime._lib import INT32_MAX
from ..runtime.context import CACHE_TYPE, CACHE_TYPES, N_CTX, N_CTX_MAX, N_CTX_UNIT, N_THREADS_MAX
from ..runtime.model import ALL_LAYERS, MAIN_GPU, SPLIT_MODE, SPLIT_MODES, Model
from ..util.files import read_limited
from ..util.machine import overload, usable_cores
from ..util.records import MAX_BYTES
from ..util.seldom import is_due
from ._completion import complete_model

F = TypeVar("F", bound=Callable[..., Any])

MAX_TEXT = 1 << 30  # bytes of a text or prompt


def model_argument(command: F) -> F:
    return click.argument(
        "model", envvar="PYSELFSPEC_MODEL", default=DEMO_NAME, shell_complete=complete_model
    )(command)


def _set_verbose(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    _lib.set_verbose(value)


def parse_tokens(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Callback of options that take token ids, like ``1,5,9``."""
    if text is None:
        return None
    if not re.fullmatch(r"\s*-?[0-9]+\s*(,\s*-?[0-9]+\s*)*", text):
        raise click.BadParameter(f"{text!r} is no list of token ids; write e.g. 1,5,9")
    return tuple(int(part) for part in text.split(","))


class FiniteRange(click.FloatRange):
    """A range of numbers that leaves out nan and the infinite ones."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator for several options, listed in the order of the help text."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


verbose_option = cloup.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_set_verbose,
    help="Show llama.cpp's log on stderr, more details in the closing line, and a line for each "
    "request of a server.",
)

# What every command that loads a model takes.
common_options = cloup.option_group(
    "Output",
    verbose_option,
    cloup.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)

ADVICE_S = 3600.0  # between two times that advice is given
MACHINE = "Machine"
FLASH_ATTN = {"on": True, "off": False, "auto": None}


def _servers(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
    """Callback of --rpc."""
    servers = tuple(filter(None, text.split(",")))
    try:
        for server in servers:
            rpc.parse(server)
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from None
    return servers


def _cache_type_option(part: str) -> Callable[[F], F]:
    return cloup.option(
        f"-ct{part}",
        f"--cache-type-{part}",
        type=click.Choice(list(CACHE_TYPES)),
        default=CACHE_TYPE,
        show_default=True,
        help=f"What {part.upper()} of the context is stored as.",
    )


# Where and how passes are computed, see model_params and context_params. Names as in llama.cpp.
_DEVICE = (
    cloup.option(
        "-t",
        "--threads",
        type=click.IntRange(1, N_THREADS_MAX),
        help="CPU threads; fewer may be faster while other programs run.  [default: all cores]",
    ),
    cloup.option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        "n_gpu_layers",
        type=click.IntRange(min=ALL_LAYERS),
        help="How many blocks, counted from the last, to keep on GPUs; the head counts as one "
        "more; -1 for all. No effect without GPUs.  [default: all]",
    ),
    cloup.option(
        "-sm",
        "--split-mode",
        type=click.Choice(list(SPLIT_MODES)),
        default=SPLIT_MODE,
        show_default=True,
        help="How several GPUs share the model: one holds it, by blocks, or by rows of weights. No "
        "effect without GPUs.",
    ),
    cloup.option(
        "-mg",
        "--main-gpu",
        type=click.IntRange(0, INT32_MAX),
        default=MAIN_GPU,
        show_default=True,
        help="The GPU of split mode none, and of small tensors with row. No effect without GPUs.",
    ),
    cloup.option(
        "--rpc",
        metavar="HOST:PORT,...",
        callback=_servers,
        default="",
        help="Keep the model on machines that run pyselfspec rpc-serve; -ngl says how much.",
    ),
    cloup.option(
        "-fa",
        "--flash-attn",
        type=click.Choice(list(FLASH_ATTN)),
        default="auto",
        show_default=True,
        help="Flash attention; auto: where the device has it.",
    ),
    _cache_type_option("k"),
    _cache_type_option("v"),
)
device_options = cloup.option_group(MACHINE, *_DEVICE)


def bar_console() -> Console:
    """For a progress bar on stderr: silent where nobody watches, since a bar that is off would end
    its line all the same."""
    console = Console(stderr=True)
    console.quiet = not console.is_terminal
    return console


def _is_watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def model_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """What device_options say about loading a Model."""
    return {name: options[name] for name in ("n_gpu_layers", "split_mode", "main_gpu", "rpc")}


def context_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """What device_options say about making a Context."""
    if options["threads"] is None and _is_watched():
        _advise_threads()
    return {
        "n_threads": options["threads"],
        "flash_attn": FLASH_ATTN[options["flash_attn"]],
        "type_k": options["cache_type_k"],
        "type_v": options["cache_type_v"],
    }


def _advise_threads() -> None:
    """Warn on a busy machine, where as many threads as cores mostly wait for each other."""
    load, n_cores = overload(), usable_cores()
    if load is not None and n_cores > 1 and is_due("threads", ADVICE_S):
        advice = (
            f"Warning: other programs keep this machine busy (load {load:.1f}, {n_cores} cores); "
            f"fewer threads may be much faster: try -t {n_cores // 2}"
        )
        click.echo(click.wrap_text(advice, bar_console().width), err=True)


# What decides the speed of a context.
context_options = cloup.option_group(
    MACHINE,
    cloup.option(
        "-c",
        "--ctx-size",
        type=click.IntRange(min=0),
        help=f"Tokens of context, rounded up to a multiple of {N_CTX_UNIT}; 0 for as many as the "
        f"model was trained with.  [default: the model's, {N_CTX} at most]",
    ),
    *_DEVICE,
)


def ctx_size(model: Model, options: Mapping[str, Any]) -> int | None:
    """Tokens of context that context_options ask for, None for the default. Warns of more than the
    model was trained with."""
    given: int | None = options["ctx_size"]
    if not given:
        return given if given is None else model.n_ctx_train
    n_trained = model.n_ctx_train
    n_useful = n_trained * options.get("slots", 1)  # slots of a server share the context
    if 0 < n_useful < given <= N_CTX_MAX:  # more is an error
        click.echo(
            f"Warning: -c {given} is more than the {n_trained} tokens of context that the model "
            "was trained with; what it writes beyond them may be nonsense",
            err=True,
        )
    return given


def n_predict_option(default: int) -> Callable[[F], F]:
    return cloup.option(
        "-n",
        "--n-predict",
        "--max-tokens",
        "n_predict",
        type=click.IntRange(min=-1),
        callback=_n_predict,
        default=default,
        show_default=True,
        help="Tokens to generate at most, -1 for no limit but the context.",
    )


def _n_predict(_ctx: click.Context, _param: click.Parameter, n: int) -> int:
    if n == 0:
        raise click.BadParameter("must be at least 1, or -1 for no limit")
    return INT32_MAX if n == -1 else n


chat_template_option = cloup.option(
    "--chat-template",
    "template",
    metavar="|".join((*FALLBACKS, "FILE")),
    help="A chat template in place of the model's own; plain: for models that were not made to "
    "chat; or a file with a template in Jinja.",
)


def template_from(given: str | None) -> str | None:
    """A name, or what the file holds. Raises ArgumentError for a file that holds no template."""
    if given is None or given in FALLBACKS:
        return given
    from ..chat.rendering import Rendering  # jinja2 takes its time to load

    source = read_text(given)
    try:
        Rendering(source)
    except ArgumentError as error:
        raise ArgumentError(f"{given}: {error}") from None
    return source


def open_model(name: str, **params: Any) -> Model:
    """The model at a path or of a name; params as for Model."""
    return Model(name, **params)


STDIN = "-"


def require_one_reader_of_stdin(*paths: str | None) -> None:
    if paths.count(STDIN) > 1:
        raise click.UsageError("stdin can be read once, for the prompt, the mask or the grammar")


def read_text(path: str, max_bytes: int = MAX_BYTES) -> str:
    """The UTF-8 text of a file, or of stdin for ``-``."""
    if path == STDIN and sys.stdin is None:
        raise ArgumentError("stdin is closed")
    if not path:
        raise ArgumentError("the name of a file is empty")
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
