"""The conformance suite on every drafter that needs no file, drafters of other packages, and what
layer-skip promises besides."""

import sys
import textwrap
from importlib.metadata import entry_points

import needs
import numpy as np
import pytest

from pyselfspec.errors import ArgumentError, ContextFullError, MaskError, UnsupportedError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.runtime.passes import FULL
from pyselfspec.speculate import drafters
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.testing.conformance import (
    HISTORY,
    DrafterConformance,
    assert_left_as_promised,
    drafted,
    generated,
)
from pyselfspec.testing.fake_context import FakeContext, state
from pyselfspec.testing.fake_model import EOG, FakeModel
from pyselfspec.util import plugins

# that draft with a file, which twin writes itself; those have tests of their own
OF_FILES = {"twin", *filter(drafters.takes_file, drafters.all_names())}

in_both_ways = pytest.mark.parametrize("enters", [True, False], ids=["shared", "forked"])


class TestEveryDrafter(DrafterConformance):
    @pytest.fixture(autouse=True, params=sorted({*drafters.names()} - OF_FILES))
    def named(self, request):
        self.name, self.module = request.param, drafters.load(request.param)

    def make(self, context):
        options = {
            "ngram": {"session": False},  # earlier texts are what it is to forget here
        }
        return self.module.make(context, self.module.Options(**options.get(self.name, {})))


class LayerSkip(DrafterConformance):
    def make(self, context):
        return layer_skip.LayerSkipDrafter(context, LayerMask.alternate(context.model.n_layer))


def make(model=None, enters=True, **options):
    return LayerSkip().begun(model, enters=enters, **options)


# names


@pytest.mark.parametrize("name", ["nope", "", "layer_skip", "layer-skip.py", "../x", "os"])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(ArgumentError) as error:
        drafters.load(name)
    assert repr(name) in str(error.value)
    assert all(known in str(error.value) for known in drafters.all_names())


# drafters of other packages

PLUGGED = """
    from dataclasses import dataclass

    from pyselfspec.speculate.types import Draft
    from pyselfspec.testing.fake_drafter import FakeDrafter


    @dataclass(frozen=True, slots=True)
    class Options:
        n_back: int = 1


    class Echo(FakeDrafter):
        "Drafts the token that came so many before, again and again."

        name = "echo"

        def draft(self, history, limit):
            if limit.n_max == 0 or len(history) < self.n_back:
                return Draft()
            return limit.truncate(Draft.copied([history[-self.n_back]] * limit.n_max))


    def make(context, options):
        drafter = Echo(None)
        drafter.n_back = options.n_back
        return drafter
"""


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """A package of somebody else, installed."""
    (tmp_path / "somebodys_echo.py").write_text(textwrap.dedent(PLUGGED))
    info = tmp_path / "somebodys_echo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-echo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{drafters.ENTRY_POINTS}]\necho = somebodys_echo\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.registered.cache_clear()
    yield tmp_path
    sys.modules.pop("somebodys_echo", None)
    plugins.load.cache_clear()
    plugins.registered.cache_clear()


@pytest.mark.usefixtures("plugged")
class TestDrafterOfAnotherPackage(DrafterConformance):
    def make(self, context):
        module = drafters.load("echo")
        return module.make(context, module.Options(n_back=2))


@pytest.mark.usefixtures("plugged")
def test_installed_packages_are_scanned_once(monkeypatch):
    groups = []

    def scan(group):
        groups.append(group)
        return entry_points(group=group)

    monkeypatch.setattr(plugins, "entry_points", scan)
    for _ in range(2):
        assert "echo" in drafters.all_names()
        drafters.load("echo")
    assert groups == [drafters.ENTRY_POINTS]


@needs.click
def test_a_drafter_of_another_package_is_called_by_its_name(plugged, run_python):
    assert "echo" in drafters.all_names()
    code = (
        "from pyselfspec.cli import main; "
        "main('generate demo -p a -n 4 --draft echo -o n_back=2 --json'.split())"
    )
    run = run_python(code, PYTHONPATH=str(plugged))
    assert run.returncode == 0, run.stderr
    assert '"draft": "echo"' in run.stdout


def test_a_drafter_that_cannot_be_loaded_is_named(plugged):
    (plugged / "somebodys_echo.py").write_text("raise RuntimeError('broken inside')")
    with pytest.raises(ArgumentError, match="'echo' cannot be loaded: broken inside"):
        drafters.load("echo")


# layer-skip


@in_both_ways
def test_layer_skip_drafts_what_a_masked_pass_finds_likeliest(enters):
    model = FakeModel(quality=0.5)
    drafter, context = make(model, enters)
    draft = drafted(drafter, context, DraftLimit(5))
    text = list(HISTORY)
    for token, p in zip(draft.token_ids, draft.probs, strict=True):
        law = model.draft(text)
        assert (token, p) == (law.argmax(), law.max())
        text.append(token)
    assert len(draft.tokens) == 5


@pytest.mark.parametrize(
    ("mask", "first"),
    [
        (LayerMask.alternate(6), 1),
        (LayerMask.early_exit(6, 3), 3),
        (LayerMask.skipping(6, ffn=[2], attn=[5]), 2),
    ],
)
def test_layer_skip_leaves_the_states_where_the_mask_begins(mask, first):
    context = FakeContext(FakeModel())
    context.prefill(HISTORY[:-1])
    drafter = layer_skip.LayerSkipDrafter(context, mask)
    drafter.begin(context.sequence(), HISTORY)
    draft = drafted(drafter, context, DraftLimit(3))
    assert draft.verification.mask == LayerMask.enter_at(6, first)
    want = [state([*HISTORY, *draft.token_ids[:i]], first) for i in range(4)]
    np.testing.assert_array_equal(draft.verification.enter.numpy(), np.float32(want))


@pytest.mark.parametrize(
    "mask", [LayerMask.full(6), LayerMask.enter_at(6, 2), LayerMask.skipping(6, ffn=[0, 3])]
)
def test_layer_skip_forks_where_no_block_is_shared(mask):
    """A mask that begins with block 0, or that skips nothing and so leaves nothing to check."""
    context = FakeContext(FakeModel())
    context.prefill(HISTORY[:-1])
    drafter = layer_skip.LayerSkipDrafter(context, mask)
    assert not drafter.shares
    draft = drafted(drafter, context, DraftLimit(3))
    assert draft.verification == FULL
    assert_left_as_promised(context, draft)


def test_layer_skip_can_be_told_to_fork():
    context = FakeContext(FakeModel())
    assert layer_skip.LayerSkipDrafter(context, LayerMask.alternate(6)).shares
    assert not layer_skip.LayerSkipDrafter(context, LayerMask.alternate(6), share=False).shares


@in_both_ways
@pytest.mark.parametrize("p_min", [0.0, 1.0])
def test_layer_skip_spends_one_narrow_pass_per_token(enters, p_min):
    """And in the text's own sequence one without outputs for the token drafted last, none for one
    that it drops."""
    drafter, context = make(enters=enters)
    context.passes.clear()
    draft = drafted(drafter, context, DraftLimit(4, p_min))
    mask = LayerMask.alternate(6)
    n_masked = 4 if p_min == 0 else 1
    last = [(0, 1, LayerMask.early_exit(6, 1))] if enters and p_min == 0 else []
    assert context.passes == [(0 if enters else 3, 1, mask)] * n_masked + last
    assert len(draft.tokens) == (4 if p_min == 0 else 0)


@in_both_ways
@pytest.mark.parametrize("n_max", [1, 4])
def test_layer_skip_that_is_always_right_fills_every_step(n_max, enters):
    drafter, context = make(FakeModel(quality=1.0), enters)
    steps = generated(drafter, context, n_max, n_predict=3 * (n_max + 1))
    assert [step.n_accepted for step in steps] == [n_max] * 3


@in_both_ways
def test_layer_skip_that_is_always_wrong_is_never_accepted(enters):
    drafter, context = make(FakeModel(quality=0.0), enters)
    assert {step.n_accepted for step in generated(drafter, context, 4)} == {0}


@in_both_ways
def test_layer_skip_stops_at_p_min_and_drops_that_token(enters):
    model = FakeModel(seed=3)
    probs = drafted(*make(model), DraftLimit(8)).probs
    stop = probs.index(min(probs))
    assert 1 <= stop < 7, "pick another seed: this one has its doubts at an end"
    p_min = (min(probs[:stop]) + probs[stop]) / 2
    drafter, context = make(model, enters)
    draft = drafted(drafter, context, DraftLimit(8, p_min))
    assert draft.probs == probs[:stop]
    law = model.draft([*HISTORY, *draft.token_ids])
    assert (draft.dropped.token, draft.dropped.p) == (law.argmax(), law.max())


@in_both_ways
@pytest.mark.parametrize("end_after", [0, 2])
def test_layer_skip_leaves_the_end_to_the_check(end_after, enters):
    model = FakeModel(quality=1.0, end_at=len(HISTORY) + end_after)
    drafter, context = make(model, enters)
    tokens = drafted(drafter, context, DraftLimit(8)).token_ids
    assert len(tokens) == end_after and EOG not in tokens


def test_layer_skip_refuses_a_mask_of_another_model():
    with pytest.raises(MaskError, match="for 3 blocks"):
        layer_skip.make(FakeContext(FakeModel()), layer_skip.Options(LayerMask.full(3)))


def test_layer_skip_needs_a_sequence_of_its_own_only_to_fork():
    make(n_seq_max=1)
    with pytest.raises(ArgumentError, match="n_seq_max of at least 2"):
        make(enters=False, n_seq_max=1)


@in_both_ways
def test_layer_skip_reports_a_context_without_room_and_cleans_up(enters):
    drafter, context = make(enters=enters, n_ctx=len(HISTORY) + 1)
    with pytest.raises(ContextFullError):
        drafted(drafter, context, DraftLimit(4))
    assert context.n_cells == len(HISTORY) - 1


def test_layer_skip_refuses_a_memory_that_cannot_take_tokens_back():
    with pytest.raises(UnsupportedError, match="cannot drop any number of tokens"):
        make(can_rollback=False)
    with pytest.raises(UnsupportedError, match="cannot drop any number of tokens"):
        make(can_rollback=False, max_rollback=4, has_states=True)
