"""Options that decide how the next token is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import cloup

from ..runtime.sampling import SEED_MAX, SamplingParams
from ._options import read_text

DEFAULT = SamplingParams()

# How the next token is chosen, see sampling_from.
sampling_options = cloup.option_group(
    "Choice of tokens",
    cloup.option(
        "--temp",
        "--temperature",
        "temp",
        type=click.FloatRange(min=0),
        default=DEFAULT.temperature,
        show_default=True,
        help="Temperature, 0 for greedy.",
    ),
    cloup.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=DEFAULT.top_k,
        show_default=True,
        help="Keep the k likeliest tokens, 0 for all.",
    ),
    cloup.option(
        "--top-p",
        type=click.FloatRange(0, 1),
        default=DEFAULT.top_p,
        show_default=True,
        help="Keep tokens up to this total probability.",
    ),
    cloup.option(
        "--min-p",
        type=click.FloatRange(0, 1),
        default=DEFAULT.min_p,
        show_default=True,
        help="Keep tokens of this probability relative to the likeliest.",
    ),
    cloup.option(
        "--repeat-penalty",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT.repeat_penalty,
        show_default=True,
        help="Penalty for repeated tokens, 1 for none.",
    ),
    cloup.option(
        "--presence-penalty",
        type=float,
        default=DEFAULT.presence_penalty,
        show_default=True,
        help="Taken from the logits of tokens that were there.",
    ),
    cloup.option(
        "--frequency-penalty",
        type=float,
        default=DEFAULT.frequency_penalty,
        show_default=True,
        help="Taken from a token's logit for each time that it was there.",
    ),
    cloup.option(
        "--repeat-last-n",
        type=click.IntRange(min=0),
        default=DEFAULT.repeat_last_n,
        show_default=True,
        help="How far back penalties look.",
    ),
    cloup.option(
        "--seed",
        type=click.IntRange(-1, SEED_MAX),
        callback=lambda _ctx, _param, seed: None if seed == -1 else seed,
        help="Seed of the sampler, -1 for a random one.  [default: random]",
    ),
    cloup.option(
        "--grammar", "grammar_file", help="File with a GBNF grammar that the text must follow."
    ),
)


def sampling_from(options: Mapping[str, Any]) -> SamplingParams:
    grammar = options["grammar_file"]
    return SamplingParams(
        temperature=options["temp"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        repeat_penalty=options["repeat_penalty"],
        repeat_last_n=options["repeat_last_n"],
        presence_penalty=options["presence_penalty"],
        frequency_penalty=options["frequency_penalty"],
        seed=options["seed"],
        grammar=None if grammar is None else read_text(grammar),
    )
