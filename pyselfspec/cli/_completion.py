"""Shell completion of MODEL: names of models, and GGUF files."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from .. import hub
from ..hub import packages


def complete_model(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return downloaded models and GGUF files; if none fits, let the shell complete file names."""
    fits = [name for name in (*hub.names(), *_files(incomplete)) if name.startswith(incomplete)]
    return [CompletionItem(fit) for fit in fits] or [CompletionItem(incomplete, type="file")]


def complete_name(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the models with names that are not downloaded."""
    fits = (name for name in packages.MODELS if name.startswith(incomplete))
    return [CompletionItem(fit) for fit in fits if packages.find(fit) is None]


def complete_fetched(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the models with names that are downloaded."""
    fits = (name for name in packages.MODELS if name.startswith(incomplete))
    return [CompletionItem(fit) for fit in fits if packages.find(fit) is not None]


def _files(incomplete: str) -> list[str]:
    folder = os.path.dirname(incomplete)
    try:
        return sorted(os.path.join(folder, p.name) for p in Path(folder).glob("*.gguf"))
    except OSError:  # no permission to read the folder
        return []
