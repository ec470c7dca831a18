"""Tests that every drafter must pass, on a scripted model. For pytest:

    from pyselfspec.testing.conformance import DrafterConformance

    class TestMine(DrafterConformance):
        def make(self, context):
            return mine.make(context, mine.Options())

Passes that a drafter requests are run at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pytest

from ..costs.table import N_WIDTH
from ..speculate.batching import batch_steps, generate_steps
from ..speculate.controllers.fixed import Fixed
from ..speculate.generation import Generation
from ..speculate.limits import DraftLimit
from ..speculate.pass_requests import run, run_requests
from ..speculate.types import Draft, Step, Verdict
from .fake_context import FakeContext
from .fake_model import EOG, Broken, FakeModel, FakeSampler, plain_tokens

HISTORY = [5, 3, 5, 3, 5, 3, 5]  # repeats itself, for drafters that copy
every_context = pytest.mark.parametrize("enters", [True, False], ids=["enters", "forks"])


def drafted(
    drafter: Any, context: Any, limit: DraftLimit, history: Sequence[int] = HISTORY
) -> Draft:
    """Return a draft; run the passes that it requests."""
    work = drafter.draft(list(history), limit)
    return work if isinstance(work, Draft) else run(context, work)


def begin(drafter: Any, context: Any) -> None:
    """Begin a generation of HISTORY with this drafter: evaluate all but the last token."""
    generation = Generation(
        context.sequence(),
        HISTORY,
        drafter=drafter,
        controller=Fixed(1, p_min=0),
        sampler=FakeSampler(),
        n_predict=1,
    )
    run(context, generation.begin())


def generated(
    drafter: Any, context: Any, n_max: int, n_predict: int = 20, prompt: Sequence[int] = HISTORY
) -> list[Step]:
    """Return the steps of a generation with drafts as long as allowed."""
    return list(
        generate_steps(
            context,
            prompt,
            drafter=drafter,
            controller=Fixed(n_max, p_min=0),
            sampler=FakeSampler(),  # type: ignore[arg-type]
            n_predict=n_predict,
            consume=context.model.is_eog,
        )
    )


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def assert_left_as_promised(context: Any, draft: Draft) -> None:
    """Check that sequence 0 is unchanged, or holds the rows to verify, and that no other cells are
    used."""
    rows = [HISTORY[-1], *draft.token_ids] if draft.verification.in_place else []
    seq = context.sequence(0)
    assert seq.held == [*HISTORY[:-1], *rows]
    assert context.n_cells == seq.n_past
    assert all(cell.is_full for cell in seq.cells[: len(HISTORY) - 1])
    if draft.verification.enter is not None:
        assert len(draft.verification.enter) == len(rows)


class DrafterConformance(ABC):
    @abstractmethod
    def make(self, context: Any) -> Any:
        """A new drafter for this context, an instance of FakeContext."""

    def begun(
        self, model: FakeModel | None = None, *, enters: bool = True, **options: Any
    ) -> tuple[Any, FakeContext]:
        """Return a drafter that has begun HISTORY, and its context, which holds all but the last
        token."""
        context = FakeContext(model or FakeModel(), enters=enters, **options)
        drafter = self.make(context)
        begin(drafter, context)
        return drafter, context

    # costs

    @every_context
    def test_it_states_its_costs(self, enters: bool) -> None:
        drafter, _ = self.begun(enters=enters)
        costs = drafter.costs().at(0)
        assert len(costs.full_us) == len(costs.verify_us) == N_WIDTH
        assert all(us >= 0 for us in (*costs.full_us, costs.token_us, costs.last_us))

    # a draft

    @every_context
    def test_it_drafts_nothing_with_a_limit_of_0(self, enters: bool) -> None:
        drafter, context = self.begun(enters=enters)
        assert drafted(drafter, context, DraftLimit(0)) == Draft()
        assert context.n_decodes == 1

    @every_context
    @pytest.mark.parametrize("n_max", [1, 2, 5])
    def test_a_draft_keeps_to_the_limit(self, n_max: int, enters: bool) -> None:
        drafter, context = self.begun(enters=enters)
        draft = drafted(drafter, context, DraftLimit(n_max))
        assert len(draft.tokens) <= n_max
        assert all(0.0 <= p <= 1.0 for p in draft.probs)
        assert draft.draft_us >= 0

    @every_context
    @pytest.mark.parametrize("seed", range(8))
    def test_a_draft_holds_no_token_below_p_min(self, seed: int, enters: bool) -> None:
        drafter, context = self.begun(FakeModel(seed=seed), enters=enters)
        draft = drafted(drafter, context, DraftLimit(8, p_min=0.5))
        assert all(each.p is None or each.p >= 0.5 for each in draft.tokens)

    @every_context
    def test_a_draft_holds_nothing_after_an_ending_token(self, enters: bool) -> None:
        model = FakeModel(quality=1.0, end_at=len(HISTORY) + 2)
        drafter, context = self.begun(model, enters=enters)
        assert EOG not in drafted(drafter, context, DraftLimit(8)).token_ids[:-1]

    @every_context
    @pytest.mark.parametrize("p_min", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("n_accepted", [0, 1, 4])
    def test_a_draft_leaves_the_text_and_the_rows_to_verify(
        self, n_accepted: int, p_min: float, enters: bool
    ) -> None:
        drafter, context = self.begun(enters=enters)
        draft = drafted(drafter, context, DraftLimit(4, p_min))
        assert_left_as_promised(context, draft)
        n = min(n_accepted, len(draft.tokens))
        drafter.accept(Verdict(tuple(range(n)), 1, False))
        assert_left_as_promised(context, draft)

    @every_context
    def test_it_drafts_at_all(self, enters: bool) -> None:
        """HISTORY repeats itself, and draft passes predict the model's own text."""
        drafter, context = self.begun(FakeModel(quality=1.0), enters=enters)
        assert any(step.n_drafted for step in generated(drafter, context, n_max=8))

    @every_context
    @pytest.mark.parametrize("n", range(1, 6))
    def test_a_draft_that_fails_leaves_the_text_as_it_was(self, n: int, enters: bool) -> None:
        drafter, context = self.begun(enters=enters)
        before = list(context.sequence(0).cells)
        context.fail_at_decode = context.n_decodes + n
        try:
            drafted(drafter, context, DraftLimit(4))
        except Broken:
            assert context.sequence(0).cells == before
            assert context.n_cells == len(before)
        else:
            assert context.n_decodes < context.fail_at_decode

    @every_context
    @pytest.mark.parametrize("n", range(4))
    def test_a_draft_that_is_given_up_leaves_the_text_as_it_was(self, n: int, enters: bool) -> None:
        drafter, context = self.begun(enters=enters)
        before = list(context.sequence(0).cells)
        work = drafter.draft(list(HISTORY), DraftLimit(4))
        if isinstance(work, Draft):
            return
        request = next(work)
        for _ in range(n):
            try:
                request = work.send(run_requests(context, [request])[0])  # type: ignore[arg-type]
            except StopIteration:
                return  # finished before
        work.close()
        assert context.sequence(0).cells == before
        assert context.n_cells == len(before)

    @every_context
    def test_a_draft_can_be_repeated(self, enters: bool) -> None:
        drafter, context = self.begun(enters=enters)
        first = drafted(drafter, context, DraftLimit(4))
        context.sequence(0).rollback(len(HISTORY) - 1)
        second = drafted(drafter, context, DraftLimit(4))
        assert first.tokens == second.tokens

    # a text

    @every_context
    def test_begin_forgets_the_last_text(self, enters: bool) -> None:
        fresh, other = self.begun(enters=enters)
        used, context = self.begun(enters=enters)
        assert all(step.tokens for step in generated(used, context, n_max=4))
        context.sequence(0).drop()
        begin(used, context)
        limit = DraftLimit(4)
        assert drafted(used, context, limit).token_ids == drafted(fresh, other, limit).token_ids

    @every_context
    @pytest.mark.parametrize("end_after", [None, 0, 7])
    @pytest.mark.parametrize("n_max", [1, 3, 8])
    @pytest.mark.parametrize("quality", [0.0, 0.7, 1.0])
    def test_drafted_text_is_plain_text(
        self, quality: float, n_max: int, end_after: int | None, enters: bool
    ) -> None:
        end_at = None if end_after is None else len(HISTORY) + end_after
        model = FakeModel(quality, end_at)
        drafter, context = self.begun(model, enters=enters)
        text = tokens_of(generated(drafter, context, n_max))
        assert text == plain_tokens(model, HISTORY, 20)
        seq = context.sequence(0)
        assert seq.held == [*HISTORY, *text][:-1]
        assert context.n_cells == seq.n_past
        assert all(cell.is_full for cell in seq.cells)

    @every_context
    @pytest.mark.parametrize("pass_width", [1, 2, 3, 5])
    def test_drafts_wider_than_a_pass_are_verified_in_parts(
        self, pass_width: int, enters: bool
    ) -> None:
        model = FakeModel(quality=0.9)
        drafter, context = self.begun(model, enters=enters, pass_width=pass_width)
        context.widths.clear()
        text = tokens_of(generated(drafter, context, n_max=8))
        assert text == plain_tokens(model, HISTORY, 20)
        assert max(context.widths) <= pass_width

    @every_context
    @pytest.mark.parametrize("n_ctx", range(len(HISTORY), len(HISTORY) + 9))
    def test_drafts_fit_into_what_is_left_of_the_context(self, n_ctx: int, enters: bool) -> None:
        model = FakeModel(quality=1.0)
        drafter, context = self.begun(model, enters=enters, n_ctx=n_ctx)
        text = tokens_of(generated(drafter, context, n_max=4))
        assert text == plain_tokens(model, HISTORY, 20, n_ctx=n_ctx)

    @every_context
    def test_a_second_turn_keeps_the_first(self, enters: bool) -> None:
        """The prompt continues the last text, so only new tokens are evaluated."""
        model = FakeModel(quality=0.8)
        drafter, context = self.begun(model, enters=enters)
        turn = [*HISTORY, *tokens_of(generated(drafter, context, n_max=4)), 1, 2]
        n_held = context.sequence(0).n_past
        context.passes.clear()
        text = tokens_of(generated(drafter, context, n_max=4, prompt=turn))
        assert text == plain_tokens(model, turn, 20)
        assert context.passes[0] == (0, len(turn) - 1 - n_held, None)

    @every_context
    @pytest.mark.parametrize("n_texts", [2, 3])
    @pytest.mark.parametrize("seed", range(4))
    def test_texts_of_a_batch_equal_those_generated_alone(
        self, seed: int, n_texts: int, enters: bool
    ) -> None:
        """Each generation has a drafter of its own, and they share passes."""
        model = FakeModel(quality=0.8, seed=seed)
        context = FakeContext(model, enters=enters, n_seq_max=2 * n_texts)
        prompts = [[*HISTORY, i + 1] for i in range(n_texts)]
        texts = [
            Generation(
                context.sequence(i),  # type: ignore[arg-type]
                prompt,
                drafter=self.make(context),
                controller=Fixed(3, p_min=0),
                sampler=FakeSampler(),
                n_predict=12 + i,
            )
            for i, prompt in enumerate(prompts)
        ]
        for _ in batch_steps(context, texts):  # type: ignore[arg-type]
            assert all(width <= context.abilities.pass_width for width in context.widths)
        for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            assert text.history == [*prompt, *plain_tokens(model, prompt, 12 + i)]
            assert context.sequence(i).held == text.history[:-1]
        assert context.n_cells == sum(len(text.history) - 1 for text in texts)

    def test_closing_twice_is_fine(self) -> None:
        drafter, _ = self.begun()
        drafter.close()
        drafter.close()
