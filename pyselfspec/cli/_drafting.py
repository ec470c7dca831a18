"""Drafting options: drafter, mask and length of drafts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
import cloup
from click.shell_completion import CompletionItem

from ..masks import formats
from ..masks.layer_mask import LayerMask
from ..speculate import controllers, drafters
from ..speculate.config import AUTO, OFF, DraftConfig
from ..speculate.controllers.fixed import Fixed
from ..speculate.draft_names import SIGN, split
from ..speculate.residual import MATCH, RESIDUAL
from ._completion import complete_model
from ._drafter_options import options_from
from ._options import read_text, together
from ._types import Choice, Integer, Number


def parse_blocks(_ctx: click.Context, _param: click.Parameter, text: str | None) -> frozenset[int]:
    """Callback of options that take block numbers and ranges, like ``3,5,8-11``."""
    blocks: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if not match:
            raise click.BadParameter(f"{part!r} is not a block or range; give e.g. 3,5,8-11")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise click.BadParameter(
                f"the range {part.strip()} runs backwards; give the smaller block first"
            )
        blocks += range(first, last + 1)
    for il, n_named in Counter(blocks).most_common(1):
        if n_named > 1:
            raise click.BadParameter(f"block {il} is given twice; give each block once")
    return frozenset(blocks)


def parse_draft(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    """Callback of --draft: return its value if each drafter in it exists."""
    known = drafters.all_names()
    if text in (AUTO, OFF):
        return text
    for name, _ in split(text, known):
        if name in (AUTO, OFF):
            raise click.BadParameter(f"{name} cannot be joined with other drafters; give it alone")
        if name not in known:
            shown = ", ".join((AUTO, OFF, *known))
            raise click.BadParameter(f"{name!r} is none of: {shown}")
    return text


def complete_draft(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return completions for the last drafter in --draft, or for its file after a colon."""
    before, sign, last = incomplete.rpartition(SIGN)
    name, colon, file = last.partition(":")
    if colon:
        found = [item.value for item in complete_model(ctx, param, file) if item.type == "plain"]
        return [CompletionItem(f"{before}{sign}{name}:{each}") for each in found]
    names = drafters.names() if sign else (AUTO, OFF, *drafters.names())
    return [CompletionItem(f"{before}{sign}{n}") for n in names if n.startswith(last)]


# Read by mask_from.
mask_options = cloup.option_group(
    "Masks",
    cloup.option(
        "--mask",
        "mask_file",
        metavar="FILE",
        help="File with the mask to draft with, in any format that layers profile export writes; "
        "- for stdin.",
    ),
    cloup.option(
        "--skip-attn",
        metavar="BLOCKS",
        callback=parse_blocks,
        help="Skip the attention sublayers of these blocks in drafts, like 3,5,8-11.",
    ),
    cloup.option(
        "--skip-ffn",
        metavar="BLOCKS",
        callback=parse_blocks,
        help="Skip the feed-forward sublayers of these blocks in drafts.",
    ),
    cloup.option(
        "--exit-layer",
        metavar="N",
        type=Integer(1),
        help="Draft with the first N blocks only, as LayerSkip does.",
    ),
)

profile_option = cloup.option(
    "--profile",
    type=click.Choice(["auto", "none"]),
    default="auto",
    help="auto: draft with the mask that scan-layers or layers search saved for this model, if "
    "any; none: ignore it.",
)

# Read by config_from.
draft_options = together(
    cloup.option_group(
        "Drafts",
        cloup.option(
            "--draft",
            metavar="|".join((AUTO, OFF, *drafters.names())),
            callback=parse_draft,
            shell_complete=complete_draft,
            default=AUTO,
            help="Drafter, or several joined by +, like ngram+model:small.gguf; model, universal "
            "and head take a file after a colon. auto: the drafters that suit the model; off: "
            "plain decoding.",
        ),
        cloup.option(
            "-o",
            "--draft-option",
            "drafter_options",
            metavar="KEY=VALUE",
            multiple=True,
            help="Set an option of a drafter that --draft names, see docs/drafts.md; repeatable.",
        ),
        profile_option,
        cloup.option(
            "--controller",
            type=Choice(controllers.names(), controllers.all_names()),
            help="How to decide the length of drafts. auto: draft where that should save time; "
            "fixed: follow --draft-max and --draft-p-min.  "
            f"[default: {controllers.DEFAULT}]",
        ),
        cloup.option(
            "--draft-max",
            type=Integer(1),
            help="Largest number of draft tokens per step.  "
            f"[default with --controller fixed: {Fixed().n_max}]",
        ),
        cloup.option(
            "--draft-p-min",
            type=Number(0, 1),
            help="End a draft before a token whose probability is below this.  "
            f"[default with --controller fixed: {Fixed().p_min}]",
        ),
    ),
    mask_options,
)


def config_from(n_layer: int, options: Mapping[str, Any]) -> DraftConfig:
    """Return the drafting settings of draft_options, for a model of ``n_layer`` blocks."""
    config = DraftConfig(
        None, profile=options["profile"] == "auto", controller=controller_from(options)
    )
    if not drafts(options):
        return config
    return replace(
        config,
        draft=options["draft"],
        options=_drafter_options_from(n_layer, options),
        mask=mask_from(n_layer, options),
        verify=options.get("verify", MATCH),
    )


def check_drafting(options: Mapping[str, Any]) -> None:
    """Raise UsageError for drafting options that contradict one another. Needs no model."""
    controller_from(options)
    if drafts(options):
        return
    if describes_mask(options):
        raise click.UsageError(
            "--draft off makes no drafts, so it takes no mask; leave out one of them"
        )
    if options["drafter_options"]:
        raise click.UsageError("-o sets options of the drafter that --draft names; name one")
    if options.get("verify", MATCH) == RESIDUAL:
        raise click.UsageError(
            "--verify residual needs drafts, and --draft off makes none; leave out one of them"
        )


def drafts(options: Mapping[str, Any]) -> bool:
    """Tell whether the options ask for drafts; without drafts, plain decoding."""
    return bool(options["draft"] != OFF)


def _drafter_options_from(n_layer: int, options: Mapping[str, Any]) -> Any:
    """Return the ``Options`` of the drafters that -o names, None without -o."""
    pairs, draft = options["drafter_options"], options["draft"]
    if not pairs:
        return None
    if draft == AUTO:
        raise click.UsageError("-o sets options of the drafter that --draft names; name one")
    named = split(draft, drafters.all_names())
    return options_from(named, pairs, lambda path: formats.read(read_text(path), n_layer))


def describes_mask(options: Mapping[str, Any]) -> bool:
    """Tell whether the options describe a mask."""
    names = ("mask_file", "skip_attn", "skip_ffn", "exit_layer")
    return any(options[name] for name in names)


def mask_from(n_layer: int, options: Mapping[str, Any]) -> LayerMask | None:
    """Return the mask that the options describe, None when they describe none."""
    file, attn, ffn = options["mask_file"], options["skip_attn"], options["skip_ffn"]
    last = options["exit_layer"]
    if (file is not None) + bool(attn or ffn) + (last is not None) > 1:
        raise click.UsageError(
            "give only one mask: by --mask, by --exit-layer, or by --skip-attn and --skip-ffn"
        )
    if file is not None:
        return formats.read(read_text(file), n_layer)
    if last is not None:
        return LayerMask.early_exit(n_layer, last)
    return LayerMask(n_layer, attn, ffn) if attn or ffn else None


def controller_from(options: Mapping[str, Any]) -> Fixed | str:
    """Return the controller that the options describe, or its name."""
    given = {"n_max": options["draft_max"], "p_min": options["draft_p_min"]}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return options["controller"] or controllers.DEFAULT
    if options["controller"] not in (None, "fixed"):
        raise click.UsageError(
            "--draft-max and --draft-p-min go with --controller fixed; "
            f"{options['controller']} chooses both values"
        )
    return Fixed(**given)
