"""Drafting options: drafter, its own options, mask and length of drafts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import click
import msgspec
from click.shell_completion import CompletionItem

from ..errors import ArgumentError
from ..masks import formats
from ..masks.layer_mask import LayerMask
from ..speculate import controllers, drafters
from ..speculate.config import AUTO, OFF, DraftConfig
from ..speculate.controllers.fixed import Fixed
from ..speculate.draft_names import SIGN, Named, split
from ..speculate.residual import MATCH, RESIDUAL
from ._model import complete_model
from ._options import read_text
from ._types import Choice, Integer, Number, of_value, option, rare


def parse_blocks(text: str) -> frozenset[int]:
    """Read block numbers and ranges, like ``3,5,8-11``."""
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


def parse_draft(text: str) -> str:
    """Return the value of --draft if each drafter in it exists."""
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


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """The mask that drafts use."""

    title: ClassVar[str] = "Masks"
    mask_file: str | None = rare(
        "--mask",
        metavar="FILE",
        help="File with the mask to draft with, in any format that layers profile export writes; "
        "- for stdin.",
    )
    skip_attn: frozenset[int] = rare(
        "--skip-attn",
        metavar="BLOCKS",
        callback=of_value(parse_blocks, frozenset()),
        help="Skip the attention sublayers of these blocks in drafts, like 3,5,8-11.",
    )
    skip_ffn: frozenset[int] = rare(
        "--skip-ffn",
        metavar="BLOCKS",
        callback=of_value(parse_blocks, frozenset()),
        help="Skip the feed-forward sublayers of these blocks in drafts.",
    )
    exit_layer: int | None = rare(
        "--exit-layer",
        metavar="N",
        type=Integer(1),
        help="Draft with the first N blocks only, as LayerSkip does.",
    )

    @property
    def has_mask(self) -> bool:
        return any((self.mask_file, self.skip_attn, self.skip_ffn, self.exit_layer))

    def mask(self, n_layer: int) -> LayerMask | None:
        """Return the mask that the options describe, None when they describe none."""
        file, attn, ffn, last = self.mask_file, self.skip_attn, self.skip_ffn, self.exit_layer
        if (file is not None) + bool(attn or ffn) + (last is not None) > 1:
            raise click.UsageError(
                "give only one mask: by --mask, by --exit-layer, or by --skip-attn and --skip-ffn"
            )
        if file is not None:
            return formats.read(read_text(file), n_layer)
        if last is not None:
            return LayerMask.early_exit(n_layer, last)
        return LayerMask(n_layer, attn, ffn) if attn or ffn else None


def profile_option() -> Any:
    return rare(
        "--profile",
        type=click.Choice(["auto", "none"]),
        default="auto",
        help="auto: draft with the mask that scan-layers or layers search saved for this model, if "
        "any; none: ignore it.",
    )


@dataclass(frozen=True, slots=True)
class DraftOptions(MaskOptions):
    """How a text is drafted."""

    title: ClassVar[str] = "Drafts"
    draft: str = option(
        "--draft",
        metavar="|".join((AUTO, OFF, *drafters.names())),
        callback=of_value(parse_draft),
        shell_complete=complete_draft,
        default=AUTO,
        help="Drafter, or several joined by +, like ngram+model:small.gguf, see docs/drafts.md. "
        "auto: those that suit the model; off: plain decoding.",
    )
    drafter_options: tuple[str, ...] = rare(
        "-o",
        "--draft-option",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set an option of a drafter that --draft names, see docs/drafts.md; repeatable.",
    )
    profile: str = profile_option()
    controller: str | None = rare(
        "--controller",
        type=Choice(controllers.names(), controllers.all_names()),
        help="How to decide the length of drafts. auto: draft where that should save time; "
        "fixed: follow --draft-max and --draft-p-min.  "
        f"[default: {controllers.DEFAULT}]",
    )
    draft_max: int | None = rare(
        "--draft-max",
        type=Integer(1),
        help="Largest number of draft tokens per step.  "
        f"[default with --controller fixed: {Fixed().n_max}]",
    )
    draft_p_min: float | None = rare(
        "--draft-p-min",
        type=Number(0, 1),
        help="End a draft before a token whose probability is below this.  "
        f"[default with --controller fixed: {Fixed().p_min}]",
    )

    def check(self, verify: str = MATCH) -> None:
        """Raise UsageError for options that contradict one another. Needs no model."""
        self.chosen_controller()
        if self.draft != OFF:
            return
        if self.has_mask:
            raise click.UsageError(
                "--draft off makes no drafts, so it takes no mask; leave out one of them"
            )
        if self.drafter_options:
            raise click.UsageError("-o sets options of the drafter that --draft names; name one")
        if verify == RESIDUAL:
            raise click.UsageError(
                "--verify residual needs drafts, and --draft off makes none; leave out one of them"
            )

    def config(self, n_layer: int, verify: str = MATCH) -> DraftConfig:
        """Return the drafting settings for a model of ``n_layer`` blocks."""
        profile, controller = self.profile == "auto", self.chosen_controller()
        if self.draft == OFF:
            return DraftConfig(None, profile=profile, controller=controller)
        own: tuple[Any, ...] = ()
        if self.drafter_options:
            if self.draft == AUTO:
                raise click.UsageError(
                    "-o sets options of the drafter that --draft names; name one"
                )
            named = split(self.draft, drafters.all_names())
            own = _own_options(named, self.drafter_options, n_layer)
        return DraftConfig(self.draft, own, self.mask(n_layer), profile, controller, verify)

    def chosen_controller(self) -> Fixed | str:
        """Return the controller that the options describe, or its name."""
        given = {"n_max": self.draft_max, "p_min": self.draft_p_min}
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            return self.controller or controllers.DEFAULT
        if self.controller not in (None, "fixed"):
            raise click.UsageError(
                "--draft-max and --draft-p-min go with --controller fixed; "
                f"{self.controller} chooses both values"
            )
        return Fixed(**given)  # type: ignore[arg-type]


def _own_options(named: Sequence[Named], pairs: Sequence[str], n_layer: int) -> tuple[Any, ...]:
    """Return the ``Options`` of each drafter that has one of the given fields.

    pairs: ``field=value``; values are converted to the types of the fields, masks read from files.
    Raises UsageError for an unknown or repeated field, ArgumentError for a wrong value.
    """
    classes = {name: drafters.load(name).Options for name, _ in named}
    known = {name: [field.name for field in fields(cls)] for name, cls in classes.items()}
    values: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        owners = [name for name in classes if key in known[name]]
        if not equals or not owners:
            what = "; ".join(f"{n} has {_listed(names)}" for n, names in known.items())
            raise click.UsageError(
                f"-o {pair}: give KEY=VALUE, where KEY is an option of a drafter: {what}"
            )
        for name in owners:
            if key in values.setdefault(name, {}):
                raise click.UsageError(f"-o {key} is given twice; give it once")
            kind = get_type_hints(classes[name])[key]
            values[name][key] = _value(value, kind, pair, n_layer)
    return tuple(
        drafters.options_of(each, **values[each.name]) for each in named if each.name in values
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _value(text: str, kind: Any, pair: str, n_layer: int) -> Any:
    if LayerMask in getattr(kind, "__args__", (kind,)):
        return formats.read(read_text(text), n_layer)
    if Path in getattr(kind, "__args__", (kind,)):
        return Path(text)
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise ArgumentError(f"-o {pair}: the value is one of {_listed(get_args(kind))}")
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        raise ArgumentError(f"-o {pair}: {reason[:1].lower()}{reason[1:]}") from None
