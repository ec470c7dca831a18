"""Masks that change while a text is written: which one is next, which one wins, what it may cost,
and that the text does not notice."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from pyselfspec import GREEDY, Completion, Fixed, LayerMask, SamplingParams
from pyselfspec.errors import ArgumentError, MaskError
from pyselfspec.lab.adapt import adaptation as adapt
from pyselfspec.lab.adapt import state as candidates
from pyselfspec.lab.adapt.adaptation import WINDOW, Adapt, Adaptation, start
from pyselfspec.lab.adapt.state import MARGIN, N_WINDOWS, State
from pyselfspec.masks.score import Score
from pyselfspec.masks.space import MaskSupport, Space, Unit, neighbour
from pyselfspec.runtime.pass_result import PassResult
from pyselfspec.runtime.passes import FULL, Pass
from pyselfspec.runtime.width_check import same_at_widths
from pyselfspec.speculate import drafters, generation
from pyselfspec.speculate import pass_requests as requests
from pyselfspec.speculate.batching import batch_steps, generate_steps
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.drafters import layer_skip, ngram
from pyselfspec.speculate.drafters.ngram import file as ngram_file
from pyselfspec.speculate.generation import Generation
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.types import Draft, Step, Verdict
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_drafter import FakeController, FakeDrafter
from pyselfspec.testing.fake_model import Broken, FakeModel, FakeSampler, plain_tokens

N = 6
ALL = frozenset(range(N))
SPACE = Space.of(MaskSupport(N, ALL, ALL), Unit.BOTH)
START = LayerMask.alternate(N)
PROMPT = [3, 1, 4, 1, 5]


class Parts:
    """Every part costs as much as any other; a token more in a pass costs a tenth of one."""

    def draft(self, mask):
        return 0.1 + 0.9 * mask.n_active / (2 * mask.n_layer)

    def step(self, mask, n_draft):
        return n_draft * self.draft(mask) + 1 + 0.1 * n_draft

    def wide(self, mask, n_tokens):
        return (1 + 0.1 * (n_tokens - 1)) * self.draft(mask)


COSTS = Parts()


def hits(n_right, n=WINDOW):
    return Score.of_drafts(np.arange(n)[None] < n_right)


# --- which mask is next ----------------------------------------------------------------------


def parts_of(mask):
    return {("attn", il) for il in mask.skip_attn} | {("ffn", il) for il in mask.skip_ffn}


def is_unit(parts):
    """One part, or both of a block."""
    return len(parts) == 1 or (len(parts) == 2 and len({il for _part, il in parts}) == 1)


def test_neighbours_differ_by_a_unit_or_exchange_one():
    rng = np.random.default_rng(1)
    mask, more, less, other = START, 0, 0, 0
    for _ in range(500):
        there = neighbour(SPACE, mask, rng)
        new, gone = parts_of(there) - parts_of(mask), parts_of(mask) - parts_of(there)
        assert new or gone
        assert all(is_unit(parts) for parts in (new, gone) if parts)
        assert 0 < len(parts_of(there)) <= SPACE.count(0.8)
        more, less, other = more + (not gone), less + (not new), other + bool(new and gone)
        mask = there
    assert min(more, less, other) > 50


def test_every_neighbour_comes():
    rng = np.random.default_rng(2)
    one = LayerMask.skipping(3, attn=[1])
    space = Space.of(MaskSupport(3, frozenset({0, 1, 2}), frozenset({1, 2})), Unit.BOTH)
    found = {neighbour(space, one, rng) for _ in range(500)}
    more = [
        LayerMask.skipping(3, attn=a, ffn=f)
        for a, f in (([0, 1], []), ([1, 2], []), ([1], [1]), ([1], [2]), ([1, 2], [2]))
    ]
    other = [
        LayerMask.skipping(3, attn=a, ffn=f)
        for a, f in (([0], []), ([2], []), ([], [1]), ([], [2]), ([2], [2]))
    ]
    assert found == {*more, *other}


@pytest.mark.parametrize(
    ("support", "mask", "want"),
    [
        (MaskSupport(1, frozenset({0}), frozenset()), LayerMask.skipping(1, attn=[0]), None),
        (
            MaskSupport(2, frozenset({1}), frozenset()),
            LayerMask.full(2),
            LayerMask.skipping(2, attn=[1]),
        ),
        (MaskSupport(2, frozenset({1}), frozenset()), LayerMask.skipping(2, attn=[1]), None),
    ],
)
def test_where_there_is_hardly_anything_to_skip(support, mask, want):
    space = Space.of(support, Unit.BOTH)
    assert {neighbour(space, mask, np.random.default_rng(i)) for i in range(20)} == {want}


def test_a_mask_that_skips_more_than_a_search_would_shrinks():
    most = LayerMask.skipping(N, attn=ALL, ffn=ALL - {0})
    for seed in range(20):
        there = neighbour(SPACE, most, np.random.default_rng(seed))
        assert there.n_active > most.n_active


# --- which one wins --------------------------------------------------------------------------

CANDIDATE = LayerMask.skipping(N, attn=[1, 3], ffn=[1, 4])  # costs as much as START
COMPARING = State(START, candidate=CANDIDATE)


def test_a_candidate_that_is_not_ahead_is_dropped_at_once():
    for own, other in ((9, 9), (9, 8), (16, 0)):
        after = COMPARING.evaluated(hits(own), hits(other), COSTS)
        assert after == State(START, n_candidates=1)


def test_a_candidate_that_stays_ahead_is_taken_over():
    state = COMPARING
    for n in range(1, N_WINDOWS):
        state = state.evaluated(hits(8), hits(12), COSTS)
        assert (state.mask, state.candidate, state.n_windows) == (START, CANDIDATE, n)
    assert state.evaluated(hits(8), hits(12), COSTS) == State(
        CANDIDATE, n_candidates=1, n_changes=1
    )
    # what it was ahead counts, but behind in all is behind
    assert state.evaluated(hits(9), hits(8), COSTS).mask == CANDIDATE
    assert state.evaluated(hits(16), hits(0), COSTS) == State(START, n_candidates=1)


def test_a_lead_within_the_margin_is_none():
    class Dearer(Parts):
        def step(self, mask, n_draft):
            return super().step(mask, n_draft) * (1 + MARGIN / 2 * (mask == START))

    state = COMPARING
    for _ in range(N_WINDOWS - 1):
        state = state.evaluated(hits(12), hits(12), Dearer())
    assert state.candidate == CANDIDATE
    assert state.evaluated(hits(12), hits(12), Dearer()) == State(START, n_candidates=1)


@dataclass(frozen=True)
class Planted:
    """Right as often as the harm of what is skipped leaves: little in the middle, much outside."""

    n_layer: int

    def agreement(self, mask):
        harmless = range(self.n_layer // 4, 3 * self.n_layer // 4)
        attn = [0.997 if il in harmless else 0.85 for il in mask.skip_attn]
        ffn = [0.995 if il in harmless else 0.75 for il in mask.skip_ffn]
        return float(np.prod(attn + ffn))

    def speed(self, mask):
        a = self.agreement(mask)
        return max(sum(a**i for i in range(n + 1)) / COSTS.step(mask, n) for n in range(1, 16))


@pytest.mark.parametrize("seed", range(3))
def test_it_climbs_to_the_planted_parts(seed):
    n = 12
    planted, every = Planted(n), frozenset(range(n))
    space = Space.of(MaskSupport(n, every, every), Unit.BOTH)
    rng = np.random.default_rng(seed)
    state = State(LayerMask.alternate(n), seed)
    assert planted.speed(state.mask) < 0.85
    for _ in range(400):
        state = state.with_candidate(space)
        draws = rng.random((1, WINDOW))
        masks = (state.mask, state.candidate)
        scores = (Score.of_drafts(draws < planted.agreement(mask)) for mask in masks)
        state = state.evaluated(*scores, COSTS)
    best = LayerMask.skipping(n, attn=range(3, 9), ffn=range(3, 9))
    assert planted.speed(state.mask) > 0.95 * planted.speed(best) > 1.2


# --- kept across runs ------------------------------------------------------------------------


def test_a_kept_state_goes_on_as_if_it_had_never_stopped(tiny, tmp_path):
    model = tiny(n_layer=N)
    rng = np.random.default_rng(5)
    scores = [[hits(n) for n in sorted(rng.integers(0, 17, 2))] for _ in range(60)]
    kept = straight = State(START, seed=9)
    for pair in scores:
        straight = straight.with_candidate(SPACE).evaluated(*pair, COSTS)
        kept = kept.with_candidate(SPACE).evaluated(*pair, COSTS)
        candidates.save(kept, model, tmp_path / "state.json")
        kept = candidates.load(tmp_path / "state.json", model)
    assert kept == straight and straight.n_changes > 0
    assert [path.name for path in tmp_path.glob("state*")] == ["state.json"]


def in_state(**changes):
    return {"state": changes}


def changed(data, change):
    """Nested objects are changed, not exchanged."""
    return data | {
        key: data[key] | value if key == "state" and value else value
        for key, value in change.items()
    }


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3}, {"format": 0}, {"format": None}, {"model": 5}, {"fingerprint": None},
        {"state": {}}, {"state": None}, {"surprise": 1}, in_state(surprise=1),
        in_state(mask=None), in_state(mask={"n_layer": 0}), in_state(n_candidates=-1),
        in_state(trial_us=0.5), in_state(score={}), in_state(seed="x"),
        in_state(candidate={"n_layer": 3, "skip_attn": [], "skip_ffn": []}),
        in_state(candidate={"n_layer": 3}), in_state(n_windows=N_WINDOWS), in_state(step_us=True),
    ],
)  # fmt: skip
def test_files_that_are_no_state(change, tiny, tmp_path):
    path = tmp_path / "state.json"
    candidates.save(COMPARING, tiny(n_layer=N), path)
    whole = path.read_text()
    path.write_text(json.dumps(changed(json.loads(whole), change)))
    with pytest.raises(ArgumentError, match=r"state.json is no adaptation state \(.+\); give one"):
        candidates.load(path, tiny(n_layer=N))
    for text in ("", "[]", "7", whole[:40]):
        path.write_text(text)
        with pytest.raises(ArgumentError, match="is no adaptation state"):
            candidates.load(path, tiny(n_layer=N))


# --- in a loop -------------------------------------------------------------------------------


class Harmless(FakeModel):
    """Skipping blocks 2 and 3 harms nothing."""

    def masked(self, prefix, mask):
        harmed = (mask.skip_attn | mask.skip_ffn) - {2, 3}
        return self.draft(prefix) if harmed else self.target(prefix)


class Counted(layer_skip.LayerSkipDrafter):
    """Knows how often it was begun and closed."""

    def __init__(self, context, mask):
        super().__init__(context, mask)
        self.begun, self.n_closed = [], 0

    def begin(self, seq, history):
        super().begin(seq, history)
        self.begun.append((seq.seq_id, len(history)))

    def close(self):
        self.n_closed += 1


class Run:
    """One generation on a script, that adapts, and everything that took part in it."""

    def __init__(
        self, *, share=1.0, n_predict=600, seed=0, lengths=(4, 0, 2), context=FakeContext, **options
    ):
        self.model = Harmless(quality=0.2)
        self.context = context(self.model, **({"n_ctx": 2048} | options))
        self.equipped = []
        self.lengths = lengths
        self.adaptation = Adaptation(
            self.context, State(START, seed), self._equip, share=share, costs=COSTS
        )
        self.n_predict = n_predict
        self.sampler_seed = seed

    def _equip(self, mask):
        pair = Counted(self.context, mask), FakeController(self.lengths)
        self.equipped.append((mask, *pair))
        return *pair, None

    @property
    def trials(self):
        """Sequence and mask of each pass of a trial."""
        return [(seq, mask) for seq, n, mask in self.context.passes if n == WINDOW and mask]

    def __iter__(self):
        yield from generate_steps(
            self.context,
            PROMPT,
            drafter=self.adaptation.drafter,
            controller=self.adaptation.controller,
            sampler=FakeSampler(self.sampler_seed),
            n_predict=self.n_predict,
        )


@pytest.mark.parametrize("enters", [True, False])
def test_masks_change_in_mid_text_and_the_text_does_not(enters):
    run = Run(enters=enters)
    tokens, changed_at = [], []
    for step in run:
        n_before = run.adaptation.state.n_changes
        tokens += step.tokens
        changed_at += [len(tokens)] * (n_before > len(changed_at))
        # the target's cells are the full model's, whatever mask is in use; nobody else has any
        assert run.context.sequence(0).held == [*PROMPT, *tokens][:-1]
        assert all(cell.is_full for cell in run.context.cells[0])
        assert not any(run.context.cells[1:])
    assert tokens == plain_tokens(run.model, PROMPT, run.n_predict, seed=run.sampler_seed)
    assert changed_at and changed_at[0] < run.n_predict / 2
    assert len(changed_at) == run.adaptation.state.n_changes
    # and it is worth it
    assert COSTS.draft(run.adaptation.state.mask) < 1
    drafted = [m for _seq, n, m in run.context.passes[-60:] if n == 1 and m]
    assert run.adaptation.state.mask in drafted


def test_a_new_mask_has_a_controller_that_knows_nothing_of_the_old_one():
    run = Run()
    steps = list(run)
    assert len(run.equipped) == run.adaptation.state.n_changes + 1 > 1
    seen = [controller.steps for _mask, _drafter, controller in run.equipped]
    assert list(chain.from_iterable(seen)) == steps
    assert all(len(steps) >= WINDOW * N_WINDOWS / 5 for steps in seen[:-1])
    assert run.adaptation.controller_in_use is run.equipped[-1][2]
    assert run.equipped[-1][0] == run.adaptation.state.mask


def test_a_new_mask_has_a_drafter_that_begins_with_the_text_so_far():
    run = Run(n_predict=300)
    n, expected = len(PROMPT), [(0, len(PROMPT))]
    for step in run:
        if len(run.equipped) > len(expected):
            expected.append((0, n))
            assert step.draft == Draft()  # what was allowed was meant for the drafter before
        n += len(step.tokens)
    drafters = [drafter for _mask, drafter, _controller in run.equipped]
    assert [drafter.begun for drafter in drafters] == [[begun] for begun in expected]
    assert len(drafters) > 1
    assert [drafter.n_closed for drafter in drafters] == [1] * (len(drafters) - 1) + [0]
    run.adaptation.close()
    assert drafters[-1].n_closed == 1
    assert run.adaptation.drafter.mask == drafters[-1].mask == run.adaptation.state.mask


@pytest.mark.parametrize(
    "name", sorted({"name", *(name for name in vars(drafters.Drafter) if name[0] != "_")})
)
def test_every_part_of_a_drafter_reaches_the_one_in_use(name):
    in_use = MagicMock(spec=drafters.Drafter)
    in_use.name = "mock"
    in_use.draft.return_value = Draft()
    adaptation = Adaptation(
        FakeContext(FakeModel()),
        State(START),
        lambda mask: (in_use, FakeController([0]), None),
        costs=COSTS,
    )
    seq, found = adaptation._seq, getattr(adaptation.drafter, name)
    if name == "begin":
        found(seq, PROMPT)
        in_use.begin.assert_called_once_with(seq, PROMPT)
    elif name == "draft":
        adaptation.begin(seq, PROMPT)
        limit = DraftLimit(1)
        assert requests.run(adaptation._context, found(PROMPT, limit)) == Draft()
        in_use.draft.assert_called_once_with(PROMPT, limit)
    elif name == "close":
        found()
        in_use.close.assert_called_once_with()
    else:
        assert found is getattr(in_use, name)


def test_a_trial_reads_the_full_model_s_text_and_only_what_was_generated():
    run = Run(n_predict=200)
    tokens = [t for step in run for t in step.tokens]
    trials = [mask for seq, mask in run.trials if seq == run.context.n_seq_max - 1]
    assert len(trials) == len(run.trials)  # in the sequence that was lent
    assert len(trials) % 2 == 0 and len(trials) >= 2 * (len(tokens) // (WINDOW + 5) - 1)
    assert all(a != b for a, b in zip(trials[::2], trials[1::2], strict=True))
    short = Run(n_predict=WINDOW)
    list(short)
    assert short.trials == [] and short.adaptation.state.n_candidates == 0


def test_trials_need_one_sequence_besides_the_text_s():
    run = Run(n_predict=200, n_seq_max=2)
    tokens = [t for step in run for t in step.tokens]
    assert tokens == plain_tokens(run.model, PROMPT, 200, seed=run.sampler_seed)
    assert {seq for seq, _mask in run.trials} == {1}


def test_a_trial_works_around_sequences_that_are_in_use():
    run = Run(n_predict=60)
    for seq_id in (1, 3):
        run.context.prefill([7, 8, 9], run.context.sequence(seq_id))
    tokens = [t for step in run for t in step.tokens]
    assert tokens == plain_tokens(run.model, PROMPT, 60, seed=run.sampler_seed)
    assert {seq for seq, _mask in run.trials} == {2}
    assert [run.context.sequence(i).held for i in (1, 2, 3)] == [[7, 8, 9], [], [7, 8, 9]]


@pytest.mark.parametrize("n_texts", [2, 3])
def test_texts_side_by_side_adapt_each_by_itself(n_texts):
    """The passes of trials are shared like any others, and their sequences are lent one by one."""
    model = Harmless(quality=0.2)
    context = FakeContext(model, n_ctx=4096, n_seq_max=2 * n_texts, pass_width=2 * WINDOW)
    texts, adaptations = [], []

    def build(mask):
        return layer_skip.LayerSkipDrafter(context, mask), FakeController((4, 0, 2)), None

    for i in range(n_texts):
        adaptations.append(Adaptation(context, State(START, seed=i), build, 1.0, COSTS))
        texts.append(
            Generation(
                context.sequence(i),
                [*PROMPT, i + 1],
                drafter=adaptations[i].drafter,
                controller=adaptations[i].controller,
                sampler=FakeSampler(),
                n_predict=200,
            )
        )
    list(batch_steps(context, texts))
    for i, text in enumerate(texts):
        prompt = [*PROMPT, i + 1]
        assert text.history == [*prompt, *plain_tokens(model, prompt, 200)]
        assert adaptations[i].summary()["n_tried"] > 2
    assert not any(context.cells[n_texts:])
    assert any(n > WINDOW for n in context.widths)


class Clocked(FakeContext):
    """Passes of trials take a second each, all others a millisecond."""

    now_us = 0

    def run(self, rows, what=FULL):
        self.now_us += 1_000_000 if what.is_draft and len(rows) == WINDOW else 1000
        return super().run(rows, what)


class Immediate(layer_skip.LayerSkipDrafter):
    """Asks for no pass."""

    def draft(self, history, limit):
        return limit.truncate(Draft.copied((1, 2, 3, 4)))


@pytest.mark.parametrize("drafter", [layer_skip.LayerSkipDrafter, Immediate])
def test_the_time_of_a_trial_is_that_of_no_draft(drafter, monkeypatch):
    context = Clocked(Harmless(quality=0.2), n_ctx=2048)
    clock = SimpleNamespace(perf_counter_ns=lambda: 1000 * context.now_us)
    for module in (requests, drafters, generation):
        monkeypatch.setattr(module, "time", clock)
    adaptation = Adaptation(
        context,
        State(START),
        lambda mask: (drafter(context, mask), FakeController((4,)), None),
        share=1.0,
        costs=COSTS,
        clock=clock.perf_counter_ns,
    )
    steps = generate_steps(
        context,
        PROMPT,
        drafter=adaptation.drafter,
        controller=adaptation.controller,
        sampler=FakeSampler(),
        n_predict=100,
    )
    n_trials = 0
    for step in steps:
        assert step.draft.draft_us <= 10_000
        assert step.verify_us <= 2000
        n_trials += adaptation.state.trial_us == 2_000_000 * (n_trials + 1)
    assert n_trials == adaptation.state.trial_us // 2_000_000 > 2
    assert adaptation.state.step_us < 1_000_000


def test_no_trial_where_its_cells_have_no_room():
    run = Run(n_ctx=64)
    tokens = [t for step in run for t in step.tokens]
    assert len(tokens) > 64 - len(PROMPT)  # to the end of the context, see the loop
    assert 0 < len(run.trials) <= 2 * (64 - 2 * WINDOW) // WINDOW


def test_a_trial_that_fails_leaves_the_text_as_it_was():
    whole = Run(n_predict=60)
    list(whole)
    fail_at = next(i for i, p in enumerate(whole.context.passes, 1) if p[1] == WINDOW)
    run = Run(n_predict=60, fail_at_decode=fail_at)
    tokens = []
    with pytest.raises(Broken):
        for step in run:
            tokens += step.tokens
    assert len(tokens) >= WINDOW
    assert run.context.sequence(0).held == [*PROMPT, *tokens][:-1]
    assert all(cell.is_full for cell in run.context.cells[0])
    assert not any(run.context.cells[1:])


@pytest.mark.parametrize("n_passes", [0, 1])
def test_a_trial_that_is_given_up_leaves_the_text_as_it_was(n_passes):
    run = Run()
    steps = iter(run)
    n = 0
    while n < WINDOW:
        n += len(next(steps).tokens)
    seq, history = run.context.sequence(), [*run.context.sequence().held, 1]
    before = list(seq.cells)
    work = run.adaptation.drafter.draft(history, DraftLimit(4))
    request = next(work)
    for _ in range(n_passes):
        request = work.send(requests.run_requests(run.context, [request])[0])
    assert len(request.rows) == WINDOW  # a trial, and not over
    work.close()
    assert seq.cells == before
    assert not any(run.context.cells[1:])
    assert run.adaptation.state.n_windows == run.adaptation.state.n_candidates == 0


@pytest.mark.parametrize("options", [{"can_rollback": False}, {"n_seq_max": 1}, {"n_batch": 15}])
def test_where_masks_cannot_be_tried(options):
    context = FakeContext(FakeModel(), **options)
    with pytest.raises(ArgumentError, match="trying masks needs"):
        Adaptation(
            context, State(START), lambda mask: (None, FakeController([0]), None), costs=COSTS
        )


# --- what it may cost ------------------------------------------------------------------------


STEP_US = 1000
STEP = Step(Draft(), Verdict.of_chain(0, 7, False), verify_us=STEP_US)


class TimedContext:
    """Keeps nothing; passes take as many times as long as a step as the table says."""

    abilities = SimpleNamespace(can_rollback=True)
    n_seq_max, n_batch, n_ctx = 2, WINDOW, 10**6
    n_decodes = 0
    mask_support = MaskSupport(N, ALL, ALL)
    seq_id = 1

    has_spare = True

    def __init__(self, slower=1.0):
        self.slower, self.now_us = slower, 0.0

    def sequence(self):
        return self

    def spare_sequence(self):
        return nullcontext(self)

    def fork(self, seq_id):
        return self

    def rollback(self, n_keep):
        pass

    def run(self, rows, what):
        assert what == Pass(what.mask) and all(rows.outputs)
        assert rows.pos == tuple(range(rows.pos[0], rows.pos[0] + WINDOW))
        self.now_us += self.slower * STEP_US * COSTS.wide(what.mask, len(rows))
        return PassResult(self, rows.outputs, None)

    def argmax(self, row):
        return row % 8, 1.0  # 7 now and then


class NoDrafter:
    def begin(self, seq, history):
        pass

    def draft(self, history, limit):
        return limit.truncate(Draft.copied((1, 2)))

    def close(self):
        pass


def states(context, state, share, n_steps):
    """After each step of a text."""
    adaptation = Adaptation(
        context,
        state,
        lambda mask: (NoDrafter(), FakeController([0]), None),
        share=share,
        costs=COSTS,
        clock=lambda: round(1000 * context.now_us),
    )
    history = list(PROMPT)
    adaptation.begin(context, history)
    for _ in range(n_steps):
        limit = adaptation.controller.limit(len(history) - 1)
        assert limit.n_max == 0
        assert requests.run(context, adaptation.drafter.draft(history, limit)) == Draft()
        history += STEP.tokens
        adaptation.controller.observe(STEP)
        yield adaptation.state


def share_of(state):
    return state.trial_us / (state.trial_us + state.step_us)


@pytest.mark.parametrize("share", [adapt.SHARE, 0.1])
def test_trials_take_their_share_of_the_time_and_no_more(share):
    seen = list(states(TimedContext(), State(START), share, 5000))
    assert all(share_of(state) <= share for state in seen)
    assert share_of(seen[-1]) > 0.8 * share  # what is left is not enough for another
    assert seen[-1].n_candidates > 10 and seen[-1].step_us == 5000 * STEP_US


def test_where_passes_are_slower_than_the_table_says_one_trial_tells():
    slower = 10
    seen = list(states(TimedContext(slower), State(START), adapt.SHARE, 5000))
    most = slower * STEP_US * 2 * COSTS.wide(LayerMask.full(N), WINDOW)
    for state in seen:
        assert state.trial_us <= adapt.SHARE * (state.trial_us + state.step_us) + most
    assert share_of(seen[-1]) <= 1.1 * adapt.SHARE
    assert seen[-1].trial_us > 2 * most  # and it went on


def test_texts_that_share_a_state_save_up_for_a_trial():
    state, n_tried = State(START), []
    for _ in range(40):
        for after in states(TimedContext(), state, adapt.SHARE, 64):
            assert share_of(after) <= adapt.SHARE
        n_tried.append(after.n_candidates - state.n_candidates)
        state = after
    assert n_tried[0] == 0 and sum(n_tried) > 10
    assert share_of(state) > 0.8 * adapt.SHARE


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan")])
def test_shares_that_are_none(share):
    with pytest.raises(ArgumentError, match="above 0 and at most 1"):
        Adapt(share)


# --- on models -------------------------------------------------------------------------------


def complete(context, prompt, *, adapt=None, sampling=GREEDY, n_predict=200, **how):
    """A finished completion, adapted with these settings; its adaptation is an attribute."""
    options = {"sampling": sampling, "n_predict": n_predict}
    if adapt is None:
        completion = Completion(context, prompt, DraftConfig(**how), **options)
        list(completion)
        return completion
    seed = sampling.seed or 0
    with closing(start(context, DraftConfig(**how), adapt, seed=seed)) as adaptation:
        completion = Completion(
            context, prompt, adaptation.drafter, controller=adaptation.controller, **options
        )
        completion.adaptation = adaptation
        list(completion)
    return completion


SAMPLINGS = {"greedy": GREEDY, "seeded": SamplingParams(temperature=1.0, top_k=0, seed=11)}


@pytest.mark.parametrize("controller", [Fixed(p_min=0), "auto"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_same_tokens_and_the_same_cache_behind_them(
    sampling, controller, tiny, new_context, token_ids
):
    """A mask that only skips what is silent is always right, so changes are sure to come."""
    model = tiny(n_layer=8, qtype="Q8_0", late_scale=0.05)
    adapted, plain = new_context(model, n_ctx=512), new_context(model, n_ctx=512)
    if not same_at_widths(adapted):
        pytest.skip("the model's logits depend on the batch width on this machine")
    options = {"sampling": SAMPLINGS[sampling], "n_predict": 400}
    bad = LayerMask.skipping(8, attn=[0, 1, 2], ffn=[0, 1, 2])
    got = complete(
        adapted, token_ids(9), mask=bad, controller=controller, adapt=Adapt(1.0), **options
    )
    want = complete(plain, token_ids(9), draft=None, **options)
    assert got.tokens == want.tokens
    assert got.adaptation.state.n_changes > 0 and got.mask != bad
    assert [adapted.sequence(i).n_past for i in range(4)] == [9 + 400 - 1, 0, 0, 0]
    for token in (got.tokens[-1], *token_ids(3, seed=1)):
        np.testing.assert_array_equal(adapted.decode([token]).logits, plain.decode([token]).logits)


def test_a_trial_scores_what_drafts_would_have_got_right(tiny, new_context, token_ids):
    """Against drafts that are made one token at a time behind the full model's K/V."""
    model = tiny(qtype="Q8_0", late_scale=0.05)
    context = new_context(model)
    if not same_at_widths(context):
        pytest.skip("the model's logits depend on the batch width on this machine")
    masks = [LayerMask.early_exit(4, 2), LayerMask.skipping(4, attn=[0, 1], ffn=[1])]
    prompt = token_ids(7)
    text = [*prompt, *complete(context, prompt, draft=None, n_predict=WINDOW + 1).tokens]
    adaptation = Adaptation(context, State(masks[0]), lambda m: (None, None, None))
    got = requests.run(context, adaptation._scores(text, masks))
    assert [context.sequence(i).n_past for i in range(4)] == [len(text) - 1, 0, 0, 0]
    for mask, score in zip(masks, got, strict=True):
        seq = context.sequence(0).fork(2)
        seq.rollback(len(text) - 1 - WINDOW)
        drafted = []
        for token in text[-1 - WINDOW : -1]:
            context.decode([token], seq=seq, mask=mask)
            drafted.append(context.argmax(0)[0])
        seq.drop()
        right = np.array(drafted) == text[-WINDOW:]
        assert score == Score.of_drafts(right[None])
    assert {s.loss for s in got} != {0.0}


def test_runs_with_one_seed_try_the_same_masks(tiny, new_context, token_ids):
    """With all the time there is for trials, nothing depends on the clock."""
    model = tiny(n_layer=8, late_scale=0.05)

    def run(seed):
        sampling = SamplingParams(temperature=0.0, seed=seed)
        got = complete(
            new_context(model),
            token_ids(9),
            sampling=sampling,
            draft="layer-skip",
            controller=Fixed(p_min=0),
            adapt=Adapt(1.0),
        )
        return replace(got.adaptation.state, step_us=0, trial_us=0)

    assert run(1) == run(1) != run(2)


def test_another_text_goes_on_with_the_mask_of_the_state(tiny, new_context, token_ids):
    model = tiny()
    state = State(LayerMask.early_exit(4, 2), seed=5, n_candidates=7, n_changes=3)
    got = complete(new_context(model), token_ids(5), n_predict=8, adapt=Adapt(state=state))
    assert got.mask == state.mask and got.draft == "ngram+layer-skip"
    assert got.adaptation.state.n_candidates == 7
    assert got.adaptation.summary() == {"n_tried": 0, "n_changes": 0, "trial_us": 0}
    with pytest.raises(ArgumentError, match="a mask of its own"):
        start(new_context(model), DraftConfig(mask=state.mask), Adapt(state=state))
    with pytest.raises(MaskError, match="for 6 blocks, not for 4"):
        start(new_context(model), settings=Adapt(state=State(START)))


def test_nothing_to_adapt(tiny, new_context):
    with pytest.raises(ArgumentError, match="needs a drafter that uses a mask"):
        start(new_context(tiny()), DraftConfig.plain())
    with pytest.raises(ArgumentError, match="needs a drafter that uses a mask"):
        drafter = FakeDrafter(FakeModel())
        start(new_context(tiny()), DraftConfig(drafter))


def test_a_text_is_remembered_once_however_often_the_mask_changes(
    tiny, new_context, token_ids, tmp_path
):
    model, file = tiny(n_layer=8, late_scale=0.05), tmp_path / "texts.json"
    context = new_context(model, n_ctx=512)
    got = complete(
        context,
        token_ids(9),
        n_predict=400,
        mask=LayerMask.skipping(8, attn=[0, 1, 2], ffn=[0, 1, 2]),
        draft="ngram+layer-skip",
        options=ngram.Options(file=file),
        controller=Fixed(p_min=0),
        adapt=Adapt(1.0),
    )
    assert got.adaptation.state.n_changes > 1
    kept = ngram_file.load(file, model.vocabulary, model.n_vocab)
    assert list(kept) == [*token_ids(9), *got.tokens]
