"""Sampling options."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from ..runtime.sampling import SEED_MAX, SamplingParams
from ._options import read_text
from ._types import Integer, Number, of_value, option

DEFAULT = SamplingParams()


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The fields of SamplingParams; the grammar is in a file."""

    title: ClassVar[str] = "Sampling"
    temperature: float = option(
        "--temp",
        "--temperature",
        type=Number(0),
        default=DEFAULT.temperature,
        help="Temperature, 0 for greedy.",
    )
    top_k: int = option(
        "--top-k",
        type=Integer(0),
        default=DEFAULT.top_k,
        help="Sample from this many of the likeliest tokens, 0 for all.",
    )
    top_p: float = option(
        "--top-p",
        type=Number(0, 1),
        default=DEFAULT.top_p,
        help="Sample from the likeliest tokens up to this total probability, 1 for all.",
    )
    min_p: float = option(
        "--min-p",
        type=Number(0, 1),
        default=DEFAULT.min_p,
        help="Drop tokens less likely than this share of the likeliest token's probability, 0 for "
        "none.",
    )
    repeat_penalty: float = option(
        "--repeat-penalty",
        type=Number(0, min_open=True),
        default=DEFAULT.repeat_penalty,
        help="Lower the logits of repeated tokens by this factor, 1 for no penalty.",
    )
    presence_penalty: float = option(
        "--presence-penalty",
        type=float,
        metavar="NUMBER",
        default=DEFAULT.presence_penalty,
        help="Subtract this once from the logit of each token that the text already has.",
    )
    frequency_penalty: float = option(
        "--frequency-penalty",
        type=float,
        metavar="NUMBER",
        default=DEFAULT.frequency_penalty,
        help="Subtract this times the number of occurrences so far from a token's logit.",
    )
    repeat_last_n: int = option(
        "--repeat-last-n",
        type=Integer(0),
        default=DEFAULT.repeat_last_n,
        help="Number of latest tokens that penalties consider, 0 for no penalties.",
    )
    seed: int | None = option(
        "--seed",
        type=Integer(-1, SEED_MAX),
        callback=of_value(lambda seed: None if seed == -1 else seed),
        help="Seed of the sampler, -1 for a random one.  [default: random]",
    )
    grammar_file: str | None = option(
        "--grammar",
        metavar="FILE",
        help="File with a GBNF grammar that the text must follow, - for stdin.",
    )

    def params(self) -> SamplingParams:
        given = asdict(self)
        file = given.pop("grammar_file")
        return SamplingParams(**given, grammar=None if file is None else read_text(file))
