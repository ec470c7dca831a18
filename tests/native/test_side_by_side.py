"""Several completions of one context, advanced together: each is the one it is alone.

Alone means: the same completion in a context of its own. Prompts longer than the exact width go
through passes of their own, here and there, so the bits of their K/V are the same, too.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from fixture_types import NewContext
from parameters import crossed, in_turn
from typed_models import (
    EXIT,
    MODELS,
    N_LAYER,
    SAMPLINGS,
    SEEDED,
    TypedModel,
    plain_text,
    require_exact,
)

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, SamplingParams
from pyselfspec.runtime.passes import FULL, Pass, Rows
from pyselfspec.speculate.batching import BatchWarning
from pyselfspec.speculate.completion import generate_batch
from pyselfspec.speculate.drafters import layer_skip

N_PREDICT = 24
LENGTHS = (9, 40, 23)  # of prompts; two of them are wider than exact passes
INSIDE = LayerMask.skipping(N_LAYER, attn=[1, 3], ffn=[2])
ALWAYS = Fixed(4, p_min=0)


def completion(
    context: Context, prompt: Sequence[int], seq_id: int = 0, **options: Any
) -> Completion:
    defaults = {"n_predict": N_PREDICT, "draft": "layer-skip", "controller": ALWAYS}
    seq = context.sequence(seq_id)
    return Completion(context, prompt, seq=seq, **(defaults | options))


def counts(completion: Completion) -> dict[str, Any]:
    """Return the counts of the statistics, without times."""
    return {k: v for k, v in asdict(completion.stats).items() if not k.endswith("_us")}


def assert_statistics_add_up(completion: Completion) -> None:
    stats = completion.stats
    assert stats.n_prompt == len(completion.prompt)
    assert stats.n_prompt_reused == 0
    assert stats.n_generated == len(completion.tokens)
    assert stats.n_steps + stats.n_accepted == stats.n_generated
    assert sum(stats.n_drafted_at) == stats.n_drafted
    assert sum(stats.n_accepted_at) == stats.n_accepted


def assert_same_texts(
    new: Any, prompts: Sequence[Sequence[int]], each: Sequence[dict[str, Any]]
) -> tuple[int, int]:
    """Texts of one context against the same texts alone; how many passes each way took.

    new: makes a context. each: options of every completion.
    """
    n_alone, alone = 0, []
    for prompt, options in zip(prompts, each, strict=True):
        context = new()
        require_exact(context)
        n_before = context.n_decodes
        alone.append(completion(context, prompt, **options))
        assert "".join(alone[-1]) == alone[-1].text
        n_alone += context.n_decodes - n_before
    context = new()
    together = [
        completion(context, prompt, i, **options)
        for i, (prompt, options) in enumerate(zip(prompts, each, strict=True))
    ]
    n_before = context.n_decodes
    pieces = [""] * len(together)
    for source, piece in generate_batch(together):
        pieces[together.index(source)] += piece
    for got, want, text in zip(together, alone, pieces, strict=True):
        assert (got.tokens, got.text, got.finish_reason) == (
            want.tokens,
            want.text,
            want.finish_reason,
        )
        assert text == got.text
        assert counts(got) == counts(want)
        assert_statistics_add_up(got)
    held = [len(each.prompt) + len(each.tokens) - 1 for each in together]
    n_free = context.n_seq_max - len(held)
    assert [context.sequence(i).n_past for i in range(context.n_seq_max)] == held + [0] * n_free
    return context.n_decodes - n_before, n_alone


TEXTS = ((2, True), (3, False))


@crossed(
    "arch,qtype n_texts,share sampling",
    MODELS,
    TEXTS,
    SAMPLINGS,
    always={(model, *way) for model, way in in_turn(MODELS, itertools.product(TEXTS, SAMPLINGS))},
)
def test_texts_are_those_alone(
    arch: str,
    qtype: str,
    n_texts: int,
    share: bool,
    sampling: str,
    typed: TypedModel,
    new_context: NewContext,
    token_ids: Any,
) -> None:
    model = typed(arch, qtype)
    prompts = [token_ids(n, seed=n) for n in LENGTHS[:n_texts]]
    options = {"options": layer_skip.Options(EXIT, share), "sampling": SAMPLINGS[sampling]}
    n_together, n_alone = assert_same_texts(
        lambda: new_context(model, n_seq_max=6), prompts, [options] * n_texts
    )
    assert n_together < (0.9 if n_texts == 2 else 0.75) * n_alone, "passes are shared"


@pytest.mark.parametrize(("arch", "qtype"), [("llama", "Q8_0"), ("gemma3", "F16")])
def test_texts_that_draft_in_different_ways(
    arch: str, qtype: str, typed: TypedModel, new_context: NewContext, token_ids: Any
) -> None:
    """Only their verification passes can be joined; text lengths differ, too."""
    model = typed(arch, qtype)
    each = [
        {"options": layer_skip.Options(EXIT), "sampling": SEEDED, "n_predict": 31},
        {"draft": None, "sampling": GREEDY},
        {"options": layer_skip.Options(EXIT, share=False), "sampling": GREEDY, "n_predict": 1},
        {"options": layer_skip.Options(INSIDE), "sampling": SEEDED, "controller": Fixed(7, 0)},
        {"options": layer_skip.Options(INSIDE, share=False), "controller": Fixed(1, 0.3),
         "sampling": SamplingParams(temperature=0.7, repeat_penalty=1.3, seed=3)},
    ]  # fmt: skip
    prompts = [token_ids(n, seed=n) for n in (17, 33, 1, 16, 50)]
    n_together, n_alone = assert_same_texts(
        lambda: new_context(model, n_seq_max=8, n_ctx=512), prompts, each
    )
    assert n_together < n_alone


@pytest.mark.parametrize("draft", [None, "ngram"])
def test_a_text_that_takes_the_likeliest_tokens_shares_passes_with_any_other(
    draft: str | None, typed: TypedModel, new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU returns no logits in passes of such texts alone."""
    context = new_context(typed("llama", "Q8_0"))
    prompt = [5, 6, 7, 8] * 4
    ways: tuple[dict[str, Any], ...] = (
        {"sampling": GREEDY},
        {"sampling": SEEDED},
        {"sampling": GREEDY, "logprobs": 2},
    )
    alone = []
    for way in ways:
        context.sequence().drop()
        alone.append(completion(context, prompt, draft=draft, controller="auto", **way))
        assert "".join(alone[-1])
        context.sequence().drop()

    heads = []
    run = Context.run

    def recorded(context: Context, rows: Rows, what: Pass = FULL) -> Any:
        if any(rows.outputs):
            heads.append((len(set(rows.seq_ids)), what.head))
        return run(context, rows, what)

    monkeypatch.setattr(Context, "run", recorded)
    monkeypatch.setattr(Context, "best_head", "best")
    for chosen, seen in (
        ((0,), {(1, "best")}),
        ((0, 1), {(2, "logits")}),
        ((0, 2), {(2, "logits")}),
    ):
        heads.clear()
        together = [
            completion(context, prompt, i, draft=draft, controller="auto", **ways[i])
            for i in chosen
        ]
        list(generate_batch(together))
        assert [each.tokens for each in together] == [alone[i].tokens for i in chosen]
        assert seen <= set(heads)
        for each in context.sequence(0), context.sequence(1), context.sequence(2):
            each.drop()
    assert alone[2].logprobs == together[1].logprobs


@pytest.mark.parametrize(("n_draft", "n_together"), [(9, 3), (12, 2), (20, 1)])
def test_passes_keep_to_the_exact_width(
    n_draft: int,
    n_together: int,
    typed: TypedModel,
    new_context: NewContext,
    token_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Verification passes of long drafts are put together as far as they fit, and no further."""
    passes: list[tuple[Rows, Pass]] = []
    run = Context.run

    def recorded(context: Context, rows: Rows, what: Pass = FULL) -> Any:
        passes.append((rows, what))
        return run(context, rows, what)

    context = new_context(typed("llama", "Q8_0"), n_seq_max=6, n_ctx=512)
    require_exact(context)
    full = LayerMask.full(N_LAYER)  # always right, so that all drafts are as long
    n_predict = 4 * (n_draft + 1)
    options = {
        "controller": Fixed(n_draft, p_min=0),
        "mask": full,
        "sampling": GREEDY,
        "n_predict": n_predict,
    }
    texts = [completion(context, token_ids(9, seed=i), i, **options) for i in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(Context, "run", recorded)
        for _ in generate_batch(texts):
            pass
    assert max(len(rows) for rows, _ in passes) <= context.abilities.exact_width
    verified = [rows for rows, what in passes if not what.is_draft and any(rows.outputs)]
    assert max(len(set(rows.seq_ids)) for rows in verified) == n_together
    assert max(len(rows) for rows, what in passes if what.is_draft) >= 2
    for i, text in enumerate(texts):
        assert text.tokens == plain_text(
            new_context(context.model), token_ids(9, seed=i), n_predict
        )


@pytest.mark.parametrize("share", [True, False], ids=["shared", "forked"])
def test_times_add_up(
    share: bool, typed: TypedModel, new_context: NewContext, token_ids: Any
) -> None:
    """For every text, reading the prompt, drafting and verification are parts of its time. The
    prompts are read in one pass together, but one that is read in three parts."""
    context = new_context(typed("falcon", "Q4_0"), n_seq_max=6, n_ctx=512)
    options = {"options": layer_skip.Options(EXIT, share), "sampling": GREEDY}
    prompts = [token_ids(n, seed=n) for n in (6, 7, 150)]
    texts = [completion(context, prompt, i, **options) for i, prompt in enumerate(prompts)]
    start = time.perf_counter_ns()
    for _ in generate_batch(texts):
        pass
    us = (time.perf_counter_ns() - start) // 1000
    for text in texts:
        stats = text.stats
        assert stats.prefill_us > 0 and stats.verify_us > 0 and stats.draft_us > 0
        assert stats.draft_us + stats.verify_us + stats.prefill_us <= stats.total_us <= us
    assert texts[2].stats.prefill_us > texts[0].stats.prefill_us


@pytest.mark.parametrize("share", [True, False], ids=["shared", "forked"])
@pytest.mark.parametrize("n_pieces", [0, 1, 2, 5, 9])
def test_leaving_early_and_going_on(
    n_pieces: int, share: bool, typed: TypedModel, new_context: NewContext, token_ids: Any
) -> None:
    """Every sequence holds its text so far, and completions that go on from there make the rest."""
    model = typed("gemma3", "Q8_0")
    context = new_context(model, n_seq_max=6)
    require_exact(context)
    options = {"options": layer_skip.Options(EXIT, share), "sampling": GREEDY}
    prompts = [token_ids(n, seed=n) for n in (9, 14)]
    texts = [completion(context, prompt, i, **options) for i, prompt in enumerate(prompts)]
    pieces = generate_batch(texts)
    for _ in itertools.islice(pieces, n_pieces):
        pass
    pieces.close()  # type: ignore[attr-defined]
    so_far = [[*text.prompt, *text.tokens] for text in texts]
    for i, text in enumerate(so_far):
        held = context.sequence(i).tokens
        assert list(held) == text[: len(held)] and context.sequence(i).n_past == len(held)
        assert len(held) == (len(text) - 1 if n_pieces else 0)
    assert [context.sequence(i).n_past for i in range(2, 6)] == [0] * 4
    rest = [completion(context, text, i, **options, n_predict=8) for i, text in enumerate(so_far)]
    for _ in generate_batch(rest):
        pass
    for text, prompt, more in zip(texts, prompts, rest, strict=True):
        want = plain_text(new_context(model), prompt, len(text.tokens) + 8)
        assert [*text.tokens, *more.tokens] == want


def test_a_full_context_ends_texts_one_by_one(
    typed: TypedModel, new_context: NewContext, token_ids: Any
) -> None:
    """Whoever finds no room ends there; what there is, is right, and the other one goes on."""
    model = typed("llama", "Q8_0")
    context = new_context(model, n_seq_max=6)
    require_exact(context)
    prompts = [token_ids(100, seed=1), token_ids(60, seed=2)]
    options = {"sampling": GREEDY, "mask": EXIT, "n_predict": 400}
    texts = [completion(context, prompt, i, **options) for i, prompt in enumerate(prompts)]
    for _ in generate_batch(texts):
        pass
    alone = [completion(new_context(model), prompt, **options) for prompt in prompts]
    for got, want in zip(texts, alone, strict=True):
        assert "".join(want) == want.text
        assert 0 < len(got.tokens) < len(want.tokens)
        assert got.tokens == want.tokens[: len(got.tokens)]
        assert got.finish_reason == "context"
    n_held = sum(context.sequence(i).n_past for i in range(2))
    assert n_held == sum(len(each.prompt) + len(each.tokens) - 1 for each in texts) <= 256


@pytest.mark.parametrize("seed", range(3))
def test_texts_in_any_order(
    seed: int, typed: TypedModel, new_context: NewContext, token_ids: Any
) -> None:
    """Random prompts, lengths, masks and ways to draft."""
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    model = typed("gemma3", "Q4_0")
    each: list[dict[str, Any]] = [
        {
            "options": layer_skip.Options((EXIT, INSIDE)[rng.integers(2)], bool(rng.integers(2))),
            "controller": Fixed(int(rng.integers(1, 9)), p_min=float(rng.choice([0, 0.2]))),
            "sampling": SamplingParams(temperature=float(rng.choice([0, 1])), seed=i),
            "n_predict": int(rng.integers(1, 40)),
        }
        for i in range(4)
    ]
    prompts = [token_ids(int(rng.integers(2, 50)), seed=seed + 7 * i) for i in range(4)]
    assert_same_texts(lambda: new_context(model, n_seq_max=8, n_ctx=512), prompts, each)


@pytest.mark.parametrize("seq_id", [0, 1])
def test_a_prompt_of_one_token_leaves_its_sequence_empty(
    seq_id: int, typed: TypedModel, new_context: NewContext
) -> None:
    """Which does not make it a spare one, to draft in."""
    model = typed("llama", "Q8_0")
    context = new_context(model, n_seq_max=2)
    options = {"options": layer_skip.Options(EXIT, share=False), "sampling": GREEDY}
    text = completion(context, [5], seq_id, **options)
    assert "".join(text) == text.text
    assert text.tokens == plain_text(new_context(model), [5], N_PREDICT)


def test_without_flash_attention_a_warning_says_what_may_differ(
    tiny: Any, new_context: NewContext, token_ids: Any
) -> None:
    """The warning is about several sequences in a context; a single one is exact."""

    def write(n: int, **options: Any) -> Context:
        context = new_context(tiny(qtype="Q8_0"), **options)
        texts = [completion(context, token_ids(5), i, n_predict=2, draft=None) for i in range(n)]
        assert len(list(generate_batch(texts))) and all(len(each.tokens) == 2 for each in texts)
        return context

    with warnings.catch_warnings():
        warnings.simplefilter("error", BatchWarning)
        exact = write(2)
        write(1, flash_attn=False)
    require_exact(exact)
    assert exact.abilities.is_exact_beside_others
    with pytest.warns(BatchWarning, match="^without flash attention, a text's last bits"):
        context = write(2, flash_attn=False)
    assert (
        context.abilities.exact_width == exact.abilities.exact_width
        and not context.abilities.is_exact_beside_others
    )
