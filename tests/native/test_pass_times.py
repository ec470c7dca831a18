"""Times of a drafter's passes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from pyselfspec import Context, LayerMask
from pyselfspec.bench import pass_times
from pyselfspec.bench.pass_times import time_passes
from pyselfspec.costs.table import N_WIDTH
from pyselfspec.errors import UnsupportedError
from pyselfspec.runtime.pass_result import PassResult
from pyselfspec.runtime.passes import FULL, Pass, Rows
from pyselfspec.speculate.drafters.layer_skip import LayerSkipDrafter
from pyselfspec.speculate.pass_requests import PassRequest, run_requests
from pyselfspec.testing.fake_drafter import FakeDrafter
from pyselfspec.testing.fake_model import FakeModel

MASK = LayerMask.early_exit(4, 2)


def _ignore(_share: float) -> None:
    pass


@pytest.mark.parametrize("mask", [MASK, LayerMask.skipping(4, ffn=[0])], ids=["shared", "forked"])
def test_every_kind_of_pass_is_timed(mask: LayerMask, tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.decode([5, 6, 7])
    shares: list[float] = []
    made = time_passes(context, LayerSkipDrafter(context, mask), shares.append, 2)
    want = [pass_times.N_SHORT, context.n_ctx // 2]
    assert [costs.n_past for costs in made.costs.levels] == want
    for costs in made.costs.levels:
        assert len(costs.full_us) == len(costs.verify_us) == N_WIDTH
        assert all(us > 0 for us in (*costs.full_us, *costs.verify_us, costs.token_us))
        assert (costs.last_us > 0) == (mask == MASK)
        assert (costs.verify_us == costs.full_us) == (mask != MASK)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert made.n_rounds == 2
    assert [context.sequence(i).n_past for i in range(4)] == [0, 0, 0, 0]


def test_a_drafter_that_needs_no_pass_is_timed_as_well(tiny: Any, new_context: Any) -> None:
    made = time_passes(new_context(tiny()), FakeDrafter(FakeModel()), _ignore, 1)
    for costs in made.costs.levels:
        assert costs.verify_us == costs.full_us and len(costs.full_us) == N_WIDTH
        assert costs.token_us > 0 and costs.last_us == 0


class AsynchronousDevice:
    """Lets a context compute as a GPU does: a pass returns at once, and takes its time when a
    result is read or waited for. The first pass of each width takes COMPILING_S longer. A pass that
    is not prepared takes PREPARING_S longer: the first two of a kind, and again after N_PREPARED
    other kinds."""

    PASS_S, COMPILING_S, PREPARING_S, N_PREPARED = 0.004, 0.06, 0.02, 12

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        self._owed_s = 0.0
        self._widths: set[int] = set()
        self._made: dict[object, int] = {}  # passes by kind, the latest last
        run, argmax = context.run, context.argmax

        def run_later(rows: Rows, what: Pass = FULL) -> PassResult:
            kind = (len(rows), any(rows.outputs), what.mask is None, what.in_place)
            n = self._made.pop(kind, 0)
            self._made[kind] = n + 1
            if len(self._made) > self.N_PREPARED:
                del self._made[next(iter(self._made))]
            self._owed_s += self.PASS_S + self.PREPARING_S * (n < 2)
            self._owed_s += self.COMPILING_S * (len(rows) not in self._widths)
            self._widths.add(len(rows))
            return run(rows, what)

        def argmax_then(row: int) -> tuple[int, float]:
            self.wait()
            return argmax(row)

        monkeypatch.setattr(context, "run", run_later)
        monkeypatch.setattr(context, "argmax", argmax_then)
        monkeypatch.setattr(context, "wait", self.wait)
        monkeypatch.setattr(context.model, "n_gpu_layers", 1)

    def wait(self) -> None:
        time.sleep(self._owed_s)
        self._owed_s = 0.0


def test_devices_are_waited_for_at_the_end_of_each_timing(
    tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass whose result is not read takes its own time; programs that a device compiles for its
    first passes take none, nor do graphs that it prepares."""
    context = new_context(tiny(late_scale=0.25))
    device = AsynchronousDevice(context, monkeypatch)
    made = time_passes(context, LayerSkipDrafter(context, MASK), _ignore, 1)
    level = made.costs.levels[0]
    pass_us = 1e6 * device.PASS_S
    for us in (*level.full_us, *level.verify_us, level.token_us, level.last_us):
        assert pass_us <= us < pass_us + 0.3e6 * device.PREPARING_S


def test_texts_share_the_time_of_a_pass_on_a_device(
    tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text that reads its results first does not take all of it."""
    context = new_context(tiny())
    device = AsynchronousDevice(context, monkeypatch)
    requests = [PassRequest(Rows.of(seq_id, 0, [5, 6]), FULL) for seq_id in range(2)]
    one, other = run_requests(context, requests)
    assert one.us == other.us >= 1e6 * device.PASS_S


def test_costs_never_fall_with_width(tiny: Any, new_context: Any, monkeypatch: Any) -> None:
    """Times that fall with the width mean that another program ran during the measurement."""
    times = iter([float(us) for us in (9, 5, 7, 3, 20, 10, 30)] * 100)
    monkeypatch.setattr(pass_times._Passes, "_prepared", lambda *_: next(times))
    made = time_passes(new_context(tiny()), LayerSkipDrafter(new_context(tiny()), MASK), _ignore, 1)
    for costs in made.costs.levels:
        assert list(costs.full_us) == sorted(costs.full_us)
        assert list(costs.verify_us) == sorted(costs.verify_us)


@pytest.mark.parametrize("mask", [MASK, LayerMask.skipping(4, ffn=[0])], ids=["shared", "forked"])
def test_drafts_are_as_long_as_asked_for_whatever_the_model_says(
    mask: LayerMask, tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here its likeliest token always ends the text."""
    context, end, lengths = new_context(tiny()), 2, []
    monkeypatch.setattr(context, "argmax", lambda row: (end, 1.0))
    monkeypatch.setattr(context.model, "is_eog", lambda token: token == end)

    class Counted(LayerSkipDrafter):
        def _chain(self, *args: Any) -> Any:
            draft = yield from super()._chain(*args)
            lengths.append(len(draft.tokens))
            return draft

    time_passes(context, Counted(context, mask), _ignore, 1)
    assert lengths == [N_WIDTH - 1, pass_times.N_DRAFT, pass_times.N_DRAFT] * 2


def test_a_slow_model_gets_one_round(
    tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_times, "BUDGET_S", 0.0)
    context = new_context(tiny())
    assert time_passes(context, LayerSkipDrafter(context, MASK), _ignore).n_rounds == 1


def test_a_model_that_cannot_draft_is_refused(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.abilities = replace(context.abilities, can_rollback=False, max_rollback=0)
    with pytest.raises(UnsupportedError, match="cannot take tokens back"):
        time_passes(context, LayerSkipDrafter(context, MASK), _ignore)
