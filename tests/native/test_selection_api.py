"""scan() and search() from Python: what the command line shows, without one."""

import json

import pytest

import pyselfspec as ps
from pyselfspec.errors import ArgumentError
from pyselfspec.masks import profiles
from pyselfspec.selection.rounds import Round
from pyselfspec.selection.scoring import open_scoring
from pyselfspec.selection.strategies import Prune, from_rounds
from pyselfspec.util.progress import Interrupted

TEXT = "the king and the hen had one red tin and ten eggs on a tree. " * 40
SMALL = {"text": TEXT, "chunks": 2, "n_ctx": 64, "window": 8, "context": {"n_threads": 1}}
PLANTED = ps.LayerMask.skipping(4, attn=[1, 2], ffn=[1, 2])


@pytest.fixture
def model(tiny):
    """Blocks 1 and 2 do nothing."""
    return tiny(zero_attn=(1, 2), zero_ffn=(1, 2), late_scale=0.3)


def test_a_scan_finds_what_does_no_harm_and_saves_it_when_asked(model):
    found = ps.scan(model, "greedy", **SMALL)
    assert (found.strategy, found.objective) == ("greedy", "agreement")
    assert {u.rank for u in found.report.units} == set(range(1, 9))
    assert found.best is not None and found.best.speed > 1 and found.results.is_file()
    assert profiles.find(model) is None
    assert found.save() == profiles.path_of(model.fingerprint)
    kept = profiles.find(model)
    assert kept == found.profile and kept.mask == found.best.mask
    assert kept.source.startswith("scan-layers greedy, ") and kept.fingerprint == model.fingerprint


def test_a_search_starts_from_a_scan_and_is_never_worse(model):
    scanned = ps.scan(model, **SMALL)
    found = ps.search(model, trials=20, **SMALL)
    assert found.results == scanned.results
    assert len(found.trials) == 20 and found.best in found.trials
    assert found.best.value == max(t.value for t in found.trials)
    assert found.point.speed >= scanned.best.speed and found.mask == found.best.mask
    assert found.save() is not None and profiles.mask_for(model) == found.mask
    assert found.profile.source.startswith(f"layers search {found.strategy}, ")


def test_models_may_be_given_as_paths_and_contexts(tiny_path, model, new_context):
    path = tiny_path(zero_attn=(1, 2), zero_ffn=(1, 2), late_scale=0.3)
    by_path, by_model = (ps.scan(m, "single", **SMALL).report for m in (path, model))
    assert by_path == by_model
    context = new_context(model)
    assert ps.scan(context, "single", **SMALL).report == by_model
    assert context.decode([5]).logits.shape[0] == 1  # still open
    with pytest.raises(ArgumentError, match="n_seq_max of 2 or more, got 1"):
        ps.scan(new_context(model, n_seq_max=1), "single", **SMALL)


@pytest.mark.parametrize("name", ps.objectives.names())
def test_every_objective_scans_and_searches(name, model):
    scanned = ps.scan(model, "single", name, **SMALL)
    found = ps.search(model, "random", name, trials=3, **SMALL)
    assert scanned.objective == found.objective == name
    assert len(scanned.report.units) == 8 and len(found.trials) == 3
    counts = found.about.counts_drafts
    assert (found.point.speed is not None) == counts
    assert scanned.profile is None  # single units are no masks to draft with
    measured = [t for t in found.trials if not t.score.n_runs]
    assert bool(measured) == (not counts)


@pytest.mark.parametrize("objective", ["agreement", "perplexity"])
def test_there_is_room_for_strategies_that_read_the_text_themselves(objective, model):
    """Also where K/V cells for chunk and text are more than a multiple of 256."""
    options = SMALL | {"chunks": 1, "n_ctx": 250}
    scanned = ps.scan(model, "clasp", objective, **options)
    found = ps.search(model, "clasp", objective, **options)
    assert len(scanned.report.curve) > 1 and found.trials


@pytest.mark.parametrize(("reads_states", "n_ctx"), [(False, 256), (True, 512)])
def test_only_strategies_that_decode_text_get_cells_for_it(reads_states, n_ctx, model):
    options = SMALL | {"chunks": 1, "n_ctx": 250}
    with open_scoring(model, "perplexity", reads_states=reads_states, **options) as opened:
        assert opened.context.n_ctx == n_ctx
    assert ps.strategies.load("clasp").reads_states and not ps.strategies.load("rank").reads_states


def test_timings_are_not_kept(model):
    found = ps.search(model, "random", "measured-speed", trials=2, **SMALL)
    assert found.best.value > 0 and found.save() is None
    assert len(found.results.read_text().splitlines()) == 1  # the header alone


def test_a_strategy_with_options_and_one_of_ones_own(model):
    pruned = ps.strategies.load("greedy", prune=Prune(count=2))
    assert ps.scan(model, pruned, share=1.0, **SMALL).report.curve[-1].share == 4 / 8

    @from_rounds
    def both(setting):
        yield Round.of_one(PLANTED)
        yield Round.of_one(PLANTED)

    found = ps.search(model, both, **SMALL)
    assert [t.mask for t in found.trials] == [PLANTED] * 2 and found.strategy == "both"
    assert found.best.score.agreement == 1.0


def test_progress_is_told_and_can_end_it(model, tmp_path):
    out, seen = tmp_path / "r.jsonl", []
    options = SMALL | {"text": None, "results": out}

    def stop(progress):
        seen.append(progress)
        if progress.stage == "scoring chunks" and progress.n_done == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        ps.scan(model, "single", progress=stop, **options)
    assert stopped.value.path == out
    assert [p.stage for p in seen[:3]] == ["generating text", "generating text", "scoring chunks"]
    n_lines = len(out.read_text().splitlines())
    assert n_lines == 1 + 2 + 5
    whole = ps.scan(model, "single", **options)
    assert out.read_text().splitlines()[n_lines - 1].startswith('{"chunk":0')
    fresh = ps.scan(model, "single", **options | {"results": tmp_path / "fresh.jsonl"})
    assert whole.report == fresh.report


def test_results_say_where_they_come_from(model, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    options = SMALL | {"text": file, "command": "by hand"}
    header = json.loads(ps.scan(model, "single", **options).results.read_text().splitlines()[0])
    assert header["text"] == str(file) and header["command"] == "by hand"
    assert header["fingerprint"] == model.fingerprint and "model_sha256" not in header


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "nonesuch"}, "no strategy 'nonesuch'"),
        ({"strategy": "random"}, "never ends; use it with search"),
        ({"objective": "nonesuch"}, "no objective 'nonesuch'"),
        ({"share": 0.0}, "share is above 0"),
        ({"chunks": 0}, "but chunks is 0"),
        ({"chunks": 99}, "but chunks is 99"),
        ({"n_ctx": 0}, "4 tokens or more"),
        ({"text": "short"}, "one chunk takes 64"),
        ({"text": "a\0" * 900}, "given is not a text: it has NUL"),
    ],
)
def test_what_cannot_be_scanned(options, message, model):
    with pytest.raises(ArgumentError, match=message):
        ps.scan(model, **SMALL | options)


def test_budgets_of_a_search(model):
    with pytest.raises(ArgumentError, match="trials is 1 or more"):
        ps.search(model, trials=0, **SMALL)
    with pytest.raises(ArgumentError, match=r"got 2"):
        ps.search(model, objective="agreement", max_cost=2.0, **SMALL)
