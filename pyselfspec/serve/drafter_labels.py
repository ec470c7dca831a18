"""Sources of tokens: how the page labels each drafter, and which drafters work on this server."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import SelfSpecError
from ..runtime.context import Context
from ..speculate import drafters
from ..speculate.config import AUTO, COPIES, DraftConfig
from ..speculate.draft_names import COLON, Named, split
from ..speculate.drafters import ngram
from ..speculate.resolve import resolve
from .engine.jobs import MODEL

# Label and meaning of a token's source. Drafters without an entry are labelled by their names.
WORDS = {
    MODEL: ("model", "Written by the full model"),
    "head": ("head", "Drafted by a small draft head"),
    "layer-skip": ("layer skip", "Drafted by the model without some of its layers"),
    "model": ("second model", "Drafted by a smaller model"),
    "ngram": ("n-gram", "Copied: it followed the same tokens earlier"),
    "universal": ("other model", "Drafted by a model with another vocabulary"),
}


def files_by_drafter(drafting: DraftConfig) -> dict[str, str]:
    """Return the files that the server was started with, by drafter."""
    return {each.name: each.file for each in _given(drafting) if each.file is not None}


def corpus_of(drafting: DraftConfig) -> Path | None:
    """Return the folder to copy from."""
    found = (each.corpus for each in drafting.options if isinstance(each, ngram.Options))
    return next(found, None)


def with_corpus(drafting: DraftConfig, folder: Path) -> DraftConfig:
    """Return how to draft with copies from a folder."""
    kept = [each for each in drafting.options if not isinstance(each, ngram.Options)]
    own = [each for each in drafting.options if isinstance(each, ngram.Options)]
    options = replace(own[0] if own else ngram.Options(), corpus=folder)
    return replace(drafting, options=(*kept, options))


def copies(drafting: DraftConfig) -> bool:
    """Return whether the drafters may include the one that copies."""
    return drafting.names == AUTO or COPIES in [each.name for each in _given(drafting)]


def _given(drafting: DraftConfig) -> tuple[Named, ...]:
    """Return the drafters that are given by name."""
    if drafting.names in (None, AUTO):
        return ()
    return split(drafting.names, drafters.all_names())


def usable_drafters(context: Context, drafting: DraftConfig) -> tuple[str, ...]:
    """Return the names of the drafters that work here, found by resolving each of them: this
    package's, and those that the server was started with.

    drafting: the server's default; its files are the only ones used.
    """
    if not context.abilities.can_draft:  # rejected draft tokens could not be removed
        return ()
    files = files_by_drafter(drafting)
    found = []
    for name in sorted({*drafters.names(), *(each.name for each in _given(drafting))}):
        draft = f"{name}{COLON}{files[name]}" if name in files else name
        with suppress(SelfSpecError, OSError):
            resolve(context, drafting.with_draft((draft,)))
            found.append(name)
    return tuple(found)


def describe_sources(works: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the sources of tokens as JSON objects.

    works: names of the drafters that work here.
    """
    found = []
    for name in (MODEL, *sorted({*drafters.names(), *works})):
        label, meaning = WORDS.get(name, (name, f"Drafted by {name}"))
        found.append({"name": name, "label": label, "meaning": meaning, "works": name in works})
    return found
