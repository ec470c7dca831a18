"""Options that several commands share, and functions that read their values."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from rich.console import Console

from ..errors import ArgumentError
from ..hub import DEMO_NAME
from ..runtime import rpc
from ..runtime.checkpoints import N_CHECKPOINTS
from ..runtime.context import Context
from ..runtime.context_options import N_CTX, N_CTX_MAX, N_CTX_UNIT, N_THREADS_MAX
from ..runtime.ffi import load
from ..runtime.ffi.calls import INT32_MAX
from ..runtime.kv_types import CACHE_TYPE, CACHE_TYPES
from ..runtime.loading import AUTO, LOADS
from ..runtime.model import ALL_LAYERS, MAIN_GPU, SPLIT_MODE, SPLIT_MODES, Model
from ..runtime.offload import ContextSize
from ..templates.fallbacks import FALLBACKS
from ..util.files import read_limited
from ..util.hint_throttle import is_due
from ..util.machine import overload, usable_cores
from ..util.records import MAX_BYTES
from ._completion import complete_model
from ._types import FILE, Integer, IntegerOrAuto

F = TypeVar("F", bound=Callable[..., Any])

MAX_TEXT = 1 << 30  # bytes of a text or prompt


model_argument = cloup.argument(
    "model",
    envvar="PYSELFSPEC_MODEL",
    default=DEMO_NAME,
    shell_complete=complete_model,
    help=f"GGUF file, or a name that pyselfspec models list shows.  "
    f"[default: $PYSELFSPEC_MODEL, else {DEMO_NAME}]",
)


def _set_verbose(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    load.set_verbose(value)


def parse_tokens(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Callback of options that take token ids, like ``1,5,9``."""
    if text is None:
        return None
    if not re.fullmatch(r"\s*-?[0-9]+\s*(,\s*-?[0-9]+\s*)*", text):
        raise click.BadParameter(f"{text!r} is not a list of token ids; give e.g. 1,5,9")
    return tuple(int(part) for part in text.split(","))


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator for several options, given in the order of the help text."""

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
    help="Show llama.cpp's log on stderr; generate also shows more figures, and serve logs "
    "requests.",
)
json_option = cloup.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
yes_option = cloup.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")

# For every command that loads a model.
common_options = cloup.option_group("Output", verbose_option, json_option)

ADVICE_S = 3600.0  # between two warnings about a busy machine
MACHINE = "Machine"
FLASH_ATTN = {"on": True, "off": False, "auto": None}


def _servers(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Callback of --rpc."""
    servers = tuple(filter(None, (text or "").split(",")))
    try:
        for server in servers:
            rpc.parse(server)
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from None
    return servers


def _scaled_files(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[Path, float], ...]:
    """Callback of --lora-scaled."""
    found = []
    for each in given:
        file, _, scale = each.rpartition(":")
        try:
            found.append((Path(file), float(scale)))
        except ValueError:
            raise click.BadParameter(f"{each!r} is not FILE:SCALE, like tone.gguf:0.5") from None
        if not Path(file).is_file():
            raise click.BadParameter(f"there is no file {file!r}")
    return tuple(found)


def _cache_type_option(part: str) -> Callable[[F], F]:
    return cloup.option(
        f"-ct{part}",
        f"--cache-type-{part}",
        type=click.Choice(list(CACHE_TYPES)),
        default=CACHE_TYPE,
        help=f"Type of the {part.upper()} cache; smaller types save memory.",
    )


def threads_option(help: str) -> Callable[[F], F]:
    return cloup.option(
        "-t", "--threads", type=Integer(1, N_THREADS_MAX), help=f"{help}  [default: all cores]"
    )


# Where and how passes are computed, see model_params and context_params. Names as in llama.cpp.
_DEVICE = (
    threads_option("Number of CPU threads; fewer can be faster while other programs run."),
    cloup.option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        "n_gpu_layers",
        type=IntegerOrAuto(ALL_LAYERS),
        help="Number of blocks to keep on GPUs, counted from the last; the output layer counts as "
        "one more; -1 for all, auto for as many as fit. No effect without GPUs.  [default: all]",
    ),
    cloup.option(
        "-sm",
        "--split-mode",
        type=click.Choice(list(SPLIT_MODES)),
        default=SPLIT_MODE,
        help="How to distribute the model over GPUs: none (one GPU holds all of it), layer (by "
        "blocks) or row (by rows of the weights). No effect without GPUs.",
    ),
    cloup.option(
        "-mg",
        "--main-gpu",
        type=Integer(0, INT32_MAX),
        default=MAIN_GPU,
        help="Index of the GPU that holds the model (--split-mode none) or its small tensors "
        "(--split-mode row). No effect without GPUs.",
    ),
    cloup.option(
        "--load-mode",
        type=click.Choice(list(LOADS)),
        default=AUTO,
        help="How to load weights for the CPU: copy them into memory (faster passes), map the file "
        "(loads faster, shared between processes), or auto: copy if twice the file's size is free.",
    ),
    cloup.option(
        "--rpc",
        metavar="HOST:PORT,...",
        callback=_servers,
        help="Keep the model on these machines, which run pyselfspec rpc-serve; -ngl limits the "
        "number of blocks there.",
    ),
    cloup.option(
        "-fa",
        "--flash-attn",
        type=click.Choice(list(FLASH_ATTN)),
        default="auto",
        help="Flash attention; auto: on where the device supports it.",
    ),
    _cache_type_option("k"),
    _cache_type_option("v"),
)
device_options = cloup.option_group(MACHINE, *_DEVICE)


def bar_console() -> Console:
    """Return a console for a progress bar on stderr, silent without a terminal: even a disabled bar
    would print the end of its line."""
    console = Console(stderr=True)
    console.quiet = not console.is_terminal
    return console


def _is_watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def model_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of Model that device_options and context_options set."""
    names = ("n_gpu_layers", "split_mode", "main_gpu", "rpc")
    own = {
        "load": options["load_mode"],
        "context_size": _context_size(options),
        "lora": (*options.get("lora", ()), *options.get("lora_scaled", ())),
    }
    return own | {name: options[name] for name in names}


def _context_size(options: Mapping[str, Any]) -> ContextSize:
    """Return the context that these options ask for, 0 tokens for as many as the model was trained
    with; slots of a server share one that is given."""
    n_ctx: int | None = options.get("ctx_size")
    if n_ctx is None:
        n_ctx = N_CTX * options.get("slots", 1)
    return ContextSize(n_ctx, options["cache_type_k"], options["cache_type_v"])


def context_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of Context that device_options set; warn of a busy machine."""
    if options["threads"] is None and _is_watched():
        _advise_threads()
    return {
        "n_threads": options["threads"],
        "flash_attn": FLASH_ATTN[options["flash_attn"]],
        "type_k": options["cache_type_k"],
        "type_v": options["cache_type_v"],
        "n_checkpoints": options.get("ctx_checkpoints", N_CHECKPOINTS),
    }


def _advise_threads() -> None:
    """Warn if other programs use the cores, which makes one thread per core slow."""
    load, n_cores = overload(), usable_cores()
    if load is not None and n_cores > 1 and is_due("threads", ADVICE_S):
        advice = (
            f"Warning: other programs keep this machine busy (load {load:.1f}, {n_cores} cores); "
            f"fewer threads may be much faster, try -t {n_cores // 2}"
        )
        click.echo(click.wrap_text(advice, bar_console().width), err=True)


# For commands that generate or measure: the size of the context and the device.
context_options = cloup.option_group(
    MACHINE,
    cloup.option(
        "-c",
        "--ctx-size",
        type=Integer(0),
        help=f"Context size in tokens, rounded up to a multiple of {N_CTX_UNIT}; 0 for as many as "
        f"the model was trained with.  [default: the model's, at most {N_CTX}]",
    ),
    cloup.option(
        "--ctx-checkpoints",
        type=Integer(1),
        default=N_CHECKPOINTS,
        help="For recurrent and hybrid models: number of checkpoints of the state to keep in "
        "memory, so that an edited or continued conversation is not read again from its beginning.",
    ),
    cloup.option(
        "--lora", type=FILE, multiple=True, help="File of a LoRA adapter to use; repeatable."
    ),
    cloup.option(
        "--lora-scaled",
        metavar="FILE:SCALE",
        multiple=True,
        callback=_scaled_files,
        help="File of a LoRA adapter to use with this scale; repeatable.",
    ),
    *_DEVICE,
)


def ctx_size(model: Model, options: Mapping[str, Any]) -> int | None:
    """Return the context size of context_options in tokens, None for the default. Warn of more than
    the model was trained with."""
    given: int | None = options["ctx_size"]
    if not given:
        return given if given is None else model.n_ctx_train
    n_trained = model.n_ctx_train
    n_useful = n_trained * options.get("slots", 1)  # slots of a server share the context
    if 0 < n_useful < given <= N_CTX_MAX:  # a larger one is an error
        beyond = "text beyond them may be nonsense, give a smaller -c"
        if model.n_positions is not None:
            beyond = f"it has no positions for more, so texts end after {model.n_positions}"
        click.echo(
            f"Warning: -c {given} is more than the {n_trained} tokens of context that the model "
            f"was trained with; {beyond}",
            err=True,
        )
    return given


def n_predict_option(default: int) -> Callable[[F], F]:
    return cloup.option(
        "-n",
        "--n-predict",
        "--max-tokens",
        "n_predict",
        type=Integer(-1),
        callback=_n_predict,
        default=default,
        help="Largest number of tokens to generate, -1 for as many as the context holds.",
    )


def _n_predict(_ctx: click.Context, _param: click.Parameter, n: int) -> int:
    if n == 0:
        raise click.BadParameter("0 is not allowed; give at least 1, or -1 for no limit")
    return INT32_MAX if n == -1 else n


chat_template_option = cloup.option(
    "--chat-template",
    "template",
    metavar="|".join((*FALLBACKS, "FILE")),
    help="Chat template to use instead of the model's own: a built-in one, or a Jinja file; plain "
    "suits models that were not trained to chat.",
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


@contextmanager
def open_context(model: str, options: Mapping[str, Any]) -> Iterator[tuple[Model, Context]]:
    """Yield a model, opened by path or name, and a context with the settings of context_options."""
    with (
        open_model(model, **model_params(options)) as loaded,
        loaded.context(n_ctx=ctx_size(loaded, options), **context_params(options)) as context,
    ):
        yield loaded, context


def open_model(name: str, **params: Any) -> Model:
    """Open a model by path or name; params: parameters of Model."""
    return Model(name, **params)


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
