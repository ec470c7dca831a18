"""A table of what works with every architecture that llama.cpp knows, kept in the repository.

    python tools/archs.py build FOLDER        # upstream's test program writes toy models
    python tools/arch_table.py write FOLDER   # measure them all and write the table
    python tools/arch_table.py check FOLDER   # measure and compare; status 1 where lines differ
    python tools/arch_table.py docs           # write the summary in docs/models.md

After a move to another llama.cpp the difference between two tables is what the move has changed.
Everything is measured on one thread, with random weights and tokens of a fixed seed, so that the
table is the same from run to run. Each model runs in a process of its own. The columns:

    model            the toy model's file
    memory           attention, recurrent, hybrid or none
    drafts           how rejected draft tokens are removed: any (number of them), replay (of the
                     last pass), snapshots (as many as the context keeps) or checkpoints (by going
                     back to one)
    in_place         whether K/V of existing cells can be rewritten
    skip_attn        blocks whose attention a mask can skip
    skip_ffn         blocks whose feed-forward part a mask can skip
    enter            blocks that hidden states can enter
    short_list       whether the head can look at some tokens only
    ngram            texts with drafts copied from the text, compared with plain decoding
    early_exit       texts with drafts of the first blocks, for each number of them
    mask             texts with drafts of a mask that skips some sublayers
    promised         Context.abilities.exact_width of a context with all defaults
    exact_*          rows up to which a pass has the bits of passes of one row, by the type of K/V;
                     exact_plain is without flash attention, exact_single with room for a
                     single sequence; "!" where Context.abilities.exact_width is more there
    snapshots        states that llama.cpp keeps of a recurrent memory, of the number asked for
    rollback         bits after rejected draft tokens, through llama.cpp's own calls

"same" stands for the same text or bits, "OTHER" for different ones, "refused" for an error by name,
and "-" for what does not apply: drafts need a memory that takes tokens back.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, Model, SamplingParams
from pyselfspec.errors import SelfSpecError
from pyselfspec.runtime.context_options import N_SEQ
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.ffi.load import llama
from tools import archs, upstream

TABLE = upstream.ROOT / "benchmarks" / "architectures.tsv"
PAGE = upstream.ROOT / "docs" / "models.md"
BEGIN, END = "<!-- architectures -->\n", "<!-- end of architectures -->"

N_CTX, N_BATCH = 256, 64
N_PROMPT, N_PREDICT = 18, 80
WIDTHS = (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32)  # kernels change between these
N_ROWS = 64  # compared at each width
N_SNAPSHOTS = 3
N_REJECTED_ROWS = 60

BROKEN = "!"
SAME, OTHER, REFUSED, NOTHING, CRASHED = "same", "OTHER", "refused", "-", "CRASHED"
DRAWN = SamplingParams(temperature=0.7, seed=4)

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention is computed: an option set of a context."""

    type_kv: str = "f16"
    flash: bool = True
    n_seq_max: int = N_SEQ

    def context(self, model: Model) -> Context:
        return model.context(
            n_ctx=N_CTX,
            n_batch=N_BATCH,
            n_seq_max=self.n_seq_max,
            n_threads=1,
            type_k=self.type_kv,
            type_v=self.type_kv,
            flash_attn=self.flash,
        )


TEXTS = (
    (Attention(), GREEDY),
    (Attention("q8_0"), DRAWN),
    (Attention(flash=False), DRAWN),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One model, a line of the table. See above for what the columns mean."""

    model: str
    memory: str = CRASHED
    drafts: str = NOTHING
    in_place: str = NOTHING
    skip_attn: str = NOTHING
    skip_ffn: str = NOTHING
    enter: str = NOTHING
    short_list: str = NOTHING
    ngram: str = NOTHING
    early_exit: str = NOTHING
    mask: str = NOTHING
    promised: str = NOTHING
    exact_f16: str = NOTHING
    exact_q8_0: str = NOTHING
    exact_q4_0: str = NOTHING
    exact_plain: str = NOTHING
    exact_single: str = NOTHING
    snapshots: str = NOTHING
    rollback: str = NOTHING

    @property
    def faults(self) -> list[str]:
        """Return the contradictions to promises of the library."""
        faults = [f"{name} gives another text" for name in DRAFTS if getattr(self, name) == OTHER]
        faults += [
            f"{name}: passes have the bits of passes of one row up to {width.strip(BROKEN)} rows, "
            "exact_width promises more"
            for name in EXACT
            if (width := getattr(self, name)).endswith(BROKEN)
        ]
        return [*faults, CRASHED] if self.memory == CRASHED else faults


COLUMNS = [each.name for each in fields(Row)]
DRAFTS = ("ngram", "early_exit", "mask")
EXACT = {
    "exact_f16": Attention(),
    "exact_q8_0": Attention("q8_0"),
    "exact_q4_0": Attention("q4_0"),
    "exact_plain": Attention(flash=False),
    "exact_single": Attention(n_seq_max=1),
}


#
# what the library says
#


def memory_kind(model: Model, context: Context) -> str:
    if not context.abilities.has_memory:
        return "none"
    if llama.llama_model_is_recurrent(model.handle):
        return "recurrent"
    return "hybrid" if llama.llama_model_is_hybrid(model.handle) else "attention"


def removal(context: Context) -> str:
    if context.abilities.can_rollback:
        return "any"
    if context.abilities.max_rollback:
        return "replay" if context.model.replays_states else "snapshots"
    return "checkpoints" if context.abilities.can_draft else NOTHING


def yes(answer: bool) -> str:
    return "yes" if answer else NOTHING


def listed(blocks: Iterable[int]) -> str:
    return ",".join(map(str, sorted(blocks))) or NOTHING


def with_answers(row: Row, model: Model) -> Row:
    """Fill in the properties of a context with this model, which need no computation."""
    with Attention().context(model) as context:
        bits = int(calls.session_memory(context.session))
        support = context.mask_support
        return replace(
            row,
            memory=memory_kind(model, context),
            drafts=removal(context),
            in_place=yes(bool(bits & calls.MEMORY_IN_PLACE)),
            skip_attn=listed(support.attn),
            skip_ffn=listed(support.ffn),
            enter=listed(filter(context.can_enter, range(1, model.n_layer))),
            short_list=yes(context.can_shorten),
            promised=str(context.abilities.exact_width),
        )


#
# texts with drafts and without
#


def masks_by_column(n_layer: int) -> dict[str, list[LayerMask | None]]:
    return {
        "ngram": [None],
        "early_exit": [LayerMask.early_exit(n_layer, n) for n in range(1, n_layer)],
        "mask": [LayerMask.skipping(n_layer, attn=[0], ffn=[n_layer - 1])],
    }


def written(
    model: Model, attention: Attention, sampling: SamplingParams, **options: Any
) -> list[int]:
    prompt = archs.random_tokens(N_PROMPT // 2) * 2
    with attention.context(model) as context:
        text = Completion(context, prompt, n_predict=N_PREDICT, sampling=sampling, **options)
        for _ in text:
            pass
        return list(text.tokens)


def drafted(
    model: Model, attention: Attention, sampling: SamplingParams, mask: LayerMask | None
) -> list[int]:
    draft = "layer-skip" if mask else "ngram"
    controller = Fixed(5, p_min=0)
    return written(model, attention, sampling, draft=draft, mask=mask, controller=controller)


def compared(
    plain: list[int],
    model: Model,
    attention: Attention,
    sampling: SamplingParams,
    mask: LayerMask | None,
) -> str:
    try:
        return SAME if drafted(model, attention, sampling, mask) == plain else OTHER
    except SelfSpecError:
        return REFUSED


def worst_of(found: set[str]) -> str:
    return next((each for each in (OTHER, REFUSED, SAME) if each in found), NOTHING)


def with_texts(row: Row, model: Model) -> Row:
    with Attention().context(model) as context:
        if not context.abilities.can_draft:
            return row
        columns = DRAFTS if context.abilities.can_rollback else ("ngram",)
    found: dict[str, set[str]] = {column: set() for column in columns}
    for attention, sampling in TEXTS:
        try:
            plain = written(model, attention, sampling, draft=None)
        except SelfSpecError:
            continue  # this type of K/V does not fit the model
        for column, masks in masks_by_column(model.n_layer).items():
            if column in found:
                found[column] |= {
                    compared(plain, model, attention, sampling, mask) for mask in masks
                }
    return replace(row, **{column: worst_of(each) for column, each in found.items()})


#
# bits at each width
#


def logits_at(model: Model, attention: Attention, width: int) -> Logits:
    """Logits of the tokens after a prompt, fed so many at a time; every time in a new context,
    since not every memory takes tokens back."""
    tokens = archs.random_tokens(N_PROMPT + N_ROWS)
    rest = tokens[N_PROMPT:]
    with attention.context(model) as context:
        context.decode(tokens[:N_PROMPT], outputs="none")
        parts = [rest[i : i + width] for i in range(0, N_ROWS, width)]
        return np.concatenate([context.decode(part).logits for part in parts])


def promised_by(model: Model, attention: Attention) -> int:
    with attention.context(model) as context:
        return context.abilities.exact_width


def exact_up_to(model: Model, attention: Attention) -> str:
    try:
        promised = promised_by(model, attention)
        want = logits_at(model, attention, 1)
        exact = 1
        for width in WIDTHS:
            if not np.array_equal(logits_at(model, attention, width), want):
                break
            exact = width
    except SelfSpecError:
        return REFUSED
    return f"{exact}{BROKEN if exact < promised else ''}"


def with_widths(row: Row, model: Model) -> Row:
    return replace(row, **{name: exact_up_to(model, way) for name, way in EXACT.items()})


#
# rollback through llama.cpp's own calls
#


class StockContext:
    """A context of llama.cpp's own interface, which knows snapshots of recurrent states."""

    def __init__(self, model: Model, n_snapshots: int) -> None:
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = N_CTX, N_BATCH, N_BATCH
        params.n_threads, params.n_threads_batch, params.n_seq_max = 1, 1, 2
        params.n_rs_seq, params.kv_unified, params.swa_full = n_snapshots, True, True
        self.n_vocab = model.n_vocab
        self.handle = llama.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise SelfSpecError("llama.cpp makes no context")

    def __enter__(self) -> StockContext:
        return self

    def __exit__(self, *_: object) -> None:
        llama.llama_free(self.handle)

    @property
    def n_snapshots(self) -> int:
        return int(llama.llama_n_rs_seq(self.handle))

    def decode(self, tokens: Sequence[int], pos: int) -> Logits:
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, pos + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        status = llama.llama_decode(self.handle, batch)
        llama.llama_batch_free(batch)
        if status != 0:
            raise SelfSpecError(f"llama_decode gives {status}")
        rows = [llama.llama_get_logits_ith(self.handle, i) for i in range(len(tokens))]
        return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])

    def remove_from(self, pos: int) -> bool:
        memory = llama.llama_get_memory(self.handle)
        return bool(llama.llama_memory_seq_rm(memory, 0, pos, -1))


def rolled_back(context: StockContext, text: list[int], want: Logits) -> str:
    """Passes over the text with draft tokens of which a random number is wrong."""
    rng = np.random.default_rng(archs.SEED)
    pos = 0
    while pos + N_SNAPSHOTS < len(text):
        n_right = int(rng.integers(1, N_SNAPSHOTS + 2))
        wrong = [(token + 1) % 100 for token in text[pos + n_right : pos + N_SNAPSHOTS + 1]]
        got = context.decode(text[pos : pos + n_right] + wrong, pos)
        if not np.array_equal(got[:n_right], want[pos : pos + n_right]):
            return OTHER
        pos += n_right
        if wrong and not context.remove_from(pos):
            return REFUSED
    return SAME


def with_rollback(row: Row, model: Model) -> Row:
    if row.memory == "none":
        return row
    text = archs.random_tokens(N_REJECTED_ROWS)
    try:
        with StockContext(model, 0) as context:
            want = np.concatenate([context.decode([token], i) for i, token in enumerate(text)])
        with StockContext(model, N_SNAPSHOTS) as context:
            snapshots = str(context.n_snapshots)
            return replace(row, snapshots=snapshots, rollback=rolled_back(context, text, want))
    except SelfSpecError:
        return replace(row, rollback=REFUSED)


#
# all models
#


def measure(path: Path) -> Row:
    row = Row(path.stem)
    with Model(path, n_gpu_layers=0) as model:
        for fill_in in (with_answers, with_texts, with_widths, with_rollback):
            row = fill_in(row, model)
    return row


def measure_in_own_process(path: Path) -> Row:
    found, crash = archs.run_in_own_process(__file__, path)
    return Row(path.stem) if crash else Row(**found)


def lines(rows: Iterable[Row]) -> list[str]:
    cells = [COLUMNS, *([getattr(row, name) for name in COLUMNS] for row in rows)]
    return ["\t".join(each) + "\n" for each in cells]


def difference(rows: Sequence[Row]) -> list[str]:
    """Lines of the kept table that are no longer true, and those that are instead."""
    kept = TABLE.read_text(encoding="utf-8").splitlines(keepends=True)
    return list(difflib.unified_diff(kept, lines(rows), TABLE.name, "measured", n=0))


def measured(folder: Path) -> list[Row]:
    """All models in the folder; what contradicts a promise is told at once."""
    rows = []
    for row in archs.for_each_model(folder, measure_in_own_process):
        rows.append(row)
        for fault in row.faults:
            click.echo(f"{row.model}: {fault}", err=True)
    return rows


#
# the summary for readers
#

DRAFTERS = {
    "any": "all",
    "replay": "`ngram`, heads, second models",
    "snapshots": "`ngram`, heads, second models",
    "checkpoints": "`ngram`, second models",
    NOTHING: "none",
}


def kept_rows() -> list[Row]:
    """The rows of the table in the repository."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return [Row(*line.split("\t")) for line in lines]


def summary(rows: Iterable[Row]) -> str:
    """A Markdown table of architectures by how they draft."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        name = row.model.rsplit("-", 1)[0]  # without dense or moe
        groups.setdefault((row.drafts, row.promised), {})[name] = None
    ranks = list(DRAFTERS)
    lines = ["| removal | drafters | exact | architectures |", "|---|---|---:|---|"]
    for (drafts, promised), names in sorted(groups.items(), key=lambda g: ranks.index(g[0][0])):
        removal = {NOTHING: "none"}.get(drafts, drafts)
        cells = (removal, DRAFTERS[drafts], promised, ", ".join(sorted(names)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_summary(page: str, rows: Iterable[Row]) -> str:
    """The page with a new table between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + summary(rows) + END + after


FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("check-one", hidden=True)
@click.argument("path", type=click.Path(path_type=Path))
def check_one(path: Path) -> None:
    click.echo(json.dumps(asdict(measure(path))))


@main.command()
@click.argument("folder", type=FOLDER)
def write(folder: Path) -> None:
    """Measure every model in FOLDER and write the table."""
    TABLE.write_text("".join(lines(measured(folder))), encoding="utf-8")


@main.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Measure every model in FOLDER; status 1 and the lines where the table differs."""
    changed = difference(measured(folder))
    click.echo("".join(changed), nl=False)
    sys.exit(bool(changed))


@main.command()
def docs() -> None:
    """Write the summary of the table into docs/models.md."""
    PAGE.write_text(with_summary(PAGE.read_text(encoding="utf-8"), kept_rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
