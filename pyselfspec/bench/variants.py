"""The variants that a benchmark compares: plain decoding and combinations of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..speculate import drafters
from ..speculate.config import AUTO, DraftConfig
from ..speculate.draft_names import SIGN, split
from ..speculate.resolve import resolve
from .types import PLAIN, UPSTREAM


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to generate text.

    drafters: names joined by +, "" without drafts. config: how it drafts, without memory of earlier
    texts of the session: a repeated prompt would find its own answer there. skips: the mask of its
    drafts, None if they have none.
    """

    name: str
    drafters: str
    config: DraftConfig = field(default_factory=DraftConfig.plain)
    skips: LayerMask | None = None

    @classmethod
    def named(cls, name: str) -> Variant:
        """Return the variant PLAIN, or that of these drafters, without a mask."""
        if name == PLAIN:
            return cls(name, "")
        return cls(name, name, DraftConfig(name).without_session_memory())


def make_variants(
    context: Context, names: Sequence[str], *, mask: LayerMask | None, profile: bool, upstream: bool
) -> list[Variant]:
    """Return plain decoding and one variant per name; without names, AUTO and, if that combines
    several drafters, each of these alone.

    mask: for drafters that take one. profile: False ignores the model's profile. upstream: whether
    to compare with llama.cpp's kernels too.

    Raises ArgumentError for a repeated name, and the errors of `resolve`.
    """
    chosen = list(names) or [AUTO]
    found = [*[Variant(UPSTREAM, "")] * upstream, Variant(PLAIN, "")]
    for name in chosen:
        if name in (variant.name for variant in found):
            raise ArgumentError(f"variant {name} is given twice; give each variant once")
        variant = _variant(context, name, mask, profile)
        found.append(variant)
        parts = variant.drafters.split(SIGN) if name == AUTO and not names else ()
        if len(parts) > 1:
            chosen += parts
    if mask is not None and not any(variant.config.mask for variant in found):
        raise ArgumentError(
            "no variant takes a mask; leave the mask out, or add the drafter layer-skip "
            "(--draft layer-skip)"
        )
    return found


def _variant(context: Context, name: str, mask: LayerMask | None, profile: bool) -> Variant:
    named = split(name, drafters.all_names())
    takes_mask = name == AUTO or any("mask" in _fields(each.name) for each in named)
    config = DraftConfig(name, mask=mask if takes_mask else None, profile=profile)
    config = config.without_session_memory()
    setup = resolve(context, config)
    if setup is None:
        architecture = context.model.file.architecture
        raise ArgumentError(
            f"architecture {architecture}: its memory cannot remove tokens, so nothing can be "
            "drafted and there is nothing to compare"
        )
    return Variant(name, setup.name, config, setup.mask)


def _fields(name: str) -> set[str]:
    return {field.name for field in fields(drafters.load(name).Options)}
