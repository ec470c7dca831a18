"""Drafts with branches: the text is the plain one, and nothing but the text is left behind."""

import numpy as np
import pytest
from attentions import ATTENTIONS
from branching import KINDS, Trees
from test_masks import write_mamba
from typed_models import SAMPLINGS, SEEDED, plain_text, require_exact

from pyselfspec import Fixed, Model, Sampler
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.runtime import _lib
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.speculate.branches import branched, n_within
from pyselfspec.speculate.loop import generate_steps
from pyselfspec.speculate.text import Text
from pyselfspec.speculate.together import steps_together
from pyselfspec.speculate.types import Draft, GenerationStats, Step, Verdict
from pyselfspec.testing.conformance import generated, tokens_of
from pyselfspec.testing.fakes import (
    Broken,
    FakeContext,
    FakeModel,
    FakeSampler,
    plain_tokens,
)

PROMPT = [3, 1, 4, 1, 5]
#      text -> 0 -> 1 -> 2
#              `--> 3 -> 4
#      text -> 5
TREE = Draft((7, 8, 9, 7, 6, 5), parents=(-1, 0, 1, 0, 3, -1))
each_kind = pytest.mark.parametrize("kind", KINDS)


# the shape


@pytest.mark.parametrize(("n_branches", "n"), [(1, 3), (2, 5), (3, 6), (9, 6)])
def test_a_beginning_with_as_many_branches_as_there_are_sequences(n_branches, n):
    assert n_within(TREE, n_branches) == n
    inner = set(TREE.parents[:n])
    assert sum(i not in inner for i in range(n)) <= n_branches


def test_depths_children_and_what_was_decided():
    assert list(TREE.depths) == [0, 1, 2, 1, 2, 0]
    assert [list(TREE.children(i)) for i in range(-1, 6)] == [[0, 5], [1, 3], [2], [], [4], [], []]
    step = Step(Draft((7, 8, 7), (0.1, 0.2, 0.3), parents=(-1, 0, 0)), Verdict((0,), 1, False), 1)
    assert step.outcomes == [(0.1, True), (0.2, False)]
    step = Step(TREE, Verdict((0, 3), 1, False), 1)
    assert step.tokens == (7, 7, 1)
    stats = GenerationStats()
    stats.observe(step)
    assert (stats.n_drafted_at, stats.n_accepted_at) == ([2, 2, 2], [1, 1])


def test_a_tree_behind_shared_blocks_is_refused():
    with pytest.raises(ArgumentError, match="from the first block on"):
        Draft((1, 2), parents=(-1, -1), verify=Pass(in_place=True))


# on a scripted model


def run_fake(model, kind, *, seed=0, n_max=6, n_predict=20, sampler_seed=None, **options):
    plain = plain_tokens(model, PROMPT, n_predict, seed=sampler_seed)
    context = FakeContext(model, **options)
    drafter = Trees([*PROMPT, *plain], kind, seed, model.n_vocab)
    steps = list(
        generate_steps(
            context,
            PROMPT,
            drafter=drafter,
            controller=Fixed(n_max, p_min=0),
            sampler=FakeSampler(sampler_seed),
            n_predict=n_predict,
            ends=model.is_eog,
        )
    )
    assert tokens_of(steps) == plain
    assert context.sequence(0).held == [*PROMPT, *plain][:-1]
    assert context.n_cells == context.sequence(0).n_past
    assert all(context.ledger.is_free(i) for i in range(1, context.n_seq_max))
    return steps, drafter, context


@each_kind
@pytest.mark.parametrize("sampler_seed", [None, 1])
@pytest.mark.parametrize("end_after", [None, 0, 7])
def test_text_under_trees_is_plain_text(kind, sampler_seed, end_after):
    end_at = None if end_after is None else len(PROMPT) + end_after
    for seed in range(8):
        print("seed", seed)
        model = FakeModel(seed=seed, end_at=end_at)
        run_fake(model, kind, seed=seed, sampler_seed=sampler_seed, n_seq_max=4 + 4 * (seed % 2))


def test_the_right_branch_is_taken_wherever_it_is():
    for kind in ("first", "last"):
        steps, _, _ = run_fake(FakeModel(), kind, n_max=5)
        assert [step.n_accepted for step in steps[:3]] == [2 if kind == "first" else 1] * 3
    steps, _, _ = run_fake(FakeModel(), "wrong")
    assert {step.n_accepted for step in steps} == {0}


def test_a_tree_is_one_pass_and_a_row_for_each_token():
    steps, _, context = run_fake(FakeModel(), "random", n_max=5, n_seq_max=8)
    assert context.widths[1:] == [1 + step.n_drafted for step in steps]


@pytest.mark.parametrize("n_seq_max", [1, 2, 3])
def test_where_sequences_are_few_the_beginning_is_verified(n_seq_max):
    steps, drafter, _ = run_fake(FakeModel(), "first", n_seq_max=n_seq_max)
    for step, draft in zip(steps, drafter.drafts, strict=True):
        n = min(2 * n_seq_max, len(draft.tokens))
        assert step.draft.tokens == draft.tokens[:n]


def test_a_memory_that_takes_nothing_back_has_one_branch():
    assert FakeContext(FakeModel(), can_rollback=False).n_branches == 1


@pytest.mark.parametrize("pass_width", [1, 2, 3, 4])
def test_a_tree_fits_into_a_pass(pass_width):
    _, _, context = run_fake(FakeModel(), "random", pass_width=pass_width)
    assert max(context.widths[1:]) <= pass_width


@pytest.mark.parametrize("n_ctx", range(len(PROMPT), len(PROMPT) + 12))
def test_a_context_that_gets_full_has_no_branches_but_the_text(n_ctx):
    model = FakeModel(seed=n_ctx)
    context = FakeContext(model, n_ctx=n_ctx)
    drafter = Trees([*PROMPT, *plain_tokens(model, PROMPT, 20)], "random", n_ctx, model.n_vocab)
    text = tokens_of(generated(drafter, context, n_max=4, prompt=PROMPT))
    assert text == plain_tokens(model, PROMPT, 20, n_ctx=n_ctx)


def test_other_sequences_in_the_way_leave_the_text_without_a_draft():
    """The tree finds no room, its first token does; 11 cells are free."""
    model = FakeModel()
    context = FakeContext(model, n_ctx=40)
    context.prefill([1] * 29, context.sequence(1))
    context.ledger.claim(1)
    plain = plain_tokens(model, PROMPT, 8)
    drafter = Trees([*PROMPT, *plain], "wrong", 0, model.n_vocab)
    steps = generated(drafter, context, n_max=6, n_predict=20, prompt=PROMPT)
    assert tokens_of(steps) == plain[:7]
    assert [step.n_drafted for step in steps] == [6, 0, 0, 0, 0, 0, 0]
    assert context.n_cells == 29 + context.sequence(0).n_past == 40


@pytest.mark.parametrize("fails", range(2, 8))
@pytest.mark.parametrize("where", ["pass", "draw"])
def test_however_a_step_is_left_the_text_is_whole_and_the_sequences_are_free(where, fails):
    model = FakeModel()
    context = FakeContext(model, fail_at_decode=fails if where == "pass" else None)
    plain = plain_tokens(model, PROMPT, 20)
    text = Text(
        context.sequence(),
        PROMPT,
        drafter=Trees([*PROMPT, *plain], "last", 0, model.n_vocab),
        controller=Fixed(5, p_min=0),
        sampler=FakeSampler(fail_at=fails if where == "draw" else None),
        n_predict=20,
    )
    with pytest.raises(Broken):
        for _ in steps_together(context, [text]):
            pass
    assert context.sequence(0).held == text.history[:-1]
    assert text.history == [*PROMPT, *plain][: len(text.history)]
    assert context.n_cells == context.sequence(0).n_past
    assert context.n_branches == context.n_seq_max


def test_a_step_that_is_given_up_in_its_pass_leaves_the_text_as_it_was():
    context = FakeContext(FakeModel())
    plain = plain_tokens(context.model, PROMPT, 20)
    drafter = Trees([*PROMPT, *plain], "last", 0, context.model.n_vocab)
    text = Text(
        context.sequence(),
        PROMPT,
        drafter=drafter,
        controller=Fixed(5, p_min=0),
        sampler=FakeSampler(),
        n_predict=20,
    )
    context.prefill(PROMPT[:-1])
    text.begin().close()
    drafter.begin(context.sequence(), text.history)
    step = text.step()
    assert next(step).rows.shared
    assert context.n_branches == 2  # of four sequences two are lent to branches
    step.close()
    assert context.n_branches == 4
    assert context.sequence(0).held == PROMPT[:-1]


@pytest.mark.parametrize("seed", range(4))
def test_texts_with_trees_share_passes(seed):
    model = FakeModel(seed=seed)
    context = FakeContext(model, n_seq_max=6)
    prompts = [[*PROMPT, 1 + i] for i in range(3)]
    plain = [plain_tokens(model, prompt, 12) for prompt in prompts]
    texts = [
        Text(
            context.sequence(i),
            prompt,
            drafter=Trees([*prompt, *plain[i]], "random", seed, model.n_vocab),
            controller=Fixed(4, p_min=0),
            sampler=FakeSampler(),
            n_predict=12,
        )
        for i, prompt in enumerate(prompts)
    ]
    for _ in steps_together(context, texts):
        pass
    assert [text.history for text in texts] == [
        [*a, *b] for a, b in zip(prompts, plain, strict=True)
    ]
    assert context.n_cells == sum(len(text.history) - 1 for text in texts)


# on real models


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("arch", ["llama", "gemma3", "falcon", "qwen2moe", "phi3"])
def test_real_text_under_trees_is_plain_text(arch, sampling, tiny, new_context, token_ids):
    context = new_context(tiny(arch, qtype="Q8_0", late_scale=0.05), n_seq_max=6)
    require_exact(context)
    prompt, n = token_ids(9), 48
    plain = plain_text(context, prompt, n, SAMPLINGS[sampling])
    for seed, kind in enumerate(KINDS):
        print("seed", seed)
        context.sequence().drop()
        drafter = Trees([*prompt, *plain], kind, seed, context.model.n_vocab)
        with Sampler(context.model, SAMPLINGS[sampling]) as sampler:
            steps = list(
                generate_steps(
                    context,
                    prompt,
                    drafter=drafter,
                    controller=Fixed(7, p_min=0),
                    sampler=sampler,
                    n_predict=n,
                )
            )
        assert tokens_of(steps) == plain, kind
        n_past = len(prompt) + len(plain) - 1
        assert [context.sequence(i).n_past for i in range(6)] == [n_past, 0, 0, 0, 0, 0]
        assert context.sequence().tokens == tuple([*prompt, *plain][:-1])
        if kind in ("last", "random"):
            assert any(step.verdict.path not in ((), (0,), (0, 1)) for step in steps)


def test_a_real_text_takes_branches_until_the_context_is_nearly_full(tiny, new_context, token_ids):
    """The cells that other branches leave empty between those of the text are won back."""
    context = new_context(tiny("llama", qtype="Q8_0", late_scale=0.05), n_ctx=256)
    require_exact(context)
    prompt, n = token_ids(9), 210
    plain = plain_text(context, prompt, n, SEEDED)
    assert len(plain) == n
    context.sequence().drop()
    with Sampler(context.model, SEEDED) as sampler:
        steps = list(
            generate_steps(
                context,
                prompt,
                drafter=Trees([*prompt, *plain], "last", 0, context.model.n_vocab),
                controller=Fixed(5, p_min=0),
                sampler=sampler,
                n_predict=n,
            )
        )
    assert tokens_of(steps) == plain
    assert sum(not step.draft.is_chain for step in steps) > 30
    assert context.n_moves and context.sequence().in_order


@pytest.mark.parametrize("attention", ["flash", "f32", "q8_0", "mixed"])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "falcon"])
def test_cells_between_those_of_a_text_do_not_change_a_bit(arch, attention, tiny, new_context):
    """A text that takes over every branch from behind others, against the same as a chain."""
    context = new_context(tiny(arch, qtype="Q4_0"), **ATTENTIONS[attention])
    require_exact(context)
    seq, n_vocab = context.sequence(), context.model.n_vocab
    rng = np.random.default_rng(0)
    steps = rng.integers(5, n_vocab, (12, 3)).tolist()

    def run(wrong):
        seq.drop()
        context.prefill([1, 2, 3])
        text, found = [1, 2, 3], []
        for last, *right in steps:
            text.append(last)
            parents = (*range(-1, wrong - 1), -1, wrong)
            draft = Draft((*[4] * wrong, *right), parents=parents)
            rows, path = (0, wrong + 1, wrong + 2), (wrong, wrong + 1)
            with branched(seq, draft) as branches:
                context.run(branches.rows(text))
                found += [_lib.logits_row(context.handle, row, n_vocab) for row in rows]
                branches.settle(seq, len(text) - 1, Verdict(path, 1, False))
            text += right
            assert seq.n_past == len(text)
        assert seq.in_order
        return found

    chain = run(0)
    for wrong in (1, 3):
        assert all(map(np.array_equal, chain, run(wrong)))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_rows_of_a_tree_have_the_bits_of_rows_of_a_chain(arch, tiny, new_context, token_ids):
    context = new_context(tiny(arch, qtype="Q8_0"), n_seq_max=4)
    require_exact(context)
    prompt = token_ids(40)
    text = context.sequence()
    context.prefill(prompt[:-1], text)
    for i in (1, 2):
        text.fork(i)
    n = len(prompt) - 1
    rows = Rows(
        tokens=(prompt[-1], *TREE.tokens),
        seq_ids=(0, 0, 0, 0, 1, 1, 2),
        pos=(n, *(n + 1 + depth for depth in TREE.depths)),
        outputs=(True,) * 7,
        shared=((1, 2), (1,), (), (), (), (), ()),
    )
    context.run(rows)
    branched = [context.best(i) for i in range(7)]
    n_vocab = context.model.n_vocab
    logits = [_lib.logits_row(context.handle, i, n_vocab) for i in range(7)]
    for path in ((0, 1, 2), (0, 3, 4), (5,)):
        for i in range(4):
            context.sequence(i).drop()
        context.prefill(prompt[:-1])
        chain = context.decode([prompt[-1], *(TREE.tokens[i] for i in path)]).logits
        for row, i in enumerate((-1, *path)):
            assert np.array_equal(chain[row], logits[i + 1])
            assert chain[row].argmax() == branched[i + 1]


def test_a_branch_that_was_taken_is_known_to_be_held(tiny, new_context):
    context = new_context(tiny("llama"))
    text = context.sequence()
    context.prefill([1, 2, 3])
    fork = text.fork(1)
    context.run(Rows((4, 5, 6), (0, 0, 1), (3, 4, 4), (True,) * 3, ((1,), (), ())))
    assert (text.tokens, fork.tokens) == ((1, 2, 3, 4, 5), (1, 2, 3, 4, 6))
    text.take_over(fork, 3)
    fork.drop()
    assert (text.tokens, text.n_past) == ((1, 2, 3, 4, 6), 5)
    text.rollback(4)
    assert text.tokens == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Rows((4, 5), (0, 0), (3, 4), (True,) * 2, ((1,), ())), "sequence 1 ends at position -1"),
        (Rows((4,), (0,), (3,), (True,), ((99,),)), "sequence id 99 is not allowed"),
    ],
)
def test_rows_in_sequences_that_differ_are_refused(rows, message, tiny, new_context):
    context = new_context(tiny("llama"))
    context.prefill([1, 2, 3])
    with pytest.raises(ArgumentError, match=message):
        context.run(rows)
    assert context.sequence().n_past == 3


def test_without_flash_attention_there_is_one_branch(tiny, new_context):
    """Lanes of a sum depend on where cells are."""
    model = tiny("llama")
    assert new_context(model, flash_attn=False).n_branches == 1
    assert new_context(model, flash_attn=True).n_branches == 4
    assert new_context(model, type_k="q8_0", type_v="q8_0").n_branches == 4


def test_a_recurrent_model_has_one_branch_and_shares_no_rows(tmp_path):
    with Model(write_mamba(tmp_path / "mamba.gguf")) as model, model.context(n_ctx=256) as context:
        assert context.n_branches == 1
        with pytest.raises(UnsupportedError, match="several sequences need a memory that takes"):
            context.run(Rows((3,), (0,), (0,), (True,), ((1,),)))


def test_rows_of_several_sequences_are_not_rewritten_in_place(tiny, new_context):
    context = new_context(tiny("llama"))
    context.prefill([1, 2, 3])
    context.sequence().fork(1)
    with pytest.raises(UnsupportedError, match="several sequences need"):
        context.run(Rows((3,), (0,), (2,), (True,), ((1,),)), Pass(in_place=True))
