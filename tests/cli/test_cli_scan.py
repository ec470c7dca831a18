"""pyselfspec scan-layers and profile, end to end on tiny models."""

import json
import os
import signal
import subprocess
import time
from xml.etree import ElementTree

import pytest
from command_line import PROGRAM, environment, run

from pyselfspec import LayerMask, Model, plots
from pyselfspec.cli.layers import _measuring
from pyselfspec.masks import profiles
from pyselfspec.selection import objectives
from pyselfspec.selection.measured_gain import measured_gain
from pyselfspec.selection.objectives.measured_speed import Objective

SMALL = ("-t", "1", "--chunk-size", "64", "--window", "8", "--chunks", "2")


@pytest.fixture(autouse=True)
def gain(monkeypatch):
    """Make up a gain, which a toy's masks do not have. Return the function to change it."""

    def measures(gain):
        monkeypatch.setattr(_measuring, "measured_gain", lambda *_args, **_options: gain)

    measures(1.2)
    return measures


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the king and the hen had one red tin and ten eggs on a tree. " * 40)
    return path


@pytest.fixture
def path(tiny_path):
    """Blocks 1 and 2 do nothing."""
    return tiny_path(zero_attn=(1, 2), zero_ffn=(1, 2), late_scale=0.3)


def scan(path, *options):
    return run("scan-layers", path, *SMALL, *options)


def test_a_scan_leaves_a_table_results_and_a_profile_that_generate_uses(path, text, tmp_path):
    out = tmp_path / "scan.jsonl"
    outcome = scan(path, "--text", text, "--results", out)
    assert outcome.status == 0 and outcome.stderr.strip() == f"results: {out}"
    assert "feed-forward  rank" in outcome.stdout
    assert outcome.stdout.splitlines()[-1].endswith(" · measured 1.20x · saved as profile")
    header, *lines = map(json.loads, out.read_text().splitlines())
    assert header["objective"] == "agreement" and header["format"] == 1
    assert header["text"] == str(text)
    assert len(lines) == 2 * (8 + 3 + 1)  # alone, two to four together, the full model
    with Model(path) as model:
        mask = profiles.mask_for(model)
    assert mask is not None and 1 in mask.skip_attn
    generated = run("generate", path, "-p", "the", "-n", "4", "-t", "1", "--json").json
    assert generated["draft"] == "ngram+layer-skip" and generated["mask"] == mask.to_dict()
    plain = run("generate", path, "-p", "the", "-n", "4", "-t", "1", "--json", "--profile", "none")
    assert (plain.json["mask"], plain.json["draft"]) == (None, "ngram")


@pytest.mark.parametrize(
    "command",
    [
        ("scan-layers", "--strategy", "greedy", "--share", "0.1"),
        ("layers search", "--strategy", "random", "--trials", "1", "--share", "0.1"),
    ],
)
def test_a_better_profile_stays(command, path, text, tmp_path):
    """One that skips all that is planted, against what may skip a single sublayer."""
    best = LayerMask.skipping(4, attn=[1, 2], ffn=[1, 2])
    (tmp_path / "best.json").write_text(best.to_json())
    assert run("layers", "profile", "import", path, tmp_path / "best.json").status == 0
    name, *options = command
    assert run(*name.split(), path, *SMALL, "--text", text, *options).status == 0
    with Model(path) as model:
        assert profiles.mask_for(model) == best


def test_where_nothing_pays_there_is_no_profile(tiny_path, text):
    outcome = scan(tiny_path(), "--text", text)
    assert outcome.status == 0 and "no mask is expected to make" in outcome.stdout
    assert run("layers", "profile", "list", "--json").json == {"profiles": []}


@pytest.mark.parametrize("strategy", ["single", "rank", "greedy", "anti"])
@pytest.mark.parametrize("objective", objectives.names())
def test_strategies_and_objectives_print_json(path, text, strategy, objective):
    options = ("--strategy", strategy, "--objective", objective, "--json")
    got = scan(path, "--text", text, *options).json
    assert got["strategy"] == strategy and got["objective"] == objective
    if objective != "measured-speed":  # that alone ends where time says
        assert len(got["units"]) == (0 if strategy == "anti" else 8)
    assert {u["rank"] for u in got["units"]} == set(range(1, len(got["units"]) + 1))
    about = objectives.load(objective).about
    value = about.label.replace(" ", "_")
    for unit in got["units"]:
        assert unit[value] > 0
        if unit["block"] == 1 and unit["unit"] == "attention" and not about.weighs_cost:  # planted
            assert unit[value] == got["full"][value]
    assert (got["profile"] is not None) == (about.counts_drafts and strategy != "single")


def test_a_mask_is_saved_only_if_it_was_measured_to_be_faster(path, text, gain):
    gain(0.93)
    last = scan(path, "--text", text).stdout.splitlines()[-1]
    assert " · expected " in last and last.endswith(" · measured 0.93x · not saved: no gain here")
    assert run("layers", "profile", "list", "--json").json == {"profiles": []}


def test_the_same_mask_as_before_is_said_to_be_it(path, text, gain):
    first, second = (scan(path, "--text", text).stdout for _ in range(2))
    assert first.endswith(" · saved as profile\n")
    assert second.endswith(" · measured 1.20x · the same mask as before\n")
    gain(0.93)
    third = scan(path, "--text", text).stdout
    assert third.endswith("0.93x · the same mask as before; layers profile remove takes it back\n")


def test_one_disturbed_text_does_not_decide_the_gain(path, text, monkeypatch):
    """Plain decoding takes 90 us for a token; texts with the mask 30, 45 and 180."""
    mask, full = LayerMask.skipping(4, attn=[1, 2]), LayerMask.full(4)
    us = {full: (90.0, 90.0, 90.0), mask: (30.0, 45.0, 180.0)}
    monkeypatch.setattr(Objective, "_generate", lambda _, chunk, mask: (8, us[mask][chunk]))
    shown = []
    with Model(path) as model:
        gain = measured_gain(model, mask, progress=shown.append, text=text, n_ctx=64, chunks=3)
    assert gain == pytest.approx(2)
    assert [(each.n_done, each.n_total) for each in shown] == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_no_profile_leaves_profiles_alone(path, text):
    assert scan(path, "--text", text, "--no-profile", "--json").json["profile"] is None
    assert run("layers", "profile", "list", "--json").json == {"profiles": []}


def test_without_text_the_model_writes_its_own_once(path, tmp_path):
    """The sample is prose; one chunk of it is enough here."""
    out = tmp_path / "scan.jsonl"
    first = scan(path, "--results", out, "--strategy", "single", "--json").json
    texts = [line for line in out.read_text().splitlines() if '"tokens"' in line]
    assert len(texts) == 2
    again = scan(path, "--results", out, "--strategy", "single", "--json").json
    assert again == first
    assert [line for line in out.read_text().splitlines() if '"tokens"' in line] == texts
    other = run("scan-layers", path, *SMALL, "--results", out, "--seed", "1")
    assert other.status == 1 and "another seed (0, not 1)" in other.stderr


def test_the_default_file_is_found_again(path, text, user_data):
    first = scan(path, "--text", text, "--json").json
    assert first["results"].startswith(str(user_data))
    assert scan(path, "--text", text, "--json").json == first
    assert (
        scan(path, "--text", text, "--objective", "perplexity", "--json").json["results"]
        != (first["results"])
    )


@pytest.mark.parametrize(
    "options",
    [("--prune", "2", "--abort-ratio", "30", "--objective", "perplexity"), ("--exhaustive",)],
)
def test_constants_of_the_pull_request_and_none(path, text, options):
    got = scan(
        path, "--text", text, "--strategy", "greedy", "--share", "1", *options, "--json"
    ).json
    n_skipped = round(8 * got["curve"][-1]["skipped"])
    assert n_skipped == (4 if "--prune" in options else 7)


def test_pictures(path, text, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("scan.png", "scan.svg"):
        assert scan(path, "--text", text, "--plot", tmp_path / name).status == 0
        assert (tmp_path / name).stat().st_size > 5000


def test_results_are_printed_before_pictures_are_drawn(path, text, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def full(_figure, path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(plots, "save", full)
    outcome = scan(path, "--text", text, "--plot", tmp_path / "scan.png")
    assert outcome.status == 1 and "scan.png: No space left" in outcome.stderr
    assert "feed-forward  rank" in outcome.stdout


@pytest.mark.parametrize("name", ["folder.png", "model.png"])
def test_a_picture_that_cannot_be_kept_is_refused_before_the_work(path, tmp_path, name):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "model.png").write_bytes(path.read_bytes())
    outcome = scan(path, "--plot", tmp_path / name)
    assert outcome.status == 1 and outcome.stdout == "" and name in outcome.stderr
    assert (tmp_path / "model.png").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["x$\\foo$.gguf", "m$\\frac$.gguf", "a\x1bb.gguf", b"\xff.gguf"])
def test_pictures_of_models_with_odd_names(path, text, tmp_path, name):
    pytest.importorskip("matplotlib")
    odd = tmp_path / os.fsdecode(name)
    odd.symlink_to(path)
    picture = tmp_path / "scan.svg"
    outcome = scan(odd, "--text", text, "--plot", picture)
    assert outcome.status == 0, outcome
    ElementTree.parse(picture)


def test_ctrl_c_keeps_everything_and_the_same_command_goes_on(tiny_path, text, tmp_path):
    out = tmp_path / "scan.jsonl"
    path = tiny_path(n_layer=12)
    arguments = ["scan-layers", str(path), *SMALL, "--text", str(text), "--results", str(out)]
    arguments += ["--strategy", "greedy", "--json"]
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    deadline = time.monotonic() + 60
    while not out.exists() or out.read_bytes().count(b"\n") < 10:
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"run the same command to resume" in stderr and b"Traceback" not in stderr
    before = out.read_bytes()
    assert before.endswith(b"\n")
    again = run(*arguments)
    assert out.read_bytes().startswith(before)
    fresh = run(*arguments, "--results", tmp_path / "fresh.jsonl")
    without = [{k: v for k, v in o.json.items() if k != "results"} for o in (again, fresh)]
    assert without[0] == without[1]


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"too short", "one chunk takes 64"),
        (b"the hen " * 30, "1 chunks of 64 tokens, but chunks is 2"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "not UTF-8 text"),
        (b"the hen\0" * 900, "NUL characters"),
    ],
)
def test_texts_that_cannot_be_scored(path, tmp_path, content, message):
    (tmp_path / "bad").write_bytes(content)
    outcome = scan(path, "--text", tmp_path / "bad", "--results", tmp_path / "o.jsonl")
    assert outcome.status == 1 and message in outcome.stderr
    assert outcome.stderr.count("\n") == 1 and outcome.traceback is None
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--plot", "scan.txt"), ".png or .svg"),
        (("--plot", "nowhere/scan.png"), "no folder"),
        (("--results", "nowhere/scan.jsonl"), "nowhere"),
        (("--abort-ratio", "30"), "--objective perplexity"),
        (("--prune", "2"), "goes with --strategy greedy or anti"),
        (("--exhaustive", "--prune", "2"), "goes with neither --prune"),
        (("--text", "nowhere.txt"), "nowhere.txt"),
        (("--window", "33"), "a window of 33 tokens does not fit"),
    ],
)
def test_options_that_cannot_be(path, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = run("scan-layers", path, "-t", "1", "--chunk-size", "64", "--chunks", "1", *options)
    assert outcome.status in (1, 2) and message in outcome.stderr, outcome
    assert outcome.traceback is None
    assert list(tmp_path.glob("*.lock")) == []


def test_a_model_without_a_tokenizer(tiny_path):
    outcome = scan(tiny_path(vocab="none"))
    assert outcome.status == 1 and "has no tokenizer; scans need one" in outcome.stderr


def test_a_file_of_another_kind_of_attention(path, text, tmp_path):
    out = tmp_path / "results.jsonl"
    assert scan(path, "--text", text, "--results", out, "-ctk", "q8_0", "-ctv", "q8_0").status == 0
    outcome = scan(path, "--text", text, "--results", out)
    assert outcome.status == 1 and "another kind of attention" in outcome.stderr


# --- profiles --------------------------------------------------------------------------------


def test_profiles_come_and_go(path, tmp_path):
    mask = LayerMask.skipping(4, attn=[1, 2], ffn=[2])
    (tmp_path / "set.json").write_text('{"a": {"attention": [1, 2], "mlp": [2]}}')
    assert run("layers", "profile", "import", path, tmp_path / "set.json").status == 0
    assert run("layers", "profile", "show", path, "--json").json["mask"] == mask.to_dict()
    assert path.name in run("layers", "profile", "list").stdout
    assert run("layers", "profile", "export", path, "--format", "numbers").stdout == "0 1 3 0 -1\n"
    out = tmp_path / "mask.json"
    assert run("layers", "profile", "export", path, "--out", out).status == 0
    assert LayerMask.from_json(out.read_text()) == mask
    assert run("layers", "profile", "remove", path).status == 0
    for command in ("show", "export", "remove"):
        outcome = run("layers", "profile", command, path)
        assert outcome.status == 1 and "has no profile" in outcome.stderr
    assert "no profiles yet" in run("layers", "profile", "list").stderr


def test_a_profile_belongs_to_one_model(path, tiny_path, tmp_path):
    (tmp_path / "mask").write_text("0 1 3 0 -1")
    assert run("layers", "profile", "import", path, tmp_path / "mask").status == 0
    assert "has no profile" in run("layers", "profile", "show", tiny_path(seed=4)).stderr


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 2}', '{"format": 1}', "\0"])
def test_a_broken_profile_is_named_and_ignored(path, tmp_path, content):
    (tmp_path / "mask").write_text("0 1 3 0 -1")
    assert run("layers", "profile", "import", path, tmp_path / "mask").status == 0
    with Model(path) as model:
        kept = profiles.path_of(model.fingerprint)
    kept.write_text(content)
    outcome = run("generate", path, "-p", "the", "-n", "2", "-t", "1")
    assert outcome.status == 0 and outcome.stderr.startswith("Warning: ")
    assert str(kept) in outcome.stderr and "remove it" in outcome.stderr.splitlines()[0]
    assert run("generate", path, "-p", "the", "-n", "2", "-t", "1", "--profile", "none").status == 0
    assert run("layers", "profile", "remove", path).status == 0


def test_an_explicit_mask_goes_before_the_profile(path, tmp_path):
    (tmp_path / "mask").write_text("0 1 3 0 -1")
    assert run("layers", "profile", "import", path, tmp_path / "mask").status == 0
    options = ("-p", "the", "-n", "2", "-t", "1", "--json")
    assert run("generate", path, *options, "--skip-ffn", "3").json["mask"]["skip_ffn"] == [3]
    assert run("generate", path, *options, "--draft", "off").json["mask"] is None
    assert run("generate", path, *options).json["mask"]["skip_ffn"] == [2]
