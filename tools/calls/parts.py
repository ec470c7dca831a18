"""Random calls of samplers, draft heads, embedding contexts, projectors and threads."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyselfspec import Sampler, SamplingParams
from pyselfspec.errors import SelfSpecError
from pyselfspec.runtime.context import Context
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.embedding import POOLING, EmbeddingContext
from pyselfspec.runtime.passes import Rows
from pyselfspec.runtime.projector import Projector
from pyselfspec.runtime.short_list import ShortList

from .world import World

GRAMMARS = (
    "root ::= [a-z]+", 'root ::= "a" | "b" root', "root ::= .*", "root ::= [é-ü]* <[5]>",
    "root ::=", "no root", 'root ::= "\\x80', "root ::= root", "root ::= (" * 50,
)  # fmt: skip
N_STOPPED = 3  # passes that a second thread may stop
Kept = Any  # an object of World.others


def open_sampler(w: World) -> None:
    model = w.model()
    if model is None:
        return
    options: dict[str, Any] = {}
    for name, values in (
        ("temperature", (0.0, 0.7, -1.0, 1e40, float("nan"))), ("top_k", (0, 1, 40, -1, 2**40)),
        ("top_p", (0.0, 0.5, 1.0, 2.0)), ("min_p", (0.0, 0.1, 1.0)), ("seed", (0, 7, -1, 2**40)),
        ("repeat_penalty", (0.0, 1.1, 1e40)), ("repeat_last_n", (0, 4, -1)),
        ("presence_penalty", (0.5, -1e40)), ("frequency_penalty", (0.5,)),
        ("grammar", GRAMMARS), ("logit_bias", (((5, 2.0),), ((2**40, 1.0),), ((4, 1e40),))),
    ):  # fmt: skip
        if w.often(0.2):
            options[name] = w.rng.choice(values)
    params = w.make(f"SamplingParams({options})", lambda: SamplingParams(**options))
    if params is not None:
        w.add(w.others, w.make("Sampler", lambda: Sampler(model, params)))


def _kept(w: World, kind: type) -> Kept:
    found = [each for each in w.others if isinstance(each, kind)]
    return w.rng.choice(found) if found else None


def sample(w: World) -> None:
    sampler, context = _kept(w, Sampler), w.context()
    if sampler is None or context is None:
        return
    row, token = w.number(-1, 4), w.number(0, 300)
    n = w.number(1, 1) and context.model.n_vocab
    values = w.states(3, n)[0] if w.often(0.9) else np.full(n, -np.inf, np.float32)
    prompt = [w.number(0, 300) for _ in range(w.rng.randint(0, 5))]
    calls: list[tuple[str, Callable[[], Any]]] = [
        (f"sample({row})", lambda: sampler.sample(context, row)),
        ("sample_logits", lambda: sampler.sample_logits(values)),
        ("distribution_of", lambda: sampler.distribution_of(values)),
        (f"accept({token})", lambda: sampler.accept(token)),
        (f"begin({prompt})", lambda: sampler.begin(prompt)),
    ]
    for name, call in w.rng.sample(calls, 3):
        w.make(f"Sampler.{name}", call)


def open_head(w: World) -> None:
    context = w.context()
    if context is None:
        return
    path = w.rng.choice((*w.files.heads, *w.files.models[:1], None))
    made = w.make(f"DraftHead({path})", lambda: DraftHead(context, path))
    w.add(w.heads, made)


def use_head(w: World) -> None:
    """Passes of a head, most of which do not suit its kind."""
    if not w.heads:
        return
    head = w.rng.choice(w.heads)
    past = w.make("n_past of a head", lambda: head.sequence(0).n_past)
    pos = w.number(past or 0, past or 0)
    tokens = [w.number(3, 250) for _ in range(w.rng.randint(0, 6))]
    rows = Rows.of(0 if w.often() else w.number(0, 3), pos, tokens, w.rng.choice(("all", "none")))
    n, n_features = len(tokens), head.file.n_features
    states = w.states(n, head.file.n_state)
    features, row, token = w.states(n, n_features), w.number(-1, 5), w.number(3, 250)
    best: Any = w.rng.choice(("logits", "best", "worst"))
    among = ShortList(20, head.n_vocab) if w.often(0.2) else None
    options: dict[str, Any] = {"block": w.number(0, 0), "in_place": w.rng.random() < 0.1}
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("fuse", lambda: head.fuse(features)),
        ("decode", lambda: head.decode(rows, states, best, among, **options)),
        ("keep", lambda: head.keep(rows, features)),
        ("draft_block", lambda: head.draft_block(rows, best, among)),
        (f"score({row}, {token})", lambda: head.score(row, token)),
        (f"argmax({row})", lambda: head.argmax(row)),
        (f"rollback({pos})", lambda: head.sequence(0).rollback(pos)),
        ("facts", lambda: (head.can_shorten, head.best_head, head.n_batch)),
    ]
    for name, call in w.rng.sample(calls, 3):
        w.make(f"head {head.file.kind.__class__.__name__}.{name}, {rows}, {best}, {options}", call)


def open_embedder(w: World) -> None:
    model = w.model()
    if model is None:
        return
    options: dict[str, Any] = {"n_ctx": w.number(1, 400), "n_threads": w.number(1, 2)}
    if w.often(0.5):
        options["pooling"] = w.rng.choice((*POOLING, "most"))
    made = w.make(f"EmbeddingContext({options})", lambda: EmbeddingContext(model, **options))
    w.add(w.others, made)


def embed(w: World) -> None:
    embedder = _kept(w, EmbeddingContext)
    if embedder is not None:
        tokens = w.tokens(embedder.model, 0, 40)
        w.make(f"embed({tokens})", lambda: embedder.embed(tokens))


def bitmap(width: int, height: int, n_bytes: int) -> bytes:
    """Return a BMP file of a size that need not be that of its pixels."""
    head = struct.pack("<2sIHHI", b"BM", 54 + n_bytes, 0, 0, 54)
    return (
        head
        + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
        + bytes(i % 251 for i in range(n_bytes))
    )


def look(w: World) -> None:
    """Open a projector, or read a picture and evaluate its rows."""
    model = w.model()
    if model is None or not w.files.projectors:
        return
    projector = _kept(w, Projector)
    if projector is None or w.often(0.2):
        path: Path = w.rng.choice((*w.files.projectors, *w.files.models[:1]))
        made = w.make(f"Projector({path.name})", lambda: Projector(model, path, n_threads=1))
        w.add(w.others, made)
        return
    width, height = w.number(1, 60), w.number(1, 60)
    small = 0 < width < 100 and 0 < height < 100
    n_bytes = (3 * width + 3) // 4 * 4 * height if small and w.often() else 77
    sides = [max(-(2**31), min(2**31 - 1, side)) for side in (width, height)]
    data = bitmap(sides[0], sides[1], n_bytes) if w.often(0.9) else b"BM" * w.rng.randint(0, 20)
    w.make(f"read({sides}, {n_bytes})", lambda: projector.read(data))


def threads(w: World) -> None:
    """Stop passes, use and close things from a second thread while the first one works."""
    context = w.context()
    if context is None:
        return
    faults: list[BaseException] = []
    started = threading.Event()

    def disturb() -> None:
        started.set()
        for call in (
            lambda: _stop(context),
            lambda: context.decode([5]),
            lambda: context.sequence(0).rollback(0),
            context.model.close,
        )[: w.rng.randint(1, 4)]:
            try:
                call()
            except SelfSpecError:
                pass
            except BaseException as error:
                faults.append(error)

    other = threading.Thread(target=disturb)
    other.start()
    started.wait()
    for _ in range(N_STOPPED):
        w.make("decode beside a thread", lambda: context.decode([5, 6, 7], outputs="last"))
    other.join()
    if faults:
        raise faults[0]


def _stop(context: Context) -> None:
    with context.stopped(), context.stopped():
        pass


# By action: how often it is taken.
ACTIONS: dict[Callable[[World], None], int] = {
    open_sampler: 3,
    sample: 6,
    open_head: 2,
    use_head: 6,
    open_embedder: 2,
    embed: 3,
    look: 3,
    threads: 1,
}
