"""Sampling options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cloup

from ..runtime.sampling import SEED_MAX, SamplingParams
from ._options import read_text
from ._types import Integer, Number

DEFAULT = SamplingParams()

# Read by sampling_from.
sampling_options = cloup.option_group(
    "Sampling",
    cloup.option(
        "--temp",
        "--temperature",
        "temp",
        type=Number(0),
        default=DEFAULT.temperature,
        help="Temperature, 0 for greedy.",
    ),
    cloup.option(
        "--top-k",
        type=Integer(0),
        default=DEFAULT.top_k,
        help="Sample from this many of the likeliest tokens, 0 for all.",
    ),
    cloup.option(
        "--top-p",
        type=Number(0, 1),
        default=DEFAULT.top_p,
        help="Sample from the likeliest tokens up to this total probability, 1 for all.",
    ),
    cloup.option(
        "--min-p",
        type=Number(0, 1),
        default=DEFAULT.min_p,
        help="Drop tokens less likely than this share of the likeliest token's probability, 0 for "
        "none.",
    ),
    cloup.option(
        "--repeat-penalty",
        type=Number(0, min_open=True),
        default=DEFAULT.repeat_penalty,
        help="Lower the logits of repeated tokens by this factor, 1 for no penalty.",
    ),
    cloup.option(
        "--presence-penalty",
        type=float,
        metavar="NUMBER",
        default=DEFAULT.presence_penalty,
        help="Subtract this once from the logit of each token that the text already has.",
    ),
    cloup.option(
        "--frequency-penalty",
        type=float,
        metavar="NUMBER",
        default=DEFAULT.frequency_penalty,
        help="Subtract this times the number of occurrences so far from a token's logit.",
    ),
    cloup.option(
        "--repeat-last-n",
        type=Integer(0),
        default=DEFAULT.repeat_last_n,
        help="Number of latest tokens that penalties consider, 0 for no penalties.",
    ),
    cloup.option(
        "--seed",
        type=Integer(-1, SEED_MAX),
        callback=lambda _ctx, _param, seed: None if seed == -1 else seed,
        help="Seed of the sampler, -1 for a random one.  [default: random]",
    ),
    cloup.option(
        "--grammar",
        "grammar_file",
        metavar="FILE",
        help="File with a GBNF grammar that the text must follow, - for stdin.",
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
