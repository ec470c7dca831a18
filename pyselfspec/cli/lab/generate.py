"""pyselfspec lab generate: continue a prompt with an experimental method."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click
import cloup

from ...lab.adapt import adaptation
from ...lab.adapt.adaptation import Adapt, Adaptation
from ...lab.unverified import UnverifiedCompletion
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...speculate.completion import Completion
from ...speculate.config import DraftConfig
from .._drafting import config_from, draft_options, mask_from
from .._generation_report import closing_line, report
from .._options import common_options, context_options, model_argument, open_context
from .._sampling import sampling_from, sampling_options
from ..generate import Request, print_notes, read_prompt, text_options, verify_option, write
from ._options import (
    StateSaver,
    adapt_from,
    check_experiments,
    experiment_options,
    locked_state,
)


@cloup.command(name="generate")
@model_argument
@text_options
@experiment_options
@draft_options
@verify_option
@sampling_options
@context_options
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Continue a prompt with an experimental method.

    The options are those of pyselfspec generate and some more; --draft and --controller also take
    the names that pyselfspec lab list shows.

    \b
    pyselfspec lab generate -p "Once upon a time" --draft jacobi
    pyselfspec lab generate -p "Once upon a time" --adapt --exit-layer 3
    pyselfspec lab generate model.gguf -p "Once upon a time" --exit-layer 8 --unverified
    """
    check_experiments(options)
    prompt = read_prompt(options)
    sampling = sampling_from(options).with_seed()
    with locked_state(options), open_context(model, options) as (loaded, context):
        n_layer, unverified = loaded.n_layer, options["unverified"]
        config = DraftConfig.plain() if unverified else config_from(n_layer, options)
        request = Request(prompt, options["n_predict"], config, sampling, options["stop"])
        alone = mask_from(n_layer, options) if unverified else None
        with _started(request, context, alone, adapt_from(loaded, options)) as (text, masks):
            saver = StateSaver(masks, loaded, options["adapt_state"])
            finished = write(
                text,
                show=not as_json,
                as_text=isinstance(prompt, str),
                after_piece=saver.save_if_due,
            )
            if as_json:
                own = {"unverified": unverified, "adapt": masks and masks.summary()}
                if masks is not None:
                    own["controller"] = type(masks.controller_in_use).__name__.lower()
                click.echo(json.dumps(report(text, model) | own))
            else:
                print_notes(text, model)
                line = " · ".join([closing_line(text), *_remarks(unverified, masks)])
                click.echo(line, err=True)
            (masks or text).remember()
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


def _remarks(unverified: bool, masks: Adaptation | None) -> list[str]:
    """Return what the closing line says of the experiment."""
    if unverified:
        return ["not the model's own text: a mask generated it, unverified"]
    if masks is None:
        return []
    trials = masks.summary()
    return [f"{trials['n_tried']} masks tried, {trials['n_changes']} adopted"]
