"""Options of lab generate that select experiments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import click
import cloup

from ...lab.adapt import state as states
from ...lab.adapt.adaptation import SHARE, Adapt, Adaptation
from ...lab.adapt.state import State
from ...runtime.model import Model
from ...speculate.config import AUTO, OFF
from ...speculate.residual import MATCH
from ...util.files import locked, require_no_model
from .._drafting import check_drafting, controller_from, describes_mask, drafts
from .._types import Number

SAVE_S = 10.0  # between two saves of the state while a text is generated


experiment_options = cloup.option_group(
    "Experiments",
    cloup.option(
        "--adapt", is_flag=True, help="Try other masks meanwhile, and switch to better ones."
    ),
    cloup.option(
        "--adapt-share",
        type=Number(0, 1, min_open=True),
        help=f"Largest share of the time for trials of masks.  [default: {SHARE:g}]",
    ),
    cloup.option(
        "--adapt-state",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Resume the search for masks from this file, and save it there.",
    ),
    cloup.option(
        "--unverified",
        is_flag=True,
        help="Generate with the mask alone, without verification: not the model's text.",
    ),
)


def check_experiments(options: Mapping[str, Any]) -> None:
    """Raise UsageError for drafting options and experiments that contradict one another."""
    if options["unverified"]:
        _check_unverified(options)
        return
    check_drafting(options)
    if not drafts(options) and _adapts(options):
        raise click.UsageError(
            "--draft off makes no drafts, so there is no mask to adapt; leave out one of them"
        )


def _check_unverified(options: Mapping[str, Any]) -> None:
    if not describes_mask(options):
        raise click.UsageError("--unverified needs a mask to generate with, like --exit-layer 4")
    controller_from(options)
    names_drafter = options["draft"] not in (AUTO, OFF) or options["drafter_options"]
    if names_drafter or _adapts(options) or options["verify"] != MATCH:
        raise click.UsageError(
            "--unverified text is not drafted; leave out --draft, -o, --adapt and --verify"
        )


def _adapts(options: Mapping[str, Any]) -> bool:
    """Tell whether to adapt masks; --adapt-share and --adapt-state imply --adapt."""
    return options["adapt"] or any(options[k] is not None for k in ("adapt_share", "adapt_state"))


def adapt_from(model: Model, options: Mapping[str, Any]) -> Adapt | None:
    """Return the settings of adapting masks, None without adapting."""
    if not _adapts(options):
        return None
    path, share = options["adapt_state"], options["adapt_share"]
    if path is not None:
        require_no_model(path)
    state = states.load(path, model) if path is not None and path.exists() else None
    if state is not None and describes_mask(options):
        raise click.UsageError(
            f"{path} already has a mask to resume from; remove the file, or give no other mask"
        )
    return Adapt(state=state) if share is None else Adapt(share, state)


def locked_state(options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Lock the file of --adapt-state against other processes; without the option, do nothing."""
    path = options["adapt_state"]
    return nullcontext() if path is None else locked(path, "give another --adapt-state")


class StateSaver:
    """Saves the state of an adaptation: every SAVE_S seconds, and at the end.

    path: file to write; None: never save.
    """

    def __init__(self, adaptation: Adaptation | None, model: Model, path: Path | None) -> None:
        self._adaptation = adaptation
        self._model = model
        self._path = path
        self._saved_at = time.monotonic()
        self._saved: State | None = None

    def save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= SAVE_S:
            with suppress(OSError):  # generation continues; the last save raises
                self.save()

    def save(self) -> None:
        """Write the state if it has changed since the last save. Raises OSError."""
        if self._path is None or self._adaptation is None:
            return
        state = self._adaptation.state
        if state is self._saved:
            return
        self._saved_at = time.monotonic()
        states.save(state, self._model, self._path)
        self._saved = state
