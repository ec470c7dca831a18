"""Drafts for texts with pictures: from drafters that read the text alone, or the model itself."""

from __future__ import annotations

from ..errors import ArgumentError
from . import drafters
from .config import AUTO, DraftConfig
from .draft_names import split

DEFAULT = ("ngram",)  # what "auto" drafts with
WITH_MASK = ("ngram", "layer-skip")  # and where there is a mask


def for_pictures(config: DraftConfig) -> DraftConfig:
    """Return how to draft for a text with pictures. Raises ArgumentError for drafters whose module
    does not say READS_PICTURES: a second model has no projector, a head reads states of text."""
    if config.drafter is not None:
        raise ArgumentError("a text with pictures takes the names of drafters, not a drafter")
    if config.draft is None:
        return config
    if config.draft == AUTO:
        return config.with_draft(DEFAULT if config.mask is None else WITH_MASK)
    assert config.names is not None
    names = [each.name for each in split(config.names, drafters.all_names())]
    able = [name for name in drafters.all_names() if reads_pictures(name)]
    for name in names:
        if not reads_pictures(name):
            raise ArgumentError(
                f"the drafter {name} reads text only; with pictures use {', '.join(able)} or no "
                "drafts"
            )
    return config


def drafting_with_pictures(config: DraftConfig) -> DraftConfig:
    """Return a server's own config for texts with pictures: "auto" where its drafters read text
    only."""
    try:
        return for_pictures(config)
    except ArgumentError:
        return for_pictures(DraftConfig())


def reads_pictures(name: str) -> bool:
    """Return whether a drafter works for texts with pictures."""
    return bool(getattr(drafters.load(name), "READS_PICTURES", False))
