"""A model's row in the table of architectures (tools/arch_table.py): what works with it.

Everything is measured on one thread, with random weights and tokens of a fixed seed, so that a
row is the same from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, Model, SamplingParams
from pyselfspec.errors import SelfSpecError
from pyselfspec.runtime.context_options import N_SEQ
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.ffi.load import llama
from tools import archs

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
    """One model.

    model: the toy model's file.
    memory: attention, recurrent, hybrid or none.
    drafts: how rejected draft tokens are removed: any (number of them), replay (of the last pass),
        snapshots (as many as the context keeps) or checkpoints (by going back to one).
    in_place: whether K/V of existing cells can be rewritten.
    skip_attn, skip_ffn: blocks whose attention, or feed-forward part, a mask can skip.
    enter: blocks that hidden states can enter.
    short_list: whether the head can look at some tokens only.
    ngram: texts with drafts copied from the text, compared with plain decoding.
    early_exit: texts with drafts of the first blocks, for each number of them.
    mask: texts with drafts of a mask that skips some sublayers.
    promised: Context.abilities.exact_width of a context with all defaults.
    exact_*: rows up to which a pass has the bits of passes of one row, by the type of K/V;
        exact_plain is without flash attention, exact_single with room for a single sequence; "!"
        where Context.abilities.exact_width is more there.
    snapshots: states that llama.cpp keeps of a recurrent memory, of the number asked for.
    rollback: bits after rejected draft tokens, through llama.cpp's own calls.

    "same" stands for the same text or bits, "OTHER" for different ones, "refused" for an error by
    name, and "-" for what does not apply: drafts need a memory that takes tokens back.
    """

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
    """Return the logits of the tokens after a prompt, fed `width` at a time. Every call makes a new
    context, since not every memory takes tokens back."""
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


def measure(path: Path) -> Row:
    row = Row(path.stem)
    with Model(path, n_gpu_layers=0) as model:
        for fill_in in (with_answers, with_texts, with_widths, with_rollback):
            row = fill_in(row, model)
    return row
