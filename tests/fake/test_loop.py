"""The loop, on a scripted model: drafts change the number of passes and nothing else."""

import itertools

import pytest

from pyselfspec.errors import ArgumentError, ContextFullError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.runtime.passes import Hidden, Pass, Rows
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.speculate.drafters.layer_skip.shared_blocks import SharedBlocks
from pyselfspec.speculate.pass_requests import PassRequest
from pyselfspec.speculate.types import Draft
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_drafter import FakeController, FakeDrafter
from pyselfspec.testing.fake_model import EOG, Broken, FakeModel, FakeSampler, plain_tokens

PROMPT = [3, 1, 4, 1, 5]


# Who drafts: the script without any K/V; a mask, in the text's own sequence; a mask, in a fork.
every_way = pytest.mark.parametrize("way", ["script", "shared", "forked"])


class Run:
    """One generation and everything that took part in it."""

    def __init__(
        self,
        model,
        *,
        prompt=PROMPT,
        lengths=(4,),
        n_predict=20,
        consume=None,
        sampler=None,
        drafter=None,
        way="script",
        **options,
    ):
        self.prompt = prompt
        self.sampler = sampler or FakeSampler()
        self.controller = FakeController(lengths)
        self.context = FakeContext(model, **options)
        self.drafter = drafter or FakeDrafter(model)
        if way != "script":
            mask = LayerMask.alternate(model.n_layer)
            self.drafter = layer_skip.LayerSkipDrafter(self.context, mask, share=way == "shared")
        self.tokens: list[int] = []
        self.told: list[int] = []
        self._consume = consume or model.is_eog
        self.steps = generate_steps(
            self.context,
            prompt,
            drafter=self.drafter,
            controller=self.controller,
            sampler=self.sampler,
            n_predict=n_predict,
            consume=self._tell,
        )

    def _tell(self, token):
        self.told.append(token)
        return self._consume(token)

    def __iter__(self):
        for step in self.steps:
            self.tokens += step.tokens
            yield step

    def all(self):
        for _ in self:
            pass
        return self.tokens

    def assert_cells_are_history(self):
        assert self.context.sequence(0).held == [*self.prompt, *self.tokens][:-1]
        assert self.context.n_cells == self.context.sequence(0).n_past
        assert all(cell.is_full for cell in self.context.sequence(0).cells)


# lossless


@pytest.mark.parametrize("n_predict", [1, 2, 5, 17])
@pytest.mark.parametrize("lengths", [(1,), (2,), (4,), (7,), (0,), (5, 0, 1)], ids=str)
@pytest.mark.parametrize("quality", [0.0, 0.6, 0.9, 1.0])
@every_way
def test_drafted_text_is_plain_text(way, quality, lengths, n_predict):
    for end_after, sampler_seed in itertools.product((None, 0, 1, 4, 9), (None, 1)):
        end_at = None if end_after is None else len(PROMPT) + end_after
        model = FakeModel(quality, end_at)
        sampler = FakeSampler(sampler_seed)
        run = Run(model, lengths=lengths, n_predict=n_predict, sampler=sampler, way=way)
        for step in run:
            run.assert_cells_are_history()
            assert 1 <= len(step.tokens) <= max(lengths) + 1

        plain = plain_tokens(model, PROMPT, n_predict, seed=sampler_seed)
        assert run.tokens == run.told == plain, f"ends after {end_after}, seed {sampler_seed}"
        assert run.sampler.n_draws == len(plain)
        run.assert_cells_are_history()


class EmptyAfterShared(FakeDrafter):
    """Runs the shared blocks over the last token, then proposes nothing."""

    def draft(self, history, limit):
        shared = SharedBlocks(LayerMask.early_exit(self.model.n_layer, 2))
        rows = Rows.of(0, len(history) - 1, history[-1:], "none")
        shared.keep((yield PassRequest(rows, shared.below())).hidden)
        return Draft(verification=shared.verification())


def test_an_empty_draft_is_verified_by_the_pass_that_it_names():
    model = FakeModel(0.6)
    run = Run(model, drafter=EmptyAfterShared(model), n_predict=5)
    for step in run:
        assert step.draft.verification.in_place and len(step.tokens) == 1
        run.assert_cells_are_history()
    assert run.tokens == plain_tokens(model, PROMPT, 5)


def test_the_combinations_above_reach_every_kind_of_step():
    """Or the test above would prove little."""
    kinds = set()
    for quality, end_after in itertools.product((0.0, 0.6, 0.9, 1.0), (None, 0, 1, 4, 9)):
        end_at = None if end_after is None else len(PROMPT) + end_after
        for step in Run(FakeModel(quality, end_at), n_predict=17):
            accepted = {0: "none", step.n_drafted: "all"}.get(step.n_accepted, "some")
            own = {None: "no token", EOG: "end"}.get(step.verdict.next_token, "token")
            kinds.add(f"{accepted}, {own}")
    assert kinds >= {"none, token", "some, token", "all, token", "some, no token"}


@every_way
def test_perfect_drafts_save_passes(way):
    run = Run(FakeModel(quality=1.0), lengths=(4,), n_predict=20, way=way)
    run.all()
    assert [len(step.tokens) for step in run.controller.steps] == [5, 5, 5, 5]


def test_useless_drafts_cost_no_tokens():
    run = Run(FakeModel(quality=0.0), lengths=(4,), n_predict=6)
    run.all()
    assert [step.n_accepted for step in run.controller.steps] == [0] * 6


# limits


@pytest.mark.parametrize("n_predict", [1, 2, 3, 4])
def test_drafts_never_overshoot_what_is_asked_for(n_predict):
    run = Run(FakeModel(quality=1.0), lengths=(8,), n_predict=n_predict)
    assert len(run.all()) == n_predict
    assert [limit.n_max for limit in run.drafter.limits] == [n_predict - 1][: n_predict - 1]


@pytest.mark.parametrize("n_batch", [1, 2, 3])
@every_way
def test_drafts_fit_the_batch(way, n_batch):
    model = FakeModel(quality=1.0)
    run = Run(model, lengths=(8,), n_batch=n_batch, way=way)
    assert run.all() == plain_tokens(model, PROMPT, 20)
    assert max(step.n_drafted for step in run.controller.steps) == n_batch - 1


def test_no_draft_is_asked_for_when_none_is_allowed():
    run = Run(FakeModel(), lengths=(0,))
    run.all()
    assert run.drafter.limits == []


def test_p_min_reaches_the_drafter():
    run = Run(FakeModel(), n_predict=3)
    run.controller.p_min = 0.375
    run.all()
    assert {limit.p_min for limit in run.drafter.limits} == {0.375}


@pytest.mark.parametrize("quality", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("n_ctx", range(len(PROMPT), len(PROMPT) + 10))
@every_way
def test_a_full_context_ends_the_text_alike_with_and_without_drafts(way, n_ctx, quality):
    model = FakeModel(quality)
    unbounded = plain_tokens(model, PROMPT, 30)
    without = Run(model, n_ctx=n_ctx, n_predict=30, lengths=(0,)).all()
    run = Run(model, n_ctx=n_ctx, n_predict=30, lengths=(4,), way=way)
    assert run.all() == without == unbounded[: n_ctx - len(PROMPT) + 1]
    run.assert_cells_are_history()


@every_way
def test_a_draft_may_fill_the_context_to_the_last_cell(way):
    run = Run(FakeModel(quality=1.0), n_ctx=len(PROMPT) + 6, lengths=(9,), way=way)
    run.all()
    assert [step.n_drafted for step in run.controller.steps] == [6]


def test_a_prompt_that_does_not_fit_is_refused():
    run = Run(FakeModel(), n_ctx=len(PROMPT) - 1)
    with pytest.raises(ContextFullError, match="prompt has 5 tokens, the context 4"):
        next(run.steps)


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(ArgumentError, match="at least one"):
        next(Run(FakeModel(), prompt=[]).steps)


@pytest.mark.parametrize("n_predict", [0, -1, 2.5])
def test_asking_for_no_tokens_or_parts_of_one_is_refused(n_predict):
    with pytest.raises(ArgumentError, match=f"whole number of at least 1, got {n_predict}"):
        next(Run(FakeModel(), n_predict=n_predict).steps)


@pytest.mark.parametrize("prompt", [[7], list(range(1, 10)) * 8], ids=["one", "many batches"])
def test_prompts_of_any_length(prompt):
    model = FakeModel(0.8)
    run = Run(model, prompt=prompt, n_batch=16)
    assert run.all() == plain_tokens(model, prompt, 20)
    run.assert_cells_are_history()


# the end of the text


@pytest.mark.parametrize("end_after", range(6))
def test_nothing_follows_an_end_inside_a_draft(end_after):
    model = FakeModel(quality=1.0, end_at=len(PROMPT) + end_after)
    run = Run(model, lengths=(5,))
    tokens = run.all()
    assert tokens.index(EOG) == len(tokens) - 1 == end_after
    assert run.controller.steps[-1].verdict.ended
    run.assert_cells_are_history()


@pytest.mark.parametrize("n", range(1, 12))
def test_ends_may_end_the_text_at_any_token(n):
    model = FakeModel(quality=0.9)
    told = []

    def ends(token):
        told.append(token)
        return len(told) == n

    run = Run(model, consume=ends)
    assert run.all() == told == plain_tokens(model, PROMPT, n)
    run.assert_cells_are_history()


# who is told what


def test_the_controller_sees_every_step():
    run = Run(FakeModel(), lengths=(3, 0, 2))
    assert list(run) == run.controller.steps


def test_the_drafter_sees_the_prompt_and_every_verdict():
    run = Run(FakeModel())
    run.all()
    assert run.drafter.begun_with == PROMPT
    assert run.drafter.verdicts == [step.verdict for step in run.controller.steps]


def test_the_sampler_sees_the_prompt():
    run = Run(FakeModel())
    run.all()
    assert run.sampler.prompt == PROMPT


def test_forked_drafts_do_not_touch_sequence_0():
    run = Run(FakeModel(), way="forked")
    run.all()
    assert {mask for seq_id, _, mask in run.context.passes if seq_id == 0} == {None}


def test_shared_blocks_run_once_per_token():
    """In the passes over a step's tokens, each block below the mask sees each token once."""
    run = Run(FakeModel(quality=1.0), lengths=(4,), n_predict=10, way="shared", n_batch=16)
    run.all()
    mask = LayerMask.alternate(6)
    rest, shared = LayerMask.enter_at(6, 1), LayerMask.early_exit(6, 1)
    step = [(0, 1, mask)] * 4 + [(0, 1, shared), (0, 5, rest)]
    assert run.context.passes == [(0, len(PROMPT) - 1, None), *step, *step]


def test_one_pass_per_step():
    run = Run(FakeModel(), n_batch=8)
    run.all()
    widths = [n_tokens for _, n_tokens, _ in run.context.passes]
    assert widths == [len(PROMPT) - 1, *(1 + step.n_drafted for step in run.controller.steps)]


# whatever happens, the cells are the history


@pytest.mark.parametrize("n_steps", range(1, 9))
@pytest.mark.parametrize("quality", [0.0, 0.7, 1.0])
@every_way
def test_closing_after_any_step_leaves_the_history(way, quality, n_steps):
    run = Run(FakeModel(quality), n_predict=40, way=way)
    for _ in itertools.islice(run, n_steps):
        pass
    run.steps.close()
    run.assert_cells_are_history()


@pytest.mark.parametrize("quality", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("fail_at", range(1, 12))
@every_way
def test_a_failing_sampler_leaves_the_history(way, fail_at, quality):
    run = Run(FakeModel(quality), sampler=FakeSampler(fail_at=fail_at), way=way)
    with pytest.raises(Broken):
        run.all()
    run.assert_cells_are_history()


@pytest.mark.parametrize("fail_at", range(1, 12))
@every_way
def test_a_failing_ends_leaves_the_history(way, fail_at):
    count = itertools.count(1)

    def ends(token):
        if next(count) == fail_at:
            raise Broken
        return False

    run = Run(FakeModel(0.8), consume=ends, way=way)
    with pytest.raises(Broken):
        run.all()
    run.assert_cells_are_history()


@pytest.mark.parametrize("fail_at", range(2, 16))
@every_way
def test_a_failing_pass_leaves_the_history(way, fail_at):
    run = Run(FakeModel(0.5), n_predict=40, fail_at_decode=fail_at, way=way)
    with pytest.raises(Broken):
        run.all()
    run.assert_cells_are_history()


@pytest.mark.parametrize("fail_at", range(1, 5))
def test_a_failing_drafter_leaves_the_history(fail_at):
    model = FakeModel(0.5)
    run = Run(model, drafter=FakeDrafter(model, fail_at=fail_at))
    with pytest.raises(Broken):
        run.all()
    run.assert_cells_are_history()


def test_a_failing_controller_leaves_the_history():
    run = Run(FakeModel(0.5))

    def observe(step):
        run.tokens += step.tokens  # they are generated, though nobody gets the step
        raise Broken

    run.controller.observe = observe
    with pytest.raises(Broken):
        run.all()
    run.assert_cells_are_history()


def test_a_new_text_drops_the_last_one():
    model = FakeModel()
    first = Run(model)
    first.all()
    second = Run(model, prompt=[9, 2])
    second.context.cells = first.context.cells
    assert second.all() == plain_tokens(model, [9, 2], 20)
    second.assert_cells_are_history()


def test_closing_an_old_text_leaves_a_newer_one_alone():
    model = FakeModel()
    old, new = Run(model, prompt=[2]), Run(model)
    new.context.cells = old.context.cells
    next(iter(old))
    for _ in itertools.islice(new, 4):
        pass
    old.steps.close()
    new.assert_cells_are_history()


# memories that cannot take tokens back


def test_plain_decoding_needs_no_rollback():
    model = FakeModel()
    run = Run(model, lengths=(0,), can_rollback=False)
    assert run.all() == plain_tokens(model, PROMPT, 20)
    run.assert_cells_are_history()


MEMORIES = [
    {"max_rollback": 15},  # snapshots
    {"max_rollback": 2},
    {"max_rollback": 15, "has_states": True},
    {"has_states": True},  # checkpoints alone
]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("seed", range(6))
def test_memories_of_recurrent_states_give_the_plain_text(memory, seed):
    model = FakeModel(seed=seed, quality=0.6)
    run = Run(model, lengths=(0, 1, 3, 5, 0, 9), can_rollback=False, n_predict=40, **memory)
    assert run.all() == plain_tokens(model, PROMPT, 40)
    run.assert_cells_are_history()


def test_drafts_are_as_long_as_snapshots_reach():
    run = Run(FakeModel(), lengths=(9,), can_rollback=False, max_rollback=2)
    run.all()
    assert max(run.context.widths[1:]) == 3


def test_without_snapshots_accepted_tokens_are_evaluated_again_after_a_rejection():
    model = FakeModel(quality=0.5)
    run = Run(model, lengths=(4,), can_rollback=False, has_states=True, n_predict=30)
    steps = list(run)
    n_verified = sum(1 + len(step.draft.tokens) for step in steps)
    n_again = sum(len(step.tokens) for step in steps if step.n_accepted < len(step.draft.tokens))
    assert n_again > 0
    assert sum(run.context.widths) == len(PROMPT) - 1 + n_verified + n_again


def test_a_checkpoint_of_a_draft_is_given_up_after_its_step():
    run = Run(FakeModel(), lengths=(4,), can_rollback=False, has_states=True, n_predict=30)
    run.all()
    kept = run.context.checkpoints
    assert len(kept) == 2  # after the prompt, and after the text
    assert kept.longest(0, 1000).n_tokens == run.context.sequence(0).n_past


def test_the_next_turn_reads_only_what_is_new():
    model = FakeModel()
    first = Run(model, lengths=(4,), can_rollback=False, has_states=True)
    first.all()
    text = [*PROMPT, *first.tokens]
    second = Run(model, prompt=[*text, 3, 1], lengths=(0,), can_rollback=False, has_states=True)
    second.context.cells, second.context.checkpoints = (
        first.context.cells,
        first.context.checkpoints,
    )
    second.all()
    assert second.context.widths[0] == 2  # one token of the answer, and one of two new ones


def test_an_edited_turn_goes_back_to_the_checkpoint_before_it():
    model = FakeModel()
    first = Run(model, lengths=(4,), can_rollback=False, has_states=True)
    first.all()
    other = (first.tokens[0] + 1) % model.n_vocab
    edited = [*PROMPT, other, 3, 1]
    second = Run(model, prompt=edited, lengths=(0,), can_rollback=False, has_states=True)
    second.context.cells, second.context.checkpoints = (
        first.context.cells,
        first.context.checkpoints,
    )
    assert second.all() == plain_tokens(model, edited, 20)
    assert second.context.widths[0] == len(edited) - 1 - (len(PROMPT) - 1)


def test_an_error_is_not_hidden_by_a_memory_that_cannot_roll_back():
    run = Run(FakeModel(), lengths=(0,), can_rollback=False, sampler=FakeSampler(fail_at=3))
    with pytest.raises(Broken):
        run.all()


# the fake itself notices what the native context would do wrong

TOKENS = [3, 1, 4]
MASK = LayerMask.alternate(6)
ENTER = LayerMask.enter_at(6, 1)


def decode(context, tokens, pos=None, **what):
    pos = context.sequence().n_past if pos is None else pos
    return context.run(Rows.of(0, pos, tokens), Pass(**what)).hidden


def drafted_on(mask=MASK):
    """A context that holds TOKENS from a masked pass, and the states that entered block 1."""
    context = FakeContext(FakeModel())
    return context, decode(context, TOKENS, mask=mask, leave=1)


def test_a_full_pass_on_top_of_a_masked_one_is_noticed():
    context, _ = drafted_on()
    with pytest.raises(AssertionError, match="another mask"):
        decode(context, [2])


def test_a_check_that_leaves_a_masked_token_behind_is_noticed():
    context, hidden = drafted_on()
    with pytest.raises(AssertionError, match="another mask"):
        decode(context, TOKENS[1:], pos=1, mask=ENTER, enter=hidden[1:], in_place=True)


def test_a_check_that_enters_too_late_is_noticed():
    context, _ = drafted_on()
    late = decode(FakeContext(FakeModel()), TOKENS, leave=2)
    with pytest.raises(AssertionError, match="another mask"):
        decode(context, TOKENS, pos=0, mask=LayerMask.enter_at(6, 2), enter=late, in_place=True)
        decode(context, [2])


@pytest.mark.parametrize("wrong", ["order", "block"])
def test_a_check_with_foreign_states_is_noticed(wrong):
    context, hidden = drafted_on()
    states = hidden.numpy()[::-1] if wrong == "order" else hidden.numpy() + 1
    with pytest.raises(AssertionError, match="states of other tokens"):
        decode(context, TOKENS, pos=0, mask=ENTER, enter=Hidden(states), in_place=True)


def test_a_check_of_other_tokens_is_noticed():
    context, hidden = drafted_on()
    with pytest.raises(AssertionError, match="rewrites"):
        decode(context, [3, 1, 5], pos=0, mask=ENTER, enter=hidden, in_place=True)


def test_a_right_check_leaves_full_cells():
    context, hidden = drafted_on()
    decode(context, TOKENS, pos=0, mask=ENTER, enter=hidden, in_place=True)
    assert all(cell.is_full for cell in context.sequence().cells)
    decode(context, [2])
