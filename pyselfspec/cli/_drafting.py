"""Options that decide how tokens are drafted: by whom, with which mask, how many, and whether masks
are adapted meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import cloup
from click.shell_completion import CompletionItem

from ..masks import formats
from ..masks.layer_mask import LayerMask
from ..runtime.model import Model
from ..speculate import adapt, candidates, controllers, drafters
from ..speculate.adapt import Adapt
from ..speculate.controllers.fixed import Fixed
from ..speculate.draft_names import SIGN, split
from ..speculate.prepared import AUTO
from ..util.files import require_no_model
from ._completion import complete_model
from ._drafter_options import options_from
from ._options import read_text, together

OFF = "off"


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


def parse_draft(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    """Callback of --draft."""
    known = drafters.names()
    if text in (AUTO, OFF):
        return text
    for name, _ in split(text, known):
        if name not in known:
            others = ", ".join((AUTO, OFF, *known))
            raise click.BadParameter(f"{name!r} is none of: {others}; join several with {SIGN}")
    return text


def complete_draft(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Values of --draft: for the last of several ways joined by a sign, and its file if it takes
    one."""
    before, sign, last = incomplete.rpartition(SIGN)
    name, colon, file = last.partition(":")
    if colon:
        found = [item.value for item in complete_model(ctx, param, file) if item.type == "plain"]
        return [CompletionItem(f"{before}{sign}{name}:{each}") for each in found]
    ways = drafters.names() if sign else (AUTO, OFF, *drafters.names())
    return [CompletionItem(f"{before}{sign}{way}") for way in ways if way.startswith(last)]


# What drafts skip, see mask_from.
mask_options = cloup.option_group(
    "Masks",
    cloup.option(
        "--mask",
        "mask_file",
        help="File with the mask to draft with, - for stdin, in any format of profile export.",
    ),
    cloup.option(
        "--skip-attn",
        metavar="BLOCKS",
        callback=parse_blocks,
        default="",
        help="Blocks whose attention the draft skips, like 3,5,8-11.",
    ),
    cloup.option(
        "--skip-ffn",
        metavar="BLOCKS",
        callback=parse_blocks,
        default="",
        help="Blocks whose feed-forward sublayer the draft skips.",
    ),
    cloup.option(
        "--exit-layer",
        type=click.IntRange(min=1),
        help="Draft with only the first N blocks, as LayerSkip does.",
    ),
)

profile_option = cloup.option(
    "--profile",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Use the mask that scan-layers or search has found for this model.",
)

# How drafts are made, see controller_from.
draft_options = together(
    cloup.option_group(
        "Drafts",
        cloup.option(
            "--draft",
            metavar="|".join((AUTO, OFF, *drafters.names())),
            callback=parse_draft,
            shell_complete=complete_draft,
            default=AUTO,
            show_default=True,
            help="How to draft, or several ways joined by +, each with its file behind a colon if "
            "it takes one, as in ngram+model:small.gguf; auto: what suits the model; off: plain "
            "decoding.",
        ),
        cloup.option(
            "-o",
            "--draft-option",
            "drafter_options",
            metavar="KEY=VALUE",
            multiple=True,
            help="An option of the drafter that --draft names; may be given several times.",
        ),
        profile_option,
        cloup.option(
            "--controller",
            type=click.Choice(controllers.names()),
            help=f"How to decide the length of drafts.  [default: {controllers.DEFAULT}]",
        ),
        cloup.option(
            "--draft-max",
            type=click.IntRange(min=1),
            help="Most tokens to draft per step; a draft ends sooner at --draft-p-min.  "
            f"[default of fixed: {Fixed().n_max}]",
        ),
        cloup.option(
            "--draft-p-min",
            type=click.FloatRange(0, 1),
            help="End a draft before a token of lower probability.  "
            f"[default of fixed: {Fixed().p_min}]",
        ),
    ),
    mask_options,
)

# Whether masks change meanwhile.
adapt_options = cloup.option_group(
    "Masks that change",
    cloup.option(
        "--adapt",
        is_flag=True,
        help="Try other masks while generating, and switch to one that is expected to be faster.",
    ),
    cloup.option(
        "--adapt-share",
        type=click.FloatRange(0, 1, min_open=True),
        help=f"Largest share of the time to spend on trying masks.  [default: {adapt.SHARE}]",
    ),
    cloup.option(
        "--adapt-state",
        type=click.Path(path_type=Path),
        help="File to resume from and to save to; created if it does not exist.",
    ),
)


def draft_from(options: Mapping[str, Any]) -> str | None:
    """The drafter's name, AUTO, or None for plain decoding."""
    draft: str = options["draft"]
    return None if draft == OFF else draft


def drafter_options_from(n_layer: int, options: Mapping[str, Any]) -> Any:
    """The ``Options`` of the drafters that any are given for, None where none are."""
    pairs, draft = options["drafter_options"], draft_from(options)
    if not pairs:
        return None
    if draft is None or draft == AUTO:
        raise click.UsageError("-o sets options of the drafter that --draft names; name one")
    named = split(draft, drafters.names())
    return options_from(named, pairs, lambda path: formats.read(read_text(path), n_layer))


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
        require_no_model(path)
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
        return formats.read(read_text(file), n_layer)
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
