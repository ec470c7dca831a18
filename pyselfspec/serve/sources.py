"""Where draft tokens may come from: what each drafter is called on the page, and which of them work
on this server."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import SelfSpecError
from ..runtime.context import Context
from ..speculate import drafters
from ..speculate.draft_names import COLON, split
from ..speculate.prepared import AUTO, prepared
from .jobs import MODEL, Drafting

# A label, and what it says about a token. Drafters of other packages are called by their names.
WORDS = {
    MODEL: ("model", "Written by the full model"),
    "dynamic-exit": ("early exit", "Drafted by the first layers of the model"),
    "head": ("head", "Drafted by a small draft head"),
    "jacobi": ("Jacobi", "Drafted from what the model said after a rejected token"),
    "layer-skip": ("layer skip", "Drafted with some of the layers of the model"),
    "lookahead": ("lookahead", "Drafted from words that the model wrote ahead of the text"),
    "model": ("second model", "Drafted by a smaller model"),
    "ngram": ("n-gram", "Copied: it followed the same words earlier"),
    "partial-kv": ("partial K/V", "Drafted by the model from a part of the text"),
    "universal": ("other model", "Drafted by a model with other tokens"),
}


def given_files(drafting: Drafting) -> dict[str, str]:
    """Files by drafter, as the server was started with."""
    if drafting.draft in (None, AUTO):
        return {}
    named = split(drafting.draft, drafters.names())
    return {each.name: each.file for each in named if each.file is not None}


def usable(context: Context, drafting: Drafting) -> tuple[str, ...]:
    """Names of the drafters that can draft here, found by preparing each of them.

    drafting: how the server drafts by default; its files are the only ones.
    """
    if not context.can_rollback:  # drafts that turn out wrong could not be taken back
        return ()
    files = given_files(drafting)
    found = []
    for name in drafters.names():
        draft = f"{name}{COLON}{files[name]}" if name in files else name
        its = drafting.by((draft,))
        with suppress(SelfSpecError, OSError):
            prepared(context, its.draft, mask=its.mask, profile=its.profile)
            found.append(name)
    return tuple(found)


def described(works: tuple[str, ...]) -> list[dict[str, Any]]:
    """All sources of tokens, ready for JSON; works: names of those that can draft here."""
    return [_described(name, name in works) for name in (MODEL, *drafters.names())]


def _described(name: str, works: bool) -> dict[str, Any]:
    label, meaning = WORDS.get(name, (name, f"Drafted by {name}"))
    return {"name": name, "label": label, "meaning": meaning, "works": works}
