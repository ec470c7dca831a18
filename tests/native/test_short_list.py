"""Drafts that look at some rows of the head only: which rows, what is found there, and that the
text stays that of the full model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import NewContext, TinyModel
from head_oracle import knowing_head
from typed_models import require_exact

from pyselfspec import (
    GREEDY,
    Completion,
    Context,
    Fixed,
    LayerMask,
    Model,
    Sampler,
    SamplingParams,
)
from pyselfspec.costs.by_bytes import costs_by_bytes
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.pass_result import Distribution
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.runtime.short_list import ShortList
from pyselfspec.speculate import drafters
from pyselfspec.speculate.drafters import _short_list as short_lists
from pyselfspec.speculate.drafters import head, layer_skip
from pyselfspec.speculate.generation import Generation
from pyselfspec.speculate.pass_requests import run
from pyselfspec.speculate.residual import Residual
from pyselfspec.speculate.types import Draft, Verdict
from tools.models import random_gguf

N_VOCAB = 519
EXIT = LayerMask.early_exit(4, 2)  # predicts well here: late blocks change little
LATE = {"late_scale": 0.05}
TEXT = [1, 300, 290, 281]
SEEDED = SamplingParams(temperature=1.0, top_k=0, seed=11)


# --- the list ----------------------------------------------------------------------------------


def test_the_list_holds_what_came_last() -> None:
    """Against looking through all that came."""
    seed = int(np.random.default_rng().integers(2**32))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    short = ShortList(20, 100)
    came = [*reversed(range(20))]
    for _ in range(300):
        new = [int(100 * share**2) for share in rng.random(rng.integers(0, 4))]
        short.add(new)
        came += new
        last = list(dict.fromkeys(reversed(came)))[:20]
        assert list(short.ids) == sorted(last)
        assert all((token in short) == (token in last) for token in range(100))


@pytest.mark.parametrize("n", [0, 101])
def test_a_list_is_part_of_the_vocabulary(n: int) -> None:
    with pytest.raises(ArgumentError, match=f"1 to 100 tokens, got {n}"):
        ShortList(n, 100)


# --- the head ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["F32", "F16", "Q8_0", "Q6_K", "Q4_0", "Q4_K", "Q4_0 x8"])
def typed(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Model]:
    """x8: a vocabulary in eights, which upstream interleaves."""
    qtype, _, in_eights = str(request.param).partition(" ")
    n_vocab = N_VOCAB + bool(in_eights)
    shape = random_gguf.Shape(n_layer=1, n_embd=256, n_ff=256, n_vocab=n_vocab)
    recipe = random_gguf.Recipe(shape, qtype, seed=3, late_scale=1.0, late_from=1)
    path: Path = tmp_path_factory.mktemp("typed") / f"{request.param}.gguf"
    random_gguf.write(path, recipe, 4096, lambda _: None)
    with Model(path) as model:
        yield model


@pytest.mark.sanitized
@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_best_of_a_list_is_found(typed: Model, new_context: NewContext, n_threads: int) -> None:
    """Lists of one row, of scattered rows and of runs, against the logits of all."""
    context = new_context(typed, n_threads=n_threads)
    require_exact(context)
    assert context.can_shorten
    rng = np.random.default_rng(5)
    rows = Rows.of(0, 0, [7, 300, 12])
    logits = context.run(rows).logits.astype(np.float64)
    lists = [[0], [typed.n_vocab - 1], [*range(100, 200)], [*range(typed.n_vocab)]]
    lists += [sorted(rng.choice(typed.n_vocab, n, replace=False).tolist()) for n in (3, 40, 300)]
    for ids in lists:
        context.sequence().drop()
        short = ShortList(len(ids), typed.n_vocab)
        short.add(ids)
        context.run(rows, Pass(head="best", among=short))
        for row, all_of in enumerate(logits):
            listed = np.full(typed.n_vocab, -np.inf)
            listed[ids] = all_of[ids]
            np.testing.assert_allclose(context.logits(row), listed, rtol=1e-4, atol=1e-4)
            token, p = context.argmax(row)
            assert token == ids[int(all_of[ids].argmax())]
            odds = np.exp(all_of[ids] - all_of[token])
            assert p == pytest.approx(1 / odds.sum(), rel=1e-4)


@pytest.mark.sanitized
def test_a_head_behind_a_cap_is_shortened_too(tiny: TinyModel, new_context: NewContext) -> None:
    """gemma2 scales its logits and puts them through a tanh."""
    context = new_context(tiny("gemma2"))
    require_exact(context)
    ids = [5, 6, 40, 290]
    logits = context.decode(TEXT, outputs="last").logits[0]
    short = ShortList(4, context.model.n_vocab)
    short.add(ids)
    context.sequence().drop()
    context.run(Rows.of(0, 0, TEXT, "last"), Pass(head="best", among=short))
    assert context.argmax(len(TEXT) - 1)[0] == ids[int(logits[ids].argmax())]
    found = context.logits(len(TEXT) - 1)
    np.testing.assert_allclose(found[ids], logits[ids], rtol=1e-4)
    assert np.isneginf(np.delete(found, ids)).all()


@pytest.mark.sanitized
def test_logits_are_those_of_rows_with_an_output(tiny: TinyModel, new_context: NewContext) -> None:
    """And of the last pass: neither of one without a list nor of one that left none."""
    context = new_context(tiny())
    require_exact(context)
    short = ShortList(3, context.model.n_vocab)
    context.run(Rows.of(0, 0, TEXT, "last"), Pass(head="best", among=short))
    assert np.isfinite(context.logits(3)).sum() == 3
    for row in (0, 2, 4, -1):
        with pytest.raises(ArgumentError, match=f"no logits in row {row}"):
            context.logits(row)
    context.run(Rows.of(0, 4, [5]))
    assert np.isfinite(context.logits(0)).all()
    context.run(Rows.of(0, 5, [5], "last"), Pass(head="best"))
    with pytest.raises(ArgumentError, match="no logits in row 0"):
        context.logits(0)


@pytest.mark.sanitized
def test_lists_may_change_from_pass_to_pass(tiny: TinyModel, new_context: NewContext) -> None:
    """The graph is kept, not the list."""
    context = new_context(tiny())
    require_exact(context)
    short = ShortList(1, context.model.n_vocab)
    for token in (9, 200, 31):
        short.add([token])
        context.sequence().drop()
        context.run(Rows.of(0, 0, TEXT, "last"), Pass(head="best", among=short))
        assert context.argmax(len(TEXT) - 1) == (token, 1.0)
    assert context.decode([5], outputs="last").logits.shape == (1, context.model.n_vocab)


@pytest.mark.sanitized
def test_what_cannot_be_looked_at_is_refused(tiny: TinyModel, new_context: NewContext) -> None:
    context = new_context(tiny(), n_batch=64)
    require_exact(context)
    short = ShortList(3, context.model.n_vocab)
    rows = Rows.of(0, 0, TEXT)
    with pytest.raises(ArgumentError, match="not for logits"):
        context.run(rows, Pass(among=short))
    with pytest.raises(ArgumentError, match="allowed is 0 to 32"):
        context.run(Rows.of(0, 0, [5] * 33), Pass(head="best", among=short))
    for wrong in ([2, 1, 3], [1, 1, 2], [-1, 0, 1], [0, 1, context.model.n_vocab]):
        for i, token in enumerate(wrong):
            short.ids[i] = token
        with pytest.raises(ArgumentError, match="in rising order, none twice"):
            context.run(rows, Pass(head="best", among=short))
    assert context.sequence().n_past == 0


def test_without_kernels_there_is_no_list(tiny_path: Any, run_python: Any) -> None:
    code = """
import sys
from pyselfspec import LayerMask, Model
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.runtime.short_list import ShortList
from pyselfspec.speculate.drafters import layer_skip
with Model(sys.argv[1]) as model, model.context(n_ctx=64) as context:
    options = layer_skip.Options(LayerMask.early_exit(4, 2), shortlist=9)
    print(context.can_shorten, layer_skip.make(context, options)._short.tokens)
    try:
        context.run(Rows.of(0, 0, [5]), Pass(head="best", among=ShortList(9, model.n_vocab)))
    except Exception as error:
        print(type(error).__name__, error)
"""
    outcome = run_python(code, tiny_path(), PYSELFSPEC_KERNELS="off")
    assert outcome.stdout.splitlines() == [
        "False None",
        f"{UnsupportedError.__name__} the head cannot look at some tokens only: its weights have "
        "no kernel here, or what follows them is not known",
    ]


# --- drafts ------------------------------------------------------------------------------------


def completion(
    context: Context, sampling: SamplingParams, options: Any, draft: str = "layer-skip"
) -> Completion:
    made = Completion(
        context,
        TEXT,
        n_predict=40,
        sampling=sampling,
        options=options,
        draft=draft if options else None,
        controller=Fixed(3, p_min=0),
    )
    for _ in made:
        pass
    return made


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_text_is_that_of_the_full_model(
    tiny: TinyModel, new_context: NewContext, sampling: SamplingParams, share: bool
) -> None:
    model = tiny(**LATE)
    context = new_context(model)
    require_exact(context)
    plain = completion(new_context(model), sampling, None)
    options = layer_skip.Options(EXIT, share, shortlist=60)
    drafted = completion(context, sampling, options)
    assert drafted.tokens == plain.tokens
    assert 0 < drafted.stats.n_accepted < drafted.stats.n_drafted
    whole = completion(new_context(model), sampling, layer_skip.Options(EXIT, share))
    assert drafted.stats.n_accepted < whole.stats.n_accepted, "some tokens are not in the list"
    short = short_lists.of(context, 60)
    assert short is not None and set(drafted.tokens[-10:-4]) <= set(short.ids)


def test_rejected_drafts_tell_what_is_likely() -> None:
    short = ShortList(5, 100)
    shortened = short_lists.Shortened(short)
    shortened.begin([50, 51])
    draft = Draft.chain([1, 2, 3])
    shortened.on_verified(draft, Verdict.of_chain(1, 60, False), lambda row: 70 + row)
    assert set(short.ids) == {50, 51, 72, 73, 0}


def test_a_list_is_for_all_texts_of_a_context(tiny: TinyModel, new_context: NewContext) -> None:
    context = new_context(tiny())
    assert short_lists.of(context, 9) is short_lists.of(context, 9)
    assert short_lists.of(context, 0) is short_lists.of(context, context.model.n_vocab) is None


def test_a_head_in_a_file_looks_at_the_list(
    tiny: TinyModel,
    tiny_path: Any,
    new_context: NewContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny(late_scale=0.25, late_from=0)
    path = knowing_head(tiny_path(late_scale=0.25, late_from=0), tmp_path)
    context = new_context(model)
    require_exact(context)
    short = short_lists.of(context, 60)
    assert short is not None
    found, argmax = [], DraftHead.argmax

    def watched(of_head: DraftHead, row: int) -> tuple[int, float]:
        found.append(argmax(of_head, row)[0] in short)
        return argmax(of_head, row)

    monkeypatch.setattr(DraftHead, "argmax", watched)
    drafted = completion(context, GREEDY, head.Options(path, shortlist=60), f"head:{path}")
    assert all(found)
    assert 0 < drafted.stats.n_accepted < drafted.stats.n_drafted
    whole = completion(new_context(model), GREEDY, head.Options(path), f"head:{path}")
    assert not all(found), "some tokens are not in the list"
    assert drafted.tokens == whole.tokens == completion(new_context(model), GREEDY, None).tokens


def test_drafts_cost_what_is_read(tiny: TinyModel) -> None:
    file = tiny().file
    whole, tenth = (
        costs_by_bytes(file, EXIT, True, share).levels[0].token_us for share in (1.0, 0.1)
    )
    assert whole - tenth == pytest.approx(0.9 * file.head_bytes / 1e4, abs=1e-3)


@pytest.mark.parametrize("drafter", [layer_skip, head])
def test_a_list_of_no_length_is_refused(drafter: Any) -> None:
    with pytest.raises(ArgumentError, match="shortlist is 0"):
        drafter.Options(shortlist=-1)


DRAWN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11)


@pytest.mark.sanitized
@pytest.mark.parametrize("name", ["layer-skip", "head"])
def test_draws_come_from_the_list(
    name: str, tiny: TinyModel, tiny_path: Any, new_context: NewContext, tmp_path: Path
) -> None:
    """Other tokens have no probability, and listed ones that of all logits, in proportion."""
    target = {"late_scale": 0.25, "late_from": 0}

    def first_drawn(n: int) -> tuple[Distribution, set[int]]:
        """Return the distribution of a text's first draft token, and the list."""
        context = new_context(tiny(**target))
        require_exact(context)
        options: Any = layer_skip.Options(EXIT, shortlist=n)
        if name == "head":
            options = head.Options(knowing_head(tiny_path(**target), tmp_path), shortlist=n)
        seq, short = context.sequence(), short_lists.of(context, n)
        with Sampler(context.model, DRAWN) as sampler, Sampler(context.model, DRAWN) as for_drafts:
            text = Generation(
                seq,
                TEXT,
                drafter=drafters.load(name).make(context, options),
                controller=Fixed(1, p_min=0),
                sampler=sampler,
                n_predict=4,
                residual=Residual(for_drafts, 1),
            )
            run(context, text.begin())
            listed = set(range(context.model.n_vocab) if short is None else short.ids)
            [drafted] = run(context, text.step()).draft.tokens
        assert drafted.distribution is not None
        return drafted.distribution, listed

    whole, _ = first_drawn(0)
    found, listed = first_drawn(60)
    outside = sorted({*range(len(whole))} - listed)
    assert 0 < whole[outside].sum() < 1
    whole[outside] = 0
    np.testing.assert_allclose(found, whole / whole.sum(), rtol=1e-3, atol=1e-9)
