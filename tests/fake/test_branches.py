"""Drafts with branches: the text is the plain one, and nothing but the text is left behind."""

import pytest
from branching import KINDS, Trees
from drafts import draft_of, outcomes_of, parents_of

from pyselfspec import Fixed
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.passes import Pass
from pyselfspec.speculate.batching import batch_steps, generate_steps
from pyselfspec.speculate.branches import n_within
from pyselfspec.speculate.generation import Generation
from pyselfspec.speculate.stats import GenerationStats
from pyselfspec.speculate.types import Step, Verdict
from pyselfspec.testing.conformance import generated, tokens_of
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_model import Broken, FakeModel, FakeSampler, plain_tokens

PROMPT = [3, 1, 4, 1, 5]
#      text -> 0 -> 1 -> 2
#              `--> 3 -> 4
#      text -> 5
TREE = draft_of((7, 8, 9, 7, 6, 5), parents=(-1, 0, 1, 0, 3, -1))
each_kind = pytest.mark.parametrize("kind", KINDS)


# the shape


@pytest.mark.parametrize(("n_branches", "n"), [(1, 3), (2, 5), (3, 6), (9, 6)])
def test_a_beginning_with_as_many_branches_as_there_are_sequences(n_branches, n):
    assert n_within(TREE, n_branches) == n
    inner = set(parents_of(TREE)[:n])
    assert sum(i not in inner for i in range(n)) <= n_branches


def test_depths_children_and_what_was_decided():
    assert list(TREE.depths) == [0, 1, 2, 1, 2, 0]
    assert [list(TREE.children(i)) for i in range(-1, 6)] == [[0, 5], [1, 3], [2], [], [4], [], []]
    step = Step(
        draft_of((7, 8, 7), (0.1, 0.2, 0.3), parents=(-1, 0, 0)), Verdict((0,), 1, False), 1
    )
    assert outcomes_of(step) == [(0.1, True), (0.2, False)]
    step = Step(TREE, Verdict((0, 3), 1, False), 1)
    assert step.tokens == (7, 7, 1)
    stats = GenerationStats()
    stats.observe(step)
    assert (stats.n_drafted_at, stats.n_accepted_at) == ([2, 2, 2], [1, 1])


def test_a_tree_behind_shared_blocks_is_refused():
    with pytest.raises(ArgumentError, match="must be verified by a pass of all blocks"):
        draft_of((1, 2), parents=(-1, -1), verification=Pass(in_place=True))


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
            consume=model.is_eog,
        )
    )
    assert tokens_of(steps) == plain
    assert context.sequence(0).held == [*PROMPT, *plain][:-1]
    assert context.n_cells == context.sequence(0).n_past
    assert all(context.sequence_table.is_free(i) for i in range(1, context.n_seq_max))
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
        assert step.draft.token_ids == draft.token_ids[:n]


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
    context.sequence_table.occupy(1)
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
    text = Generation(
        context.sequence(),
        PROMPT,
        drafter=Trees([*PROMPT, *plain], "last", 0, model.n_vocab),
        controller=Fixed(5, p_min=0),
        sampler=FakeSampler(fail_at=fails if where == "draw" else None),
        n_predict=20,
    )
    with pytest.raises(Broken):
        for _ in batch_steps(context, [text]):
            pass
    assert context.sequence(0).held == text.history[:-1]
    assert text.history == [*PROMPT, *plain][: len(text.history)]
    assert context.n_cells == context.sequence(0).n_past
    assert context.n_branches == context.n_seq_max


def test_a_step_that_is_given_up_in_its_pass_leaves_the_text_as_it_was():
    context = FakeContext(FakeModel())
    plain = plain_tokens(context.model, PROMPT, 20)
    drafter = Trees([*PROMPT, *plain], "last", 0, context.model.n_vocab)
    text = Generation(
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
    assert context.n_branches == 2  # of four sequences two are borrowed by branches
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
        Generation(
            context.sequence(i),
            prompt,
            drafter=Trees([*prompt, *plain[i]], "random", seed, model.n_vocab),
            controller=Fixed(4, p_min=0),
            sampler=FakeSampler(),
            n_predict=12,
        )
        for i, prompt in enumerate(prompts)
    ]
    for _ in batch_steps(context, texts):
        pass
    assert [text.history for text in texts] == [
        [*a, *b] for a, b in zip(prompts, plain, strict=True)
    ]
    assert context.n_cells == sum(len(text.history) - 1 for text in texts)


# on real models
