"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import ArgumentError
from ..masks import formats
from ..masks.layer_mask import LayerMask
from ..runtime import _lib
from ..runtime._lib import INT32_MAX
from ..runtime.context import CACHE_TYPE, CACHE_TYPES, N_CTX
from ..runtime.model import MAIN_GPU, SPLIT_MODE, SPLIT_MODES, Model
from ..runtime.sampling import SEED_MAX, SamplingParams
from ..speculate import adapt, candidates, controllers, drafters
from ..speculate.adapt import Adapt
from ..speculate.controllers.fixed import Fixed
from ..speculate.prepared import AUTO
from ..util.files import require_target
from ..util.paths import DEMO
from ._drafter_options import options_from

F = TypeVar("F", bound=Callable[..., Any])

DEMO_WORD = "demo"
DEFAULT = SamplingParams()


def model_argument(command: F) -> F:
    return click.argument("model", envvar="PYSELFSPEC_MODEL", default=DEMO_WORD)(command)


def _set_verbose(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    _lib.set_verbose(value)


def parse_blocks(_ctx: click.Context, _param: click.Parameter, text: str) -> frozenset[int]:
    """Callback of options that take block numbers and ranges, like ``3,5,8-11``."""
    blocks: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if not match:
            raise click.BadParameter(f"{part!r} is no block and no range; write e.g. 3,5,8-11")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise click.BadParameter(f"the range {part.strip()} runs backwards")
        blocks += range(first, last + 1)
    for il, n_named in Counter(blocks).most_common(1):
        if n_named > 1:
            raise click.BadParameter(f"block {il} is named twice")
    return frozenset(blocks)


def parse_tokens(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Callback of options that take token ids, like ``1,5,9``."""
    if text is None:
        return None
    if not re.fullmatch(r"\s*-?[0-9]+\s*(,\s*-?[0-9]+\s*)*", text):
        raise click.BadParameter(f"{text!r} is no list of token ids; write e.g. 1,5,9")
    return tuple(int(part) for part in text.split(","))


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator for several options, listed in the order of the help text."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# What every command that loads a model takes.
common_options = _together(
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_verbose,
        help="Show llama.cpp's log on stderr.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)

FLASH_ATTN = {"on": True, "off": False, "auto": None}


def _cache_type_option(part: str) -> Callable[[F], F]:
    return click.option(
        f"-ct{part}",
        f"--cache-type-{part}",
        type=click.Choice(list(CACHE_TYPES)),
        default=CACHE_TYPE,
        show_default=True,
        help=f"What {part.upper()} of the context is stored as.",
    )


# Where and how passes are computed, see model_params and context_params. Names as in llama.cpp.
device_options = _together(
    click.option(
        "-t", "--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]"
    ),
    click.option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        "n_gpu_layers",
        type=click.IntRange(min=0),
        help="Last blocks to keep on GPUs, the head counts as one more.  [default: all]",
    ),
    click.option(
        "-sm",
        "--split-mode",
        type=click.Choice(list(SPLIT_MODES)),
        default=SPLIT_MODE,
        show_default=True,
        help="How several GPUs share the model: one holds it, by blocks, or by rows of weights.",
    ),
    click.option(
        "-mg",
        "--main-gpu",
        type=click.IntRange(0, INT32_MAX),
        default=MAIN_GPU,
        show_default=True,
        help="The GPU of split mode none, and of small tensors with row.",
    ),
    click.option(
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


def model_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """What device_options say about loading a Model."""
    return {name: options[name] for name in ("n_gpu_layers", "split_mode", "main_gpu")}


def context_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """What device_options say about making a Context."""
    return {
        "n_threads": options["threads"],
        "flash_attn": FLASH_ATTN[options["flash_attn"]],
        "type_k": options["cache_type_k"],
        "type_v": options["cache_type_v"],
    }


# What decides the speed of a context.
context_options = _together(
    click.option(
        "-c",
        "--ctx-size",
        type=click.IntRange(min=1),
        help=f"Tokens of context.  [default: the model's, {N_CTX} at most]",
    ),
    device_options,
)


def n_predict_option(default: int) -> Callable[[F], F]:
    return click.option(
        "-n",
        "--n-predict",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Tokens to generate at most.",
    )


# How the next token is chosen, see sampling_from.
sampling_options = _together(
    click.option(
        "--temp",
        type=click.FloatRange(min=0),
        default=DEFAULT.temperature,
        show_default=True,
        help="Temperature, 0 for greedy.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=DEFAULT.top_k,
        show_default=True,
        help="Keep the k likeliest tokens, 0 for all.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1),
        default=DEFAULT.top_p,
        show_default=True,
        help="Keep tokens up to this total probability.",
    ),
    click.option(
        "--min-p",
        type=click.FloatRange(0, 1),
        default=DEFAULT.min_p,
        show_default=True,
        help="Keep tokens of this probability relative to the likeliest.",
    ),
    click.option(
        "--repeat-penalty",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT.repeat_penalty,
        show_default=True,
        help="Penalty for repeated tokens, 1 for none.",
    ),
    click.option(
        "--repeat-last-n",
        type=click.IntRange(min=0),
        default=DEFAULT.repeat_last_n,
        show_default=True,
        help="How far back the penalty looks.",
    ),
    click.option(
        "--seed", type=click.IntRange(0, SEED_MAX), help="Seed of the sampler.  [default: random]"
    ),
    click.option(
        "--grammar", "grammar_file", help="File with a GBNF grammar that the text must follow."
    ),
)


def sampling_from(options: Mapping[str, Any]) -> SamplingParams:
    grammar = options["grammar_file"]
    return SamplingParams(
        temperature=options["temp"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        repeat_penalty=options["repeat_penalty"],
        repeat_last_n=options["repeat_last_n"],
        seed=options["seed"],
        grammar=None if grammar is None else read_text(grammar),
    )


# What drafts skip, see mask_from.
mask_options = _together(
    click.option("--mask", "mask_file", help="JSON file with the mask to draft with, - for stdin."),
    click.option(
        "--skip-attn",
        metavar="BLOCKS",
        callback=parse_blocks,
        default="",
        help="Blocks whose attention the draft skips, like 3,5,8-11.",
    ),
    click.option(
        "--skip-ffn",
        metavar="BLOCKS",
        callback=parse_blocks,
        default="",
        help="Blocks whose feed-forward part the draft skips.",
    ),
    click.option(
        "--exit-layer",
        type=click.IntRange(min=1),
        help="Draft with this many first blocks only, as LayerSkip does.",
    ),
)

# How drafts are made, see controller_from.
draft_options = _together(
    click.option(
        "--draft",
        type=click.Choice([AUTO, "off", *drafters.names()]),
        default=AUTO,
        show_default=True,
        help="How to draft; off: plain decoding; auto: what suits the model.",
    ),
    click.option(
        "-o",
        "--draft-option",
        "drafter_options",
        metavar="KEY=VALUE",
        multiple=True,
        help="An option of the drafter that --draft names; may be given several times.",
    ),
    mask_options,
    click.option(
        "--profile",
        type=click.Choice(["auto", "none"]),
        default="auto",
        show_default=True,
        help="Use the mask that scan-layers or search has found for this model.",
    ),
    click.option(
        "--controller",
        type=click.Choice(controllers.names()),
        help=f"Who decides how long drafts are.  [default: {controllers.DEFAULT}]",
    ),
    click.option(
        "--draft-max",
        type=click.IntRange(min=1),
        help="Most tokens to draft per step; a draft ends sooner at --draft-p-min.  "
        f"[default of fixed: {Fixed().n_max}]",
    ),
    click.option(
        "--draft-p-min",
        type=click.FloatRange(0, 1),
        help="End a draft before a token of lower probability.  "
        f"[default of fixed: {Fixed().p_min}]",
    ),
)

# Whether masks change meanwhile.
adapt_options = _together(
    click.option(
        "--adapt",
        is_flag=True,
        help="Try other masks meanwhile, and draft with what is expected to be faster.",
    ),
    click.option(
        "--adapt-share",
        type=click.FloatRange(0, 1, min_open=True),
        help=f"Of the time, for trying masks at most.  [default: {adapt.SHARE}]",
    ),
    click.option(
        "--adapt-state",
        type=click.Path(path_type=Path),
        help="File to go on from and to leave for the next run; made when there is none.",
    ),
)


def draft_from(options: Mapping[str, Any]) -> str | None:
    """The drafter's name, AUTO, or None for plain decoding."""
    draft: str = options["draft"]
    return None if draft == "off" else draft


def drafter_options_from(n_layer: int, options: Mapping[str, Any]) -> Any:
    """The ``Options`` of the drafter, None where none are given."""
    pairs, draft = options["drafter_options"], draft_from(options)
    if not pairs:
        return None
    if draft is None or draft == AUTO:
        raise click.UsageError("-o sets options of the drafter that --draft names; name one")
    return options_from(draft, pairs, lambda path: formats.read(read_text(path), n_layer))


def describes_mask(options: Mapping[str, Any]) -> bool:
    names = ("mask_file", "skip_attn", "skip_ffn", "exit_layer")
    return any(options[name] for name in names)


def adapts(options: Mapping[str, Any]) -> bool:
    """Saying how to adapt says to adapt."""
    return options["adapt"] or any(options[k] is not None for k in ("adapt_share", "adapt_state"))


def adapt_from(model: Model, options: Mapping[str, Any]) -> Adapt | None:
    """How to adapt as the options say, None when they do not."""
    if not adapts(options):
        return None
    path, share = options["adapt_state"], options["adapt_share"]
    if path is not None:
        require_target(path)
    state = candidates.load(path, model) if path is not None and path.exists() else None
    if state is not None and describes_mask(options):
        raise click.UsageError(
            f"{path} has a mask of its own to go on with; remove it, or give no other mask"
        )
    return Adapt(state=state) if share is None else Adapt(share, state)


def mask_from(n_layer: int, options: Mapping[str, Any]) -> LayerMask | None:
    """The mask that the options describe, None when they describe none."""
    file, attn, ffn = options["mask_file"], options["skip_attn"], options["skip_ffn"]
    last = options["exit_layer"]
    if (file is not None) + bool(attn or ffn) + (last is not None) > 1:
        raise click.UsageError(
            "give --mask, or --exit-layer, or --skip-attn and --skip-ffn, not both"
        )
    if file is not None:
        return LayerMask.from_json(read_text(file)).require(n_layer)
    if last is not None:
        return LayerMask.early_exit(n_layer, last)
    return LayerMask(n_layer, attn, ffn) if attn or ffn else None


def controller_from(options: Mapping[str, Any]) -> Fixed | str:
    """The controller that the options describe, or its name."""
    given = {"n_max": options["draft_max"], "p_min": options["draft_p_min"]}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return options["controller"] or controllers.DEFAULT
    if options["controller"] not in (None, "fixed"):
        raise click.UsageError(
            "--draft-max and --draft-p-min go with --controller fixed; "
            f"{options['controller']} decides by itself"
        )
    return Fixed(**given)


def open_model(name: str, **params: Any) -> Model:
    """The model at a path, or the bundled one for the word ``demo``; params as for Model."""
    return Model(DEMO if name == DEMO_WORD else name, **params)


STDIN = "-"


def require_one_reader_of_stdin(*paths: str | None) -> None:
    if paths.count(STDIN) > 1:
        raise click.UsageError("stdin can be read once, for the prompt, the mask or the grammar")


def read_text(path: str) -> str:
    """The UTF-8 text of a file, or of stdin for ``-``."""
    if path == STDIN and sys.stdin is None:
        raise ArgumentError("stdin is closed")
    if not path:
        raise ArgumentError("the name of a file is empty")
    data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = "stdin" if path == STDIN else path
        raise ArgumentError(
            f"{where} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from None
