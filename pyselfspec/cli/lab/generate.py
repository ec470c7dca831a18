"""pyselfspec lab generate: continue a prompt with an experimental method."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import click
import cloup

from ...lab.adapt import adaptation
from ...lab.adapt import state as states
from ...lab.adapt.adaptation import SHARE, Adapt, Adaptation
from ...lab.adapt.state import State
from ...lab.unverified import UnverifiedCompletion
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.model import Model
from ...speculate.completion import Completion
from ...speculate.config import AUTO, OFF, DraftConfig
from ...speculate.residual import MATCH
from ...util.files import locked, require_no_model
from .._drafting import DraftOptions
from .._generation_report import closing_line, report
from .._help import ManyOptions
from .._machine import MachineOptions
from .._model import model_argument
from .._options import common_options, text_argument
from .._sampling import SamplingOptions
from .._types import Number, option, rare, takes
from ..generate import Request, TextOptions, generate, print_notes, verify_option

SAVE_S = 10.0  # between two saves of the state while a text is generated


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Which experiments to run."""

    title: ClassVar[str] = "Experiments"
    adapt: bool = option("--adapt", is_flag=True, help="Try other masks, and use the best one.")
    adapt_share: float | None = rare(
        "--adapt-share",
        type=Number(0, 1, min_open=True),
        help=f"Largest share of the time for trials of masks.  [default: {SHARE:g}]",
    )
    adapt_state: Path | None = rare(
        "--adapt-state",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Resume the search for masks from this file, and save it there.",
    )
    unverified: bool = option(
        "--unverified",
        is_flag=True,
        help="Generate with the mask alone, without verification: not the model's text.",
    )

    @property
    def adapts(self) -> bool:
        """Tell whether to adapt masks; --adapt-share and --adapt-state imply --adapt."""
        return self.adapt or self.adapt_share is not None or self.adapt_state is not None

    def check(self, drafts: DraftOptions, verify: str) -> None:
        """Raise UsageError for drafting options and experiments that contradict one another."""
        if not self.unverified:
            drafts.check(verify)
            if drafts.draft == OFF and self.adapts:
                raise click.UsageError(
                    "--draft off makes no drafts, so there is no mask to adapt; leave out one of "
                    "them"
                )
            return
        if not drafts.has_mask:
            raise click.UsageError(
                "--unverified needs a mask to generate with, like --exit-layer 4"
            )
        drafts.chosen_controller()
        names_drafter = drafts.draft not in (AUTO, OFF) or drafts.drafter_options
        if names_drafter or self.adapts or verify != MATCH:
            raise click.UsageError(
                "--unverified text is not drafted; leave out --draft, -o, --adapt and --verify"
            )

    def settings(self, model: Model, *, has_mask: bool) -> Adapt | None:
        """Return the settings of adapting masks, None without adapting. has_mask: whether other
        options describe a mask."""
        if not self.adapts:
            return None
        path, state = self.adapt_state, None
        if path is not None:
            require_no_model(path)
            state = states.load(path, model) if path.exists() else None
        if state is not None and has_mask:
            raise click.UsageError(
                f"{path} already has a mask to resume from; remove the file, or give no other mask"
            )
        return Adapt(SHARE if self.adapt_share is None else self.adapt_share, state)


@cloup.command(name="generate", cls=ManyOptions)
@model_argument
@text_argument("Text to continue.")
@takes(options=TextOptions, experiments=ExperimentOptions, drafts=DraftOptions)
@verify_option
@takes(sampling=SamplingOptions, machine=MachineOptions)
@common_options
def command(
    model: str,
    text: str | None,
    options: TextOptions,
    experiments: ExperimentOptions,
    drafts: DraftOptions,
    verify: str,
    sampling: SamplingOptions,
    machine: MachineOptions,
    as_json: bool,
) -> None:
    """Continue a prompt with an experimental method.

    Takes the options of generate and some more. In both commands, --draft and --controller take
    the names that pyselfspec lab list shows.

    \b
    pyselfspec lab generate demo -p "Once upon a time" --draft jacobi
    pyselfspec lab generate demo -p "Once upon a time" --adapt --exit-layer 3
    pyselfspec lab generate model.gguf -p "Once upon a time" --exit-layer 8 --unverified
    """
    experiments.check(drafts, verify)
    prompt = options.read_prompt(text, drafts.mask_file, sampling.grammar_file)
    params = sampling.params().with_seed()
    unverified, file = experiments.unverified, experiments.adapt_state
    with (
        nullcontext() if file is None else locked(file, "give another --adapt-state"),
        machine.open(model) as (loaded, context),
    ):
        n_layer = loaded.n_layer
        config = DraftConfig.plain() if unverified else drafts.config(n_layer, verify)
        request = Request(prompt, options.n_predict, config, params, options.stop)
        alone = drafts.mask(n_layer) if unverified else None
        adapt = experiments.settings(loaded, has_mask=drafts.has_mask)
        with _started(request, context, alone, adapt) as (completion, masks):
            saver = StateSaver(masks, loaded, file)
            finished = generate(
                completion,
                show=not as_json,
                as_text=isinstance(prompt, str),
                after_piece=saver.save_if_due,
            )
            trials = None if masks is None else masks.summary()
            if as_json:
                own: dict[str, Any] = {"unverified": unverified, "adapt": trials}
                if masks is not None:
                    own["controller"] = type(masks.controller_in_use).__name__.lower()
                click.echo(json.dumps(report(completion, model) | own))
            else:
                print_notes(completion, model)
                line = closing_line(completion)
                if unverified:
                    line += " · not the model's own text: a mask generated it, unverified"
                if trials is not None:
                    line += f" · {trials['n_tried']} masks tried, {trials['n_changes']} adopted"
                click.echo(line, err=True)
            (masks or completion).remember()
            saver.save()
    if not finished:
        raise KeyboardInterrupt  # for the exit status


@contextmanager
def _started(
    request: Request, context: Context, alone: LayerMask | None, adapt: Adapt | None
) -> Iterator[tuple[Completion, Adaptation | None]]:
    """Yield the completion, and the masks that change meanwhile, if any.

    alone: the mask that generates the text without verification.
    """
    if alone is not None:
        yield (
            UnverifiedCompletion(
                context,
                request.prompt,
                alone,
                n_predict=request.n_predict,
                sampling=request.sampling,
                stop=request.stop,
            ),
            None,
        )
    elif adapt is not None:
        seed, verify = request.sampling.seed or 0, request.config.verify
        masks = adaptation.start(context, request.config, adapt, seed=seed)
        with masks:
            config = DraftConfig(masks.drafter, controller=masks.controller, verify=verify)
            yield replace(request, config=config).completion(context), masks
    else:
        yield request.completion(context), None


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
