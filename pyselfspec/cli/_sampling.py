"""Sampling options."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import click

from ..runtime import json_schema
from ..runtime.sampling import SEED_MAX, SamplingParams
from ._options import STDIN, read_text
from ._types import Integer, Number, of_value, option, rare

DEFAULT = SamplingParams()
NONE = "none"


def _breakers(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sequence breakers of the command line, or the usual ones."""
    return tuple(each for each in given if each != NONE) if given else DEFAULT.dry_sequence_breakers


def temperature_option() -> Any:
    return option(
        "--temp",
        "--temperature",
        type=Number(0),
        default=DEFAULT.temperature,
        help="Temperature, 0: greedy.",
    )


@dataclass(frozen=True, slots=True)
class FurtherSamplingOptions:
    """The samplers that are off by default."""

    title: ClassVar[str] = "Further samplers (off by default; no effect with --temp 0, except DRY)"
    dry_multiplier: float = rare(
        "--dry-multiplier",
        type=Number(0),
        default=DEFAULT.dry_multiplier,
        help="Strength of DRY, which lowers the logits of tokens that continue a repetition, 0 for "
        "none.",
    )
    dry_base: float = rare(
        "--dry-base",
        type=Number(1),
        default=DEFAULT.dry_base,
        help="Factor by which DRY grows with each token of the repetition.",
    )
    dry_allowed_length: int = rare(
        "--dry-allowed-length",
        type=Integer(0),
        default=DEFAULT.dry_allowed_length,
        help="Number of repeated tokens from which on DRY acts.",
    )
    dry_penalty_last_n: int = rare(
        "--dry-penalty-last-n",
        type=Integer(-1),
        default=DEFAULT.dry_penalty_last_n,
        help="Number of latest tokens that DRY reads, -1 for all.",
    )
    dry_sequence_breakers: tuple[str, ...] = rare(
        "--dry-sequence-breaker",
        metavar="TEXT",
        multiple=True,
        callback=of_value(_breakers),
        help="Text that no repetition reaches across, in place of the usual ones; repeatable; none "
        "for no such text.  [default: line break, colon, double quote and asterisk]",
    )
    top_n_sigma: float = rare(
        "--top-nsigma",
        "--top-n-sigma",
        type=Number(0),
        default=DEFAULT.top_n_sigma,
        help="Sample from tokens whose logits are within this many standard deviations of the best "
        "one, 0 for all.",
    )
    typical_p: float = rare(
        "--typical",
        "--typical-p",
        type=Number(0, 1),
        default=DEFAULT.typical_p,
        help="Sample from the tokens whose surprise is nearest to the expected one, up to this "
        "total probability, 1 for all.",
    )
    xtc_probability: float = rare(
        "--xtc-probability",
        type=Number(0, 1),
        default=DEFAULT.xtc_probability,
        help="Probability of XTC, which drops all but the least likely of the likely tokens.",
    )
    xtc_threshold: float = rare(
        "--xtc-threshold",
        type=Number(0, 1),
        default=DEFAULT.xtc_threshold,
        help="Probability from which on a token is likely for XTC; above 0.5 XTC is off.",
    )
    dynatemp_range: float = rare(
        "--dynatemp-range",
        type=Number(0),
        default=DEFAULT.dynatemp_range,
        help="Lower the temperature by up to this where the model is certain, and raise it where "
        "it is not.",
    )
    dynatemp_exponent: float = rare(
        "--dynatemp-exp",
        type=Number(0),
        default=DEFAULT.dynatemp_exponent,
        help="Exponent of the entropy, as a share of its maximum, that decides the temperature in "
        "this range.",
    )


@dataclass(frozen=True, slots=True)
class SamplingOptions(FurtherSamplingOptions):
    """The fields of SamplingParams; the grammar is in a file."""

    title: ClassVar[str] = "Sampling"
    temperature: float = temperature_option()
    top_k: int = rare(
        "--top-k",
        type=Integer(0),
        default=DEFAULT.top_k,
        help="Sample from this many of the likeliest tokens, 0 for all.",
    )
    top_p: float = rare(
        "--top-p",
        type=Number(0, 1),
        default=DEFAULT.top_p,
        help="Sample from the likeliest tokens up to this total probability, 1 for all.",
    )
    min_p: float = rare(
        "--min-p",
        type=Number(0, 1),
        default=DEFAULT.min_p,
        help="Drop tokens less likely than this share of the likeliest token's probability, 0 for "
        "none.",
    )
    repeat_penalty: float = rare(
        "--repeat-penalty",
        type=Number(0, min_open=True),
        default=DEFAULT.repeat_penalty,
        help="Lower the logits of repeated tokens by this factor, 1 for no penalty.",
    )
    presence_penalty: float = rare(
        "--presence-penalty",
        type=float,
        metavar="NUMBER",
        default=DEFAULT.presence_penalty,
        help="Subtract this once from the logit of each token that the text already has.",
    )
    frequency_penalty: float = rare(
        "--frequency-penalty",
        type=float,
        metavar="NUMBER",
        default=DEFAULT.frequency_penalty,
        help="Subtract this times the number of occurrences so far from a token's logit.",
    )
    repeat_last_n: int = rare(
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
    grammar_file: str | None = rare(
        "--grammar",
        metavar="FILE",
        help="File with a GBNF grammar that the text must follow, - for stdin.",
    )

    json_schema: str | None = option(
        "-j",
        "--json-schema",
        metavar="JSON|@FILE",
        help="JSON schema that the text must follow, or @ and a file that holds one.",
    )

    def params(self) -> SamplingParams:
        given = asdict(self)
        file, schema = given.pop("grammar_file"), given.pop("json_schema")
        if file is not None and "::=" in file:
            raise click.UsageError("--grammar takes a file with the grammar, or - for stdin")
        if schema is None:
            return SamplingParams(**given, grammar=None if file is None else read_text(file))
        if file is not None:
            raise click.UsageError("give --grammar or --json-schema, not both")
        return SamplingParams(**given, grammar=_grammar_of(schema))


def _grammar_of(given: str) -> str:
    """Return the grammar of a JSON schema: a text, or @ and the name of a file.

    Raises ArgumentError for a schema that is not supported, UsageError for text that is not one.
    """
    is_file = given.startswith("@")
    if given[1:] == STDIN and is_file:
        raise click.UsageError("--json-schema takes no stdin; give @ and the name of a file")
    try:
        schema = json.loads(read_text(given[1:]) if is_file else given)
    except (json.JSONDecodeError, RecursionError) as error:
        what, advice = "this", "; give JSON, or @ and the name of a file"
        if is_file:
            what, advice = given[1:], ""
        raise click.UsageError(f"--json-schema: {what} is not JSON: {error}{advice}") from None
    if not isinstance(schema, dict):
        raise click.UsageError('--json-schema: a schema is a JSON object, like {"type": "array"}')
    return json_schema.to_gbnf(schema)
