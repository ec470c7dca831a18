"""Made-up results of `pyselfspec bench`, of three variants, two prompts and three rounds; readers
of its formats."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields, replace
from typing import Any

from pyselfspec.bench.file import parse_line
from pyselfspec.bench.formats import SETUP_PREFIX
from pyselfspec.bench.types import (
    PLAIN,
    Results,
    Run,
    Setup,
    SourceCounts,
    StepRecord,
    VariantName,
    Widths,
)
from pyselfspec.costs.table import N_WIDTH, Costs, CostTable
from pyselfspec.util import records

VARIANTS = (
    VariantName(PLAIN, ""),
    VariantName("auto", "ngram+layer-skip"),
    VariantName("ngram", "ngram"),
)


SETUP = Setup(
    version="1",
    build="b<1>",
    model="a&b.gguf",
    fingerprint="f" * 64,
    architecture="llama",
    file_type="Q8_0",
    n_params=12_000_000,
    n_bytes=13_000_000,
    machine='a "machine", 2 cores',
    cpu_code="native",
    system="CPU : AVX2 = 1 |",
    threads=1,
    n_gpu_layers=0,
    n_ctx=512,
    attention="auto",
    prompts="mine | yours.jsonl",
    prompts_sha256="0" * 64,
    n_prompts=2,
    template=True,
    n_predict=20,
    temperature=0.0,
    seed=0,
    controller="auto",
    variants=VARIANTS,
    mask=None,
    command="pyselfspec bench -p '</script> & co'",
    date="2026-01-01",
)


PLAIN_STEP = StepRecord(0, 1000, {}, ("a ",), ("",))


DRAFTED = StepRecord(
    10, 1200, {"ngram": 3}, ("<b>", "&", "https://example.org "), ("ngram", "ngram", "")
)


def run(variant: str = PLAIN, prompt: str = "p", i: int = 0, **changes: Any) -> Run:
    """20 tokens in 20 ms plainly, in 10 ms with drafts."""
    drafts = variant != PLAIN
    made = Run(
        prompt=prompt,
        task="chat" if prompt == "p" else "code",
        round=i,
        variant=variant,
        n_prompt=11,
        prompt_us=5000,
        n_tokens=20,
        us=10_000 if drafts else 20_000,
        n_passes=8 if drafts else 20,
        n_drafted_at=(8, 8) if drafts else (),
        n_accepted_at=(8, 4) if drafts else (),
        sources={"ngram": SourceCounts((8, 8), (8, 4))} if drafts else {},
        text_sha256="same",
        finish_reason="length",
        steps=((DRAFTED,) * 8 if drafts else (PLAIN_STEP,) * 20) if i == 0 else (),
    )
    return replace(made, **changes)


def costs(n_past: int) -> Costs:
    full = tuple(1000.0 + 100 * i for i in range(N_WIDTH))
    return Costs(n_past, full, full, 0.0, 0.0)


NAMES = [variant.name for variant in VARIANTS]


EVERY = tuple(run(variant, p, i) for i in range(3) for p in ("p", "q") for variant in NAMES)


RESULTS = Results(SETUP, EVERY, Widths(CostTable((costs(8), costs(256))), 3))


def from_json_lines(text: str) -> Results:
    """Return the results in a file, or in the format "jsonl"."""
    head, *lines = text.splitlines()
    found = Results(records.decode(head, Setup))
    for line in lines:
        found = found.with_line(parse_line(line))
    return found


def from_csv(text: str) -> list[dict[str, Any]]:
    """Return the runs with the setup's fields, every cell with the type that it had."""
    types = {field.name: field.type for field in (*fields(Run), *fields(Setup))}
    return [
        {
            name: cell if types.get(name.removeprefix(SETUP_PREFIX)) == "str" else json.loads(cell)
            for name, cell in line.items()
        }
        for line in csv.DictReader(io.StringIO(text))
    ]
