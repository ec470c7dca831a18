"""The promise: with drafts and without, the same tokens.

What can be promised depends on the arithmetic. A full pass checks a draft as one batch, and a
kernel may sum in another order for a batch than for a single token. So there are two kinds of test,
neither with a tolerance:

- Against plain decoding, where logits do not depend on the width of a batch; with the kernels of
  this package on x86 that is so for every type. ``exact`` tests it first and skips where a machine
  differs, except in continuous integration.
- Against a replay, for every type and machine: a fresh context decodes the very same batches, but
  nobody drafts in it; shared blocks run token by token, the others as one batch, none with a mask.
  Tokens and all later logits must be equal bit for bit, so nothing that drafting does can reach the
  text.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from attentions import ATTENTIONS
from parameters import crossed, in_turn
from typed_models import MODELS, TypedModel, plain_text, require_exact

from pyselfspec import (
    GREEDY,
    Completion,
    Context,
    Draft,
    DraftLimit,
    Fixed,
    LayerMask,
    Model,
    Sampler,
    SamplingParams,
    Step,
    generate,
    generate_steps,
)
from pyselfspec.errors import ArgumentError, ContextFullError
from pyselfspec.runtime.passes import FULL, Pass, Rows
from pyselfspec.runtime.width_check import same_at_widths
from pyselfspec.speculate.drafters import layer_skip, ngram
from tools import replay
from tools.models import tiny_archs
from tools.replay import AsDrafted, Replay

N_LAYER = 4
N_PREDICT = 40
run_steps = partial(replay.run_steps, n_predict=N_PREDICT)
GOOD = LayerMask.early_exit(N_LAYER, 2)  # for models whose late blocks change little
BAD = LayerMask.skipping(N_LAYER, attn=range(N_LAYER), ffn=[0, 1, 2])
EMPTY = LayerMask.full(N_LAYER)
MASKS = {"good": GOOD, "bad": BAD, "empty": EMPTY}

SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=1.0, top_k=0, seed=11),
    "penalties-grammar": SamplingParams(
        temperature=1.2,
        top_k=60,
        repeat_penalty=1.3,
        repeat_last_n=16,
        seed=5,
        grammar='root ::= ("t" | "h" | "e" | "a" | "n" | " " | "s" | "o" | "é")+',
    ),
    "penalties-greedy": SamplingParams(temperature=0.0, repeat_penalty=1.5, repeat_last_n=8),
    "other-penalties": SamplingParams(
        presence_penalty=0.5, frequency_penalty=0.3, logit_bias=((9, 4.0), (11, -9.0)), seed=6
    ),
    "dry": SamplingParams(0.9, dry_multiplier=2.0, dry_allowed_length=1, top_n_sigma=2.0, seed=7),
    "dry-greedy": SamplingParams(
        0.0, dry_multiplier=3.0, dry_penalty_last_n=24, dry_sequence_breakers=("e",)
    ),
    "xtc": SamplingParams(
        1.1, top_k=0, min_p=0.0, xtc_probability=0.5, xtc_threshold=0.02, dynatemp_range=0.4, seed=8
    ),
    "typical-grammar": SamplingParams(
        1.0, typical_p=0.8, xtc_probability=0.4, seed=9, grammar="root ::= [a-z \\n]+"
    ),
}


# each architecture with one way to sample, and each way to sample on one architecture
each_architecture_and_sampling = crossed(
    "arch sampling",
    tiny_archs.ARCHITECTURES,
    SAMPLINGS,
    always=in_turn(tiny_archs.ARCHITECTURES, SAMPLINGS)
    | {*itertools.product(["llama"], SAMPLINGS)},
)


@pytest.fixture
def exact(tiny: Any, new_context: Any) -> Callable[..., Model]:
    """A tiny Q8_0 model whose late blocks change little; skips where Q8_0 depends on the width."""

    def model(arch: str = "llama", seed: int = 0) -> Model:
        model = tiny(arch, qtype="Q8_0", late_scale=0.05, seed=seed)
        if not same_at_widths(new_context(model)):
            give_up = pytest.fail if os.environ.get("CI") else pytest.skip
            give_up("Q8_0 logits depend on the batch width on this machine")
        return model

    return model


def complete(context: Context, prompt: Sequence[int], **options: Any) -> Completion:
    defaults = {"n_predict": N_PREDICT, "sampling": GREEDY, "draft": "layer-skip"}
    options = defaults | {"controller": Fixed(p_min=0)} | options
    completion = Completion(context, prompt, **options)
    for _piece in completion:
        pass
    assert_state(context, completion)
    return completion


def feed(context: Context, text: Sequence[int]) -> None:
    """Decode a text in passes of at most 16 tokens; wider ones, for prompts, round otherwise."""
    for first in range(0, len(text), 16):
        context.decode(text[first : first + 16], outputs="none")


def assert_state(context: Context, completion: Completion) -> None:
    """Sequence 0 holds the text but its last token; nothing else is in the cache."""
    n_text = len(completion.prompt) + len(completion.tokens)
    assert [context.sequence(i).n_past for i in range(4)] == [n_text - 1, 0, 0, 0]


def plain(context: Context, prompt: Sequence[int], **options: Any) -> list[int]:
    return complete(context, prompt, **(options | {"draft": None, "mask": None})).tokens


# --- against plain decoding ------------------------------------------------------------------


@each_architecture_and_sampling
def test_same_tokens_for_every_architecture(
    arch: str, sampling: str, exact: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(exact(arch))
    want = plain(context, token_ids(9), sampling=SAMPLINGS[sampling])
    for name, mask in MASKS.items():
        got = complete(context, token_ids(9), sampling=SAMPLINGS[sampling], mask=mask)
        assert got.tokens == want, name
        assert got.stats.n_drafted > 0


@each_architecture_and_sampling
def test_same_tokens_with_a_fork(
    arch: str, sampling: str, exact: Any, new_context: Any, token_ids: Any
) -> None:
    """A drafter that forks gives the same text where it could share K/V instead."""
    context = new_context(exact(arch))
    want = plain(context, token_ids(9), sampling=SAMPLINGS[sampling])
    drafter = layer_skip.LayerSkipDrafter(context, GOOD, share=False)
    params = SAMPLINGS[sampling]
    steps = run_steps(context, token_ids(9), drafter, Fixed(p_min=0), params)
    assert [token for step in steps for token in step.tokens] == want


@dataclass(frozen=True)
class Both(DraftLimit):
    """Some copies, as many as there are, and drafts behind them."""

    n_copies: int = 2

    def split(self, found: Draft) -> tuple[Draft, DraftLimit]:
        start = found.first(min(self.n_copies, self.n_max))
        return start, self.capped(self.n_max - len(start.tokens))


class TakesBoth:
    def __init__(self, n_copies: int) -> None:
        self.limits = Both(7, n_copies=n_copies)

    def limit(self, n_past: int) -> DraftLimit:
        return self.limits

    def observe(self, step: Step) -> None:
        pass


@each_architecture_and_sampling
def test_same_tokens_with_copies_and_drafts_behind_them(
    arch: str, sampling: str, exact: Any, new_context: Any, token_ids: Any
) -> None:
    """Each in a context of its own, so that nothing but the prompt is common to both. Blocks are
    shared for every second architecture and way to sample."""
    model, prompt = exact(arch), token_ids(9) * 3
    share = (tiny_archs.ARCHITECTURES.index(arch) + [*SAMPLINGS].index(sampling)) % 2 == 0
    want = plain(new_context(model), prompt, sampling=SAMPLINGS[sampling])
    for mask in (GOOD, BAD):
        for n_copies in (1, 3, 7):
            got = complete(
                new_context(model),
                prompt,
                sampling=SAMPLINGS[sampling],
                draft="ngram+layer-skip",
                mask=mask,
                options=(ngram.Options(chance_min=0.0), layer_skip.Options(share=share)),
                controller=TakesBoth(n_copies),
            )
            assert got.tokens == want, (mask, n_copies)
            assert 0 < got.stats.n_copied <= got.stats.n_drafted
            assert set(got.stats.sources) <= {"ngram", "layer-skip"}


@each_architecture_and_sampling
def test_same_tokens_with_copies_alone(
    arch: str, sampling: str, exact: Any, new_context: Any, token_ids: Any
) -> None:
    model, prompt = exact(arch), token_ids(9) * 3
    options = {"sampling": SAMPLINGS[sampling]}
    want = plain(new_context(model), prompt, **options)
    for n_max in (1, 4, 15, 30):
        controller = Fixed(n_max, p_min=0.0)
        how = {"draft": "ngram", "options": ngram.Options(chance_min=0.0)}
        got = complete(new_context(model), prompt, controller=controller, **how, **options)
        assert got.tokens == want and got.stats.n_copied == got.stats.n_drafted > 0
    assert (
        complete(new_context(model), prompt, draft="auto", controller="auto", **options).tokens
        == want
    )


LENGTHS = (1, 2, 4, 8)


@crossed(
    "mask n_draft sampling",
    MASKS,
    LENGTHS,
    SAMPLINGS,
    always={
        (*case, sampling)
        for case, sampling in in_turn(itertools.product(MASKS, LENGTHS), SAMPLINGS)
    },
)
def test_same_tokens_for_every_draft_length(
    sampling: str, mask: str, n_draft: int, exact: Any, new_context: Any, token_ids: Any
) -> None:
    model = exact()
    want = plain(new_context(model), token_ids(9), sampling=SAMPLINGS[sampling])
    got = complete(
        new_context(model),
        token_ids(9),
        sampling=SAMPLINGS[sampling],
        mask=MASKS[mask],
        controller=Fixed(n_draft, p_min=0),
    )
    assert got.tokens == want
    assert len(got.stats.n_drafted_at) == n_draft


@pytest.mark.parametrize("p_min", [0.05, 0.3, 1.0])
def test_same_tokens_when_drafts_stop_early(
    p_min: float, exact: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(exact())
    got = complete(context, token_ids(9), mask=GOOD, controller=Fixed(8, p_min))
    assert got.tokens == plain(context, token_ids(9))
    if p_min == 1.0:
        assert got.stats.n_drafted_at[1:] == []


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_same_tokens_however_attention_is_computed(
    attention: str, exact: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(exact(), **ATTENTIONS[attention])
    if not same_at_widths(context):
        pytest.skip("this attention depends on the batch width; see the replays below")
    for name, mask in MASKS.items():
        got = complete(context, token_ids(9), sampling=SAMPLINGS["seeded"], mask=mask)
        assert got.tokens == plain(context, token_ids(9), sampling=SAMPLINGS["seeded"]), name


@pytest.mark.parametrize("share", [True, False])
def test_drafts_are_the_same_where_logits_stay_on_the_device(
    share: bool, exact: Any, new_context: Any, token_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for head in ("logits", "best"):
        monkeypatch.setattr(Context, "best_head", head)
        context = new_context(exact())
        drafter = layer_skip.LayerSkipDrafter(context, GOOD, share=share)
        runs.append(run_steps(context, token_ids(9), drafter, Fixed(4, p_min=0), GREEDY))
    assert [step.draft.token_ids for step in runs[0]] == [step.draft.token_ids for step in runs[1]]
    assert [step.tokens for step in runs[0]] == [step.tokens for step in runs[1]]


def test_acceptance_is_what_the_mask_deserves(exact: Any, new_context: Any, token_ids: Any) -> None:
    rates = {
        name: complete(new_context(exact()), token_ids(9), mask=mask).stats.acceptance_rate
        for name, mask in MASKS.items()
    }
    assert rates["empty"] == 1.0
    assert 0.5 < rates["good"] < 1.0
    assert rates["bad"] < 0.2  # a random model follows its last token now and then


@pytest.mark.parametrize("n_draft", [1, 4, 8])
@pytest.mark.parametrize("n_right", [0, 1, 3, 99])
def test_drafts_of_known_quality(
    n_right: int, n_draft: int, exact: Any, new_context: Any, token_ids: Any
) -> None:
    """Every draft is right in its first n_right tokens and wrong after them."""
    context, prompt = new_context(exact()), token_ids(9)
    want = plain(context, prompt, sampling=SAMPLINGS["seeded"], n_predict=N_PREDICT + 99)

    class Known(Replay):
        def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
            right = want[len(history) - len(prompt) :][: limit.n_max]
            wrong = [(token + 1) % context.model.n_vocab for token in right]
            tokens = (*right[:n_right], *wrong[n_right:])
            return Draft.chain(tokens, [1.0] * len(tokens))

    steps = run_steps(context, prompt, Known([]), Fixed(n_draft, p_min=0), SAMPLINGS["seeded"])
    assert [token for step in steps for token in step.tokens] == want[:N_PREDICT]
    assert {step.n_accepted for step in steps[:-1]} == {min(n_right, n_draft)}
    assert context.sequence().n_past == len(prompt) + N_PREDICT - 1


# --- drafts that would be wider than a pass -------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "qtype", "share"),
    [
        pytest.param(*model, i % 2 == 0, marks=() if i % 3 == 0 else pytest.mark.nightly)
        for i, model in enumerate(MODELS)
    ],
)
def test_drafts_fit_into_a_pass(
    arch: str,
    qtype: str,
    share: bool,
    typed: TypedModel,
    new_context: Any,
    token_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long they may be, no pass is wider than the exact width."""
    widths: list[int] = []
    run = Context.run

    def recorded(context: Context, rows: Rows, what: Pass = FULL) -> Any:
        widths.append(len(rows))
        return run(context, rows, what)

    model = typed(arch, qtype)
    context = new_context(model)
    require_exact(context)
    sampling = SAMPLINGS["seeded"]
    want = plain_text(new_context(model), token_ids(9), 80, sampling)
    monkeypatch.setattr(Context, "run", recorded)
    got = complete(
        context,
        token_ids(9),
        sampling=sampling,
        options=layer_skip.Options(EMPTY, share),
        controller=Fixed(40, p_min=0),
        n_predict=80,
    )
    assert got.tokens == want
    assert max(widths) == context.abilities.exact_width


def test_empty_mask_saves_steps(exact: Any, new_context: Any, token_ids: Any) -> None:
    context = new_context(exact())
    got = complete(context, token_ids(9), mask=EMPTY, controller=Fixed(7, p_min=0), n_predict=32)
    assert (got.stats.n_steps, got.stats.n_accepted) == (4, 28)


@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
def test_demo_model(sampling: str, demo: Model, new_context: Any) -> None:
    context = new_context(demo, n_ctx=512)
    if not same_at_widths(context):
        pytest.skip("the model's logits depend on the batch width on this machine")
    options = {"n_predict": 64, "sampling": SAMPLINGS[sampling]}
    prompt = demo.tokenize("The old man opened the door and")
    want = plain(context, prompt, **options)
    for mask in (
        LayerMask.early_exit(demo.n_layer, demo.n_layer // 2),
        LayerMask.alternate(demo.n_layer),
        LayerMask.enter_at(demo.n_layer, demo.n_layer - 1),
    ):
        assert complete(context, prompt, mask=mask, **options).tokens == want


# --- against a replay ------------------------------------------------------------------------


QTYPES = ("F32", "F16", "Q4_0")
WAYS = (
    ("greedy", True),
    ("penalties-grammar", False),
    ("greedy", False),
    ("penalties-grammar", True),
)


@crossed(
    "arch qtype sampling share",
    tiny_archs.ARCHITECTURES,
    QTYPES,
    ("greedy", "penalties-grammar"),
    (True, False),
    always={
        (*model, *way)
        for model, way in in_turn(itertools.product(tiny_archs.ARCHITECTURES, QTYPES), WAYS)
    },
)
def test_drafting_cannot_reach_the_text(
    arch: str, qtype: str, sampling: str, share: bool, tiny: Any, new_context: Any, token_ids: Any
) -> None:
    model = tiny(arch, qtype=qtype, late_scale=0.3)
    assert_replays(new_context(model), new_context(model), token_ids, share, sampling)


def assert_replays(
    drafted: Context, replayed: Context, token_ids: Any, share: bool, sampling: str = "greedy"
) -> None:
    """One context drafts and verifies, the other verifies the same drafts: everything is equal."""
    drafter = layer_skip.LayerSkipDrafter(drafted, GOOD, share=share)
    assert drafter.shares == share
    params = SAMPLINGS[sampling]
    steps = run_steps(drafted, token_ids(9), drafter, Fixed(5, p_min=0), params)
    again = run_steps(replayed, token_ids(9), Replay(steps), AsDrafted(), params)
    assert [step.tokens for step in again] == [step.tokens for step in steps]
    if sampling == "greedy":  # some drafts fail, some do not
        assert 0 < sum(step.n_accepted for step in steps) < sum(step.n_drafted for step in steps)
    tokens = [step.tokens[-1] for step in steps[-1:]] + token_ids(3, seed=1)
    for token in tokens:  # nothing that drafting left behind is read later either
        np.testing.assert_array_equal(
            drafted.decode([token]).logits, replayed.decode([token]).logits
        )


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_drafting_cannot_reach_the_text_however_attention_is_computed(
    arch: str, attention: str, share: bool, tiny: Any, new_context: Any, token_ids: Any
) -> None:
    model = tiny(arch, qtype="Q8_0", late_scale=0.3)
    drafted, replayed = (new_context(model, **ATTENTIONS[attention]) for _ in range(2))
    assert_replays(drafted, replayed, token_ids, share=share)


# --- K/V -------------------------------------------------------------------------------------

KV_MASKS = {
    "good": GOOD,
    "inside": LayerMask.skipping(N_LAYER, attn=[1], ffn=[2]),
    "attention": LayerMask.skipping(N_LAYER, attn=[1, 3]),
    "feed-forward": LayerMask.skipping(N_LAYER, ffn=[2]),
    "from block 0": LayerMask.skipping(N_LAYER, attn=[0], ffn=[2]),
    "empty": EMPTY,
}


KV_MODELS = ("llama", "gemma2", "gemma3", "qwen3moe")


# each mask on each architecture, where blocks are shared for every second
@crossed(
    "arch mask share",
    KV_MODELS,
    KV_MASKS,
    (True, False),
    always={
        (arch, mask, (i + j) % 2 == 0)
        for i, arch in enumerate(KV_MODELS)
        for j, mask in enumerate(KV_MASKS)
    },
)
def test_after_every_step_the_cache_holds_the_text(
    arch: str, mask: str, share: bool, exact: Any, new_context: Any, token_ids: Any
) -> None:
    """Read back through the logits of a next token, against a cache filled from scratch.

    gemma2 and gemma3 have layers with a window, shorter than these texts.
    """
    model, prompt = exact(arch), token_ids(9)
    context, fresh = new_context(model), new_context(model)
    drafter = layer_skip.LayerSkipDrafter(context, KV_MASKS[mask], share=share)
    text = list(prompt)
    n_accepted = set()
    with Sampler(model, SAMPLINGS["seeded"]) as sampler:  # cuts drafts at several places
        for step in generate_steps(
            context,
            prompt,
            drafter=drafter,
            controller=Fixed(3, p_min=0),
            sampler=sampler,
            n_predict=N_PREDICT,
        ):
            text += step.tokens
            n_accepted.add(step.n_accepted)
            probe = context.sequence().fork(2)
            got = context.decode(text[-1:], seq=probe).logits
            probe.drop()
            fresh.sequence().drop()
            feed(fresh, text[:-1])
            np.testing.assert_array_equal(got, fresh.decode(text[-1:]).logits)
    assert context.sequence().n_past == len(text) - 1
    if mask == "good":
        assert len(n_accepted) > 1


# --- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_predict", [1, 2, 3, 7])
@pytest.mark.parametrize("mask", MASKS)
def test_fewer_tokens_than_a_draft(
    mask: str, n_predict: int, exact: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(exact())
    want = plain(context, token_ids(9))[:n_predict]
    got = complete(
        context, token_ids(9), mask=MASKS[mask], controller=Fixed(8, p_min=0), n_predict=n_predict
    )
    assert got.tokens == want
    assert got.finish_reason == "length"
    assert len(got.stats.n_drafted_at) == min(8, n_predict - 1)  # the pass itself adds a token


@pytest.mark.parametrize("n_prompt", [1, 230, 255, 256])
@pytest.mark.parametrize("mask", MASKS)
def test_full_context(
    mask: str, n_prompt: int, exact: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(exact())
    prompt = token_ids(n_prompt)
    want = plain(context, prompt, n_predict=1000)
    assert len(want) == context.n_ctx - n_prompt + 1
    got = complete(context, prompt, mask=MASKS[mask], controller=Fixed(8, p_min=0), n_predict=1000)
    assert got.tokens == want
    assert got.finish_reason == "context"


def test_prompt_that_does_not_fit(exact: Any, new_context: Any, token_ids: Any) -> None:
    context = new_context(exact())
    for n_prompt in (257, 1000):
        completion = Completion(context, token_ids(n_prompt), mask=GOOD)
        with pytest.raises(ContextFullError, match=f"{n_prompt} tokens, the context 256"):
            list(completion)
        assert context.sequence().n_past == 0


def test_batches_of_one_do_not_draft(exact: Any, new_context: Any, token_ids: Any) -> None:
    model = exact()
    context = new_context(model, n_batch=4)
    got = complete(context, token_ids(9), mask=GOOD, controller=Fixed(8, p_min=0))
    assert got.tokens == plain(new_context(model), token_ids(9))
    assert len(got.stats.n_drafted_at) == 3  # a batch has room for the last token and three


@pytest.mark.parametrize("mask", MASKS)
def test_stop_strings(mask: str, exact: Any, new_context: Any) -> None:
    """A stop string may end in the middle of an accepted draft, and span tokens."""
    context = new_context(exact())
    model = context.model
    text_of_all = complete(context, model.tokenize("the"), draft=None)
    text = text_of_all.text
    assert len(text) > 20
    for start in range(0, 12, 3):
        stop = text[start : start + 3]
        want = complete(context, model.tokenize("the"), draft=None, stop=[stop])
        got = complete(
            context,
            model.tokenize("the"),
            mask=MASKS[mask],
            stop=[stop],
            controller=Fixed(8, p_min=0),
        )
        assert got.finish_reason == want.finish_reason == "stop"
        assert (got.text, got.tokens) == (want.text, want.tokens)
        assert got.text == text[: text.index(stop)]


def test_end_of_text_inside_a_draft(exact: Any, new_context: Any) -> None:
    """A grammar forces an early end; a draft beyond it is not taken."""
    context = new_context(exact())
    sampling = SamplingParams(temperature=0.0, grammar='root ::= "the" " "? "end"')
    prompt = context.model.tokenize("at")
    want = complete(context, prompt, draft=None, sampling=sampling)
    assert want.finish_reason == "eog" and want.text.replace(" ", "") == "theend"
    for mask in MASKS.values():
        got = complete(context, prompt, mask=mask, sampling=sampling, controller=Fixed(8, p_min=0))
        assert (got.tokens, got.text, got.finish_reason) == (want.tokens, want.text, "eog")


@pytest.mark.parametrize("n_pieces", [1, 2, 5])
def test_leaving_early(n_pieces: int, exact: Any, new_context: Any, token_ids: Any) -> None:
    """Whoever stops iterating finds the sequence at the text so far, and can go on from there."""
    model = exact()
    context = new_context(model)
    want = plain(new_context(model), token_ids(9))
    completion = Completion(context, token_ids(9), mask=GOOD, sampling=GREEDY)
    pieces = iter(completion)
    for _piece in itertools.islice(pieces, n_pieces):
        assert_state(context, completion)
    pieces.close()  # type: ignore[attr-defined]
    assert_state(context, completion)
    assert completion.tokens == want[: len(completion.tokens)]

    fresh = new_context(model)
    feed(fresh, [*token_ids(9), *completion.tokens[:-1]])
    last = completion.tokens[-1:]
    np.testing.assert_array_equal(context.decode(last).logits, fresh.decode(last).logits)


def test_one_context_serves_text_after_text(exact: Any, new_context: Any, token_ids: Any) -> None:
    model = exact()
    shared = new_context(model)
    for i, mask in enumerate([GOOD, BAD, EMPTY, GOOD]):
        prompt = token_ids(5 + 9 * i, seed=i)
        want = plain(new_context(model), prompt)
        assert complete(shared, prompt, mask=mask).tokens == want


# --- side by side ----------------------------------------------------------------------------


def test_two_contexts_step_by_step(exact: Any, new_context: Any, token_ids: Any) -> None:
    """Masks belong to a batch, not to a model or a process."""
    models = [exact("llama"), exact("llama"), exact("gemma3"), exact("qwen2moe")]
    masks = [GOOD, BAD, LayerMask.alternate(N_LAYER), EMPTY]
    want = [plain(new_context(model), token_ids(9, seed=i)) for i, model in enumerate(models)]
    texts = [
        Completion(new_context(model), token_ids(9, seed=i), mask=mask, sampling=GREEDY,
                   n_predict=N_PREDICT)
        for i, (model, mask) in enumerate(zip(models, masks, strict=True))
    ]  # fmt: skip
    for _ in itertools.zip_longest(*texts):
        pass
    assert [text.tokens for text in texts] == want


@pytest.mark.parametrize("archs", [("llama", "llama"), ("llama", "gemma2"), ("qwen2moe",) * 2])
def test_two_threads(archs: tuple[str, str], exact: Any, new_context: Any, token_ids: Any) -> None:
    contexts = [new_context(exact(arch)) for arch in archs]
    masks = [GOOD, BAD]

    def texts(i: int) -> list[list[int]]:
        return [
            complete(contexts[i], token_ids(9, seed=seed), mask=masks[(i + seed) % 2]).tokens
            for seed in range(4)
        ]

    want = [texts(0), texts(1)]
    for _ in range(2):
        got: dict[int, list[list[int]]] = {}
        start = threading.Barrier(2)

        def work(i: int, got: dict[int, list[list[int]]], start: threading.Barrier) -> None:
            start.wait()
            got[i] = texts(i)

        threads = [threading.Thread(target=work, args=(i, got, start)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [got.get(0), got.get(1)] == want


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("max_tokens", "give n_predict=..."),
        ("temperature", r"give sampling=SamplingParams\(temperature=...\)"),
        ("colour", "see Completion"),
    ],
)
def test_arguments_of_other_packages_lead_to_ours(demo: Model, name: str, advice: str) -> None:
    with (
        demo.context() as context,
        pytest.raises(TypeError, match=f"no argument '{name}'; {advice}"),
    ):
        generate(context, "Once", **{name: 1})  # type: ignore[misc]


def test_a_name_in_place_of_a_context_leads_to_a_context() -> None:
    with pytest.raises(TypeError, match=r"make one with Model\('demo'\).context\(\)"):
        generate("demo", "Once")  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [b"Once", bytearray(b"Once")])
def test_bytes_are_no_token_ids(demo: Model, prompt: bytes | bytearray) -> None:
    with (
        demo.context() as context,
        pytest.raises(ArgumentError, match=r"give text \(str\) or token ids"),
    ):
        generate(context, prompt)
