"""Random calls of models, contexts, passes, sequences and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyselfspec import GREEDY, Completion, LayerMask, Model, generate_batch
from pyselfspec.runtime.context import Context
from pyselfspec.runtime.kv import KVSequence
from pyselfspec.runtime.kv_types import CACHE_TYPES
from pyselfspec.runtime.passes import Hidden, Pass, PictureRows, Rows
from pyselfspec.runtime.sequence_snapshot import SavedSequence, restore_sequence, save_sequence
from pyselfspec.runtime.short_list import ShortList
from pyselfspec.speculate.output.record import CONTEXT_FULL

from .world import MANY, World

N_TEXT = 10  # tokens of a text that is compared


# --- models and contexts ------------------------------------------------------------------------


def open_model(w: World) -> None:
    path = w.rng.choice(w.files.models)
    lora = w.rng.sample(w.files.adapters, min(len(w.files.adapters), w.rng.randint(0, 2)))
    if w.often(0.6):
        lora = []
    load = w.rng.choice(("copy", "map", "auto", "copy", "map", "auto", "neither"))
    w.add(
        w.models,
        w.make(
            f"Model({path.name}, {load}, {len(lora)})", lambda: Model(path, load=load, lora=lora)
        ),
    )


def open_context(w: World) -> None:
    model = w.model()
    if model is None:
        return
    options: dict[str, Any] = {
        "n_ctx": w.number(1, 600),
        "n_batch": w.number(4, 64),
        "n_threads": w.number(1, 2),
        "n_seq_max": w.number(1, 4),
    }
    types = (*CACHE_TYPES, "f16", "f16", "q9")
    for name, choices in (
        ("type_k", types), ("type_v", types), ("flash_attn", (None, True, False)),
        ("n_snapshots", (None, 0, 2, 15, -1, 99)), ("n_checkpoints", (1, 4, 0)),
    ):  # fmt: skip
        if w.often(0.25):
            options[name] = w.rng.choice(choices)
    w.add(w.contexts, w.make(f"context({options})", lambda: model.context(**options)))


def close_something(w: World) -> None:
    pools: list[list[Any]] = [w.contexts, w.heads, w.others]
    pool = w.models if not w.often(0.9) else w.rng.choice(pools)
    if pool:
        each = w.rng.choice(pool)
        w.make(f"close {type(each).__name__}", each.close)


def ask(w: World) -> None:
    """Read facts of a context, a model and a sequence."""
    context = w.context()
    if context is None:
        return
    name = w.rng.choice(
        "mask_support can_shorten n_moves graph_bytes has_spare n_branches handle session".split()
    )
    w.make(f"Context.{name}", lambda: getattr(context, name))
    block, row = w.number(0, context.model.n_layer), w.number(-2, 12)
    w.make(f"can_enter({block})", lambda: context.can_enter(block))
    w.make(f"argmax({row})", lambda: context.argmax(row))
    w.make(f"logits({row})", lambda: context.logits(row))
    model, text = context.model, w.rng.choice(("", "a b", "\ud800", "né" * 40, "<s>"))
    w.make(f"tokenize({text!r})", lambda: model.tokenize(text))
    token = w.number(0, model.n_vocab - 1)
    w.make(f"piece({token})", lambda: (model.piece(token), model.is_eog(token)))


# --- passes and sequences -----------------------------------------------------------------------


def decode(w: World) -> None:
    """Continue one sequence, plainly or with states, masks and copies."""
    context = w.context()
    seq = None if context is None else w.sequence(context)
    if context is None or seq is None:
        return
    model = context.model
    tokens = w.tokens(model)
    options: dict[str, Any] = {"outputs": w.rng.choice(("all", "last", "none", "all", "some"))}
    if w.often(0.3):
        options["mask"] = w.mask(model)
    if w.often(0.2):
        options["hidden_at"] = w.rng.choice(
            (w.number(1, model.n_layer), (1, w.number(1, model.n_layer)), ())
        )
    if w.often(0.15):
        options["head"] = w.rng.choice(("best", "best", "worst"))
    if w.often(0.15):
        first = w.number(1, model.n_layer - 1)
        options["mask"] = w.make(
            f"enter_at({first})", lambda: LayerMask.enter_at(model.n_layer, first)
        )
        options["hidden"] = w.states(len(tokens), model.n_embd)
    if w.often(0.1):
        options["pos"] = w.number(0, 40)
        options["in_place"] = w.often(0.6)
    given = None if w.rng.random() < 0.03 else tokens
    shown = {k: v for k, v in options.items() if k != "hidden"}
    made = w.make(
        f"decode({given}, seq {seq.seq_id}, {shown})",
        lambda: context.decode(given, seq=seq, **options),
    )
    if made is not None:
        w.make("PassResult.logits", lambda: made.logits)


def run_rows(w: World) -> None:
    """Run rows of several sequences, with shared ones, lists of tokens, adapters and pictures."""
    context = w.context()
    if context is None:
        return
    parts = []
    for _ in range(w.rng.randint(1, 3)):
        seq = w.sequence(context)
        past = 0 if seq is None else w.make("n_past", lambda seq=seq: seq.n_past) or 0  # type: ignore[misc]
        pos = past if w.often(0.9) else w.number(0, 40)
        i = w.number(0, 3) if seq is None else seq.seq_id
        parts.append(Rows.of(i, pos, w.tokens(context.model, 0, 6), w.rng.choice(("all", "last"))))
    rows = Rows.joined(parts)
    if not w.often(0.9):
        rows = Rows(rows.tokens, rows.seq_ids, rows.pos[1:], rows.outputs)
    elif not w.often(0.8):
        shared = tuple((w.number(0, context.n_seq_max - 1),) for _ in rows.tokens)
        rows = Rows(rows.tokens, rows.seq_ids, rows.pos, rows.outputs, shared)
    options: dict[str, Any] = {"adapters": w.adapters(context)}
    if w.often(0.15):
        options |= {"head": "best", "among": _short_list(w, context.model)}
    elif w.often(0.3):
        options["n_best"] = w.number(0, context.model.n_vocab)
    if w.often(0.1):
        options["embedded"] = _picture_rows(w, context.model, len(rows))
    w.make(f"run({rows}, {list(options)})", lambda: context.run(rows, Pass(**options)))


def _picture_rows(w: World, model: Model, n: int) -> PictureRows | None:
    states = w.make("Hidden", lambda: Hidden(w.states(n, model.n_embd)))
    grid = None if w.often() else np.array([(i // 4, i % 4) for i in range(n)], np.int32)
    return None if states is None else PictureRows(states, w.often(0.5), grid, w.number(0, 8))


def _short_list(w: World, model: Model) -> ShortList | None:
    n = w.number(1, min(64, model.n_vocab))
    if n > 2 * model.n_vocab:
        n = model.n_vocab + 1
    return w.make(f"ShortList({n})", lambda: ShortList(n, model.n_vocab + (not w.often(0.95))))


def prefill(w: World) -> None:
    context = w.context()
    seq = None if context is None else w.sequence(context)
    if context is not None and seq is not None:
        tokens = w.tokens(context.model, 0, 150)
        w.make(f"prefill({len(tokens)})", lambda: context.prefill(tokens, seq))


def change_sequence(w: World) -> None:
    """Fork, cut, keep, drop, reserve, save and go back."""
    context = w.context()
    seq = None if context is None else w.sequence(context)
    if context is None or seq is None:
        return
    past = w.make("n_past", lambda: seq.n_past) or 0
    n = w.number(0, past)
    other = w.number(0, context.n_seq_max - 1)
    held = list(seq.tokens[: w.rng.randint(0, 40)])
    actions: list[tuple[str, Callable[[], Any]]] = [
        (f"rollback({n})", lambda: seq.rollback(n)),
        (f"can_keep({n})", lambda: seq.can_keep(n)),
        (f"keep({len(held)})", lambda: seq.keep([*held, 5])),
        (f"fork({other})", lambda: seq.fork(other)),
        ("drop()", seq.drop),
        (f"reserve({n})", lambda: seq.reserve(n)),
        ("reserve(None)", lambda: seq.reserve(None)),
        ("in_order", lambda: seq.in_order),
        ("occupy()", seq.occupy),
        ("set_tokens(too many)", lambda: seq.set_tokens([5] * (past + 1))),
        ("replace_tokens", lambda: seq.replace_tokens(held)),
        ("save_checkpoint", lambda: w.checkpoints.append((seq, seq.save_checkpoint()))),
        ("save", lambda: _save(w, context, seq)),
    ]
    name, call = w.rng.choice(actions)
    w.make(f"seq {seq.seq_id} of {past}: {name}", call)
    if w.checkpoints and not w.often(0.9):
        kept, checkpoint = w.checkpoints.pop(w.rng.randrange(len(w.checkpoints)))
        if checkpoint is not None:
            w.make("forget_checkpoint", lambda: kept.forget_checkpoint(checkpoint))


def _save(w: World, context: Context, seq: KVSequence) -> None:
    made = save_sequence(seq)
    if made is not None:
        w.saved = [*w.saved[-MANY:], (context, made)]


def restore(w: World) -> None:
    """Restore a copy as it is in its context, or a broken one or in another context, which must do
    no harm; its content is dropped then."""
    context = w.context()
    seq = None if context is None or not w.saved else w.sequence(context)
    if context is None or seq is None:
        return
    owner, saved = w.rng.choice(w.saved)
    is_whole = owner is context and w.often(0.6)
    if not is_whole:
        saved = _broken(w, saved)
    w.make(f"restore {is_whole}", lambda: restore_sequence(seq, saved))
    if not is_whole:
        w.make("in_order", lambda: seq.in_order)
        w.make("drop", seq.drop)


def _broken(w: World, saved: SavedSequence) -> SavedSequence:
    state = saved.state.copy()
    if len(state) and w.often(0.5):
        start = w.rng.randrange(min(len(state), 200) if w.often(0.7) else len(state))
        state[start] = w.rng.randrange(256)
    elif w.often(0.7):
        state = state[: w.rng.randint(0, len(state))]
    tokens = saved.tokens if w.often(0.8) else saved.tokens[1:]
    return SavedSequence(tokens, state, saved.can_cut, saved.checkpoints)


# --- texts --------------------------------------------------------------------------------------


def write_text(w: World) -> None:
    """Generate with any drafts, options and sequences; some texts are given up in the middle."""
    context = w.context()
    if context is None:
        return
    made = _completion(w, context)
    if made is None:
        return
    if w.often(0.15):
        other = _completion(w, w.context() or context)
        pair = [made] if other is None else [made, other]
        w.make("generate_batch", lambda: list(generate_batch(pair)))
    elif w.often(0.8):
        w.make("iterate", lambda: list(made))
    else:
        w.make("iterate once", lambda: next(iter(made), None))


def _completion(w: World, context: Context) -> Completion | None:
    files = (*w.files.heads, *w.files.models)
    draft = w.rng.choice(
        (None, "auto", "ngram", "layer-skip", "ngram+layer-skip", "jacobi", "head", "nosuch",
         f"head:{w.rng.choice(files)}", f"model:{w.rng.choice(w.files.models)}")
    )  # fmt: skip
    options: dict[str, Any] = {"n_predict": w.rng.choice((0, 1, 8, 20, -1))}
    if w.often(0.3):
        options["logprobs"] = w.number(0, 5)
    if w.often(0.3):
        options["seq"] = w.sequence(context if w.often(0.95) else w.rng.choice(w.contexts))
    if w.often(0.2):
        options["verify"] = w.rng.choice(("residual", "match", "never"))
    if w.often(0.2):
        options["stop"] = (w.rng.choice(("a", "", "xyz")),)
    options["adapters"] = w.adapters(context)
    if w.often(0.7):
        options["sampling"] = GREEDY
    prompt: Sequence[int] | str = w.tokens(context.model, 0, 30)
    if w.often(0.1):
        prompt = "once upon"
    return w.make(
        f"Completion({prompt}, {draft}, {options})",
        lambda: Completion(context, prompt, draft, **options),
    )


def compare(w: World) -> None:
    """Require the text of a fresh context, wherever a context promises it."""
    context = w.context()
    if context is None or context.closed or context.model.default_adapters:
        return
    promised = w.make(
        "promises",
        lambda: (
            context.abilities.is_exact_beside_others
            and context.abilities.exact_prompts
            and context.abilities.can_draft
        ),
    )
    if not promised:
        return
    prompt = [w.rng.randrange(3, 250) for _ in range(w.rng.randint(1, 20))]
    i = w.rng.randrange(context.n_seq_max)
    draft = w.rng.choice((None, "ngram", "layer-skip"))
    found = w.make(f"text of {prompt} in {i}, {draft}", lambda: _text(context, prompt, i, draft))
    if found is None:
        return
    kinds = {
        "type_k": context.options.type_k,
        "type_v": context.options.type_v,
        "flash_attn": context.options.flash_attn,
    }
    key = (context.model.path, *kinds.values(), *prompt)
    if key not in w.fresh:
        with Model(context.model.path) as model, model.context(n_ctx=256, **kinds) as fresh:
            w.fresh[key] = _text(fresh, prompt, 0, None)
    tokens, end = found
    want = w.fresh[key][0]
    if tokens != (want[: len(tokens)] if end == CONTEXT_FULL else want):
        raise AssertionError(f"{tokens} in sequence {i} with {draft}, fresh {want}, end {end}")


def _text(
    context: Context, prompt: list[int], i: int, draft: str | None
) -> tuple[list[int], str | None]:
    """Return the tokens of a greedy text, and why it ended."""
    seq = context.sequence(i)
    made = Completion(context, prompt, draft, seq=seq, n_predict=N_TEXT, sampling=GREEDY)
    list(made)
    return made.tokens, made.finish_reason


# By action: how often it is taken.
ACTIONS: dict[Callable[[World], None], int] = {
    open_model: 2,
    open_context: 4,
    close_something: 2,
    ask: 4,
    decode: 14,
    run_rows: 8,
    prefill: 3,
    change_sequence: 14,
    restore: 3,
    write_text: 6,
    compare: 4,
}
