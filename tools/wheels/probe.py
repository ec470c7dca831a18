"""Commands for the Python of the environment under test, each of which prints JSON.

Imports nothing but what the wheel and its dependencies bring.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import click

PROMPT = "Once upon a time, there was a king who had three sons."
N_PREDICT = 12
N_TOKENS = 32  # per measurement of speed
WIDTH = 8


@click.group()
def main() -> None:
    pass


@main.command()
def variants() -> None:
    """The variants of the installed build that run here, as JSON."""
    from pyselfspec.errors import LibraryError
    from pyselfspec.runtime import processor
    from pyselfspec.util import build as facts

    found = []
    for backend in facts.CPU_BACKENDS:
        os.environ[processor.VARIABLE] = name = processor.variant(backend)
        processor.cpu_backend.cache_clear()
        try:
            processor.cpu_backend()
        except LibraryError:
            continue
        found.append(name)
    click.echo(json.dumps(found))


@main.command()
@click.argument("models", nargs=-1)
def texts(models: tuple[str, ...]) -> None:
    """Print the texts of the installed build as JSON, by plain decoding and with drafts."""
    from pyselfspec.errors import SelfSpecError
    from pyselfspec.runtime.processor import cpu_backend, variant

    try:
        said: dict[str, Any] = {"variant": variant(cpu_backend())}
    except SelfSpecError as error:
        raise click.ClickException(str(error)) from None
    from pyselfspec import Model
    from pyselfspec.runtime.width_check import same_at_widths

    said["models"] = {}
    for path in models:
        with Model(path) as model, model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
            said["models"][Path(path).stem] = {
                "exact_width": context.abilities.exact_width,
                "same_at_widths": same_at_widths(context),
                **_texts(context),
            }
    click.echo(json.dumps(said))


def _texts(context: Any) -> dict[str, Any]:
    """A digest of the plain texts, how many draft tokens were accepted, how many texts with drafts
    were compared with plain ones, and which of them differ."""
    from pyselfspec import Completion, Fixed, SamplingParams

    plain: list[int] = []
    accepted, compared, wrong = 0, 0, []
    for temperature in (0.0, 0.8):
        sampling = SamplingParams(temperature=temperature, seed=7)
        options: dict[str, Any] = {"n_predict": N_PREDICT, "sampling": sampling, "profile": False}
        by_drafter = {}
        for draft in (None, "layer-skip", "ngram"):
            made = Completion(
                context, PROMPT, draft=draft, controller=Fixed(4, p_min=0.0), **options
            )
            "".join(made)
            context.sequence().drop()
            accepted += made.stats.n_accepted
            by_drafter[draft] = made.tokens
        plain += by_drafter[None]
        compared += len(by_drafter) - 1
        wrong += [f"{d} at {temperature}" for d, t in by_drafter.items() if t != by_drafter[None]]
    digest = hashlib.sha256(repr(plain).encode()).hexdigest()[:8]
    return {"digest": digest, "accepted": accepted, "compared": compared, "wrong": wrong}


@main.command()
@click.argument("path")
@click.argument("n_threads", type=int)
def times(path: str, n_threads: int) -> None:
    """Seconds per token alone, and per pass over several, as JSON: processor time of one thread,
    elapsed time of more."""
    from pyselfspec import Model
    from pyselfspec.runtime.processor import cpu_backend, variant

    clock = time.process_time if n_threads == 1 else time.perf_counter
    with Model(path) as model, model.context(n_ctx=512, n_threads=n_threads) as context:
        sequence = context.sequence()
        measured = {}
        for width in (1, WIDTH):
            context.decode([1] * width)  # graphs are built, weights are read once
            begun = clock()
            for i in range(N_TOKENS // width):
                context.decode([2 + i] * width)
            measured[width] = (clock() - begun) / (N_TOKENS // width)
            sequence.drop()
    click.echo(json.dumps({"variant": variant(cpu_backend()), "seconds": [*measured.values()]}))


if __name__ == "__main__":
    main()
