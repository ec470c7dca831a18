"""Acceptance and speed of the draft head in a model's own file, with a short list and without."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from pyselfspec import Completion, Context, DraftConfig, Fixed, Model, SamplingParams
from pyselfspec.speculate.drafters import head
from pyselfspec.speculate.stats import GenerationStats
from pyselfspec.util.paths import SAMPLE_TEXT
from tools.records import Record, provenance

from ._options import file_path, keep, model_argument, progress, run_options
from ._table import Table

PLAIN, WHOLE, SHORT, AUTO = "plain", "head", "head, short list", "head, auto"
N_CTX = 512
N_PROMPT = 48  # tokens


@dataclass(slots=True)
class Mode:
    """Results of one mode. us: microseconds of a round without the prompts, per token."""

    draft: DraftConfig | None
    us: list[float] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)

    def to_dict(self) -> Record:
        counts = self.stats
        return {
            "us_per_token": [round(us, 1) for us in self.us],
            "n_generated": counts.n_generated,
            "n_steps": counts.n_steps,
            "n_drafted_at": counts.n_drafted_at,
            "n_accepted_at": counts.n_accepted_at,
        }


def modes(n_max: int, shortlist: int) -> dict[str, Mode]:
    """A fixed length without a least probability shows acceptance; ``auto`` is the default."""
    fixed = Fixed(n_max, p_min=0)
    short = head.Options(shortlist=shortlist)
    return {
        PLAIN: Mode(None),
        WHOLE: Mode(DraftConfig("head", options=head.Options(), controller=fixed)),
        SHORT: Mode(DraftConfig("head", options=short, controller=fixed)),
        AUTO: Mode(DraftConfig("head", options=head.Options())),
    }


def prompts_of(model: Model, path: Path, n: int) -> list[list[int]]:
    """Pieces of the text, equally far apart."""
    tokens = model.tokenize(path.read_text(), add_special=False)
    step = max(1, (len(tokens) - N_PROMPT) // n)
    first = model.tokenize("")  # what a text begins with
    return [[*first, *tokens[i * step :][:N_PROMPT]] for i in range(n)]


def generate(context: Context, prompt: list[int], mode: Mode, n: int, temp: float) -> Completion:
    context.sequence().drop()
    text = Completion(
        context,
        prompt,
        n_predict=n,
        sampling=SamplingParams(temperature=temp, seed=0),
        draft=mode.draft,
        profile=False,
    )
    for _ in text:
        pass
    return text


def compare(
    context: Context, texts: list[list[int]], by_name: dict[str, Mode], rounds: int, **how: Any
) -> None:
    """Generate every text in every mode, in turn; the first round is not counted.

    Raises ClickException where drafts change a text.
    """
    for i in progress(range(rounds + 1), "rounds"):
        sums = dict.fromkeys(by_name, (0, 0))
        for prompt in texts:
            plain: list[int] = []
            for name, mode in by_name.items():
                text = generate(context, prompt, mode, **how)
                plain = plain or text.tokens
                if text.tokens != plain:
                    raise click.ClickException(f"{name}: another text than plain decoding")
                us, n = sums[name]
                counts = text.stats
                sums[name] = (us + counts.total_us - counts.prefill_us, n + counts.n_generated)
                if i:
                    mode.stats.add(counts)
        for name, (us, n) in sums.items() if i else ():
            by_name[name].us.append(us / n)


@click.command()
@model_argument
@run_options
@click.option("--text", type=file_path(), default=SAMPLE_TEXT, help="Where prompts come from.")
@click.option("--prompts", type=click.IntRange(min=1), default=8)
@click.option("--rounds", type=click.IntRange(min=3), default=5)
@click.option("--tokens", type=click.IntRange(min=16), default=128)
@click.option("--length", type=click.IntRange(min=1), default=3, help="Of drafts, tokens.")
@click.option("--shortlist", type=click.IntRange(min=1), default=512, help="Tokens.")
@click.option("--temp", type=click.FloatRange(min=0), default=0.0)
def command(
    model: Path,
    threads: int,
    out: Path | None,
    text: Path,
    prompts: int,
    rounds: int,
    tokens: int,
    length: int,
    shortlist: int,
    temp: float,
) -> None:
    """Acceptance and speed of the head in the model's file."""
    with Model(model) as opened, opened.context(n_ctx=N_CTX, n_threads=threads) as context:
        if opened.own_head is None:
            raise click.ClickException(f"{model} has no draft head")
        by_name, texts = modes(length, shortlist), prompts_of(opened, text, prompts)
        compare(context, texts, by_name, rounds, n=tokens, temp=temp)
        record: Record = {
            "n_vocab": opened.n_vocab,
            "n_blocks": opened.own_head.kind.n_chained,
            "shortlist": shortlist,
            "temp": temp,
            "length": length,
            "modes": {name: mode.to_dict() for name, mode in by_name.items()},
        }
    given = f" --length {length} --shortlist {shortlist} --temp {temp:g}"
    given += f" --prompts {prompts} --rounds {rounds} --tokens {tokens}"
    keep(provenance("own-head", model, threads, given) | record, TABLES[0], out)


#
# figures
#


def cells(record: Record) -> list[list[str]]:
    """One row for each way to draft."""
    plain = record["modes"][PLAIN]
    rows = []
    for name, mode in record["modes"].items():
        if name == PLAIN:
            continue
        pairs = zip(mode["n_accepted_at"], mode["n_drafted_at"], strict=False)
        by_position = ", ".join(f"{accepted / drafted:.2f}" for accepted, drafted in pairs)
        speeds = [a / b for a, b in zip(plain["us_per_token"], mode["us_per_token"], strict=True)]
        rows.append(
            [
                record["model"],
                str(record["n_blocks"]),
                f"{record['temp']:g}",
                name.replace("short list", f"{record['shortlist']} of {record['n_vocab']}"),
                by_position or "-",
                f"{mode['n_generated'] / mode['n_steps']:.2f}",
                f"{statistics.median(speeds):.3f}",
                f"{min(speeds):.3f} to {max(speeds):.3f}",
            ]
        )
    return rows


TABLES = (
    Table(
        "own-head",
        (
            "model",
            "blocks of the head",
            "temperature",
            "draft",
            "acceptance by position",
            "tokens per pass",
            "speed over plain",
            "spread",
        ),
        "<>><>>>>",
        cells,
    ),
)
