"""pyselfspec lab generate: masks that change meanwhile, and texts that nothing verifies."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import ONE_THREAD, PROGRAM, TIMEOUT, Outcome, environment, run, strict_json
from fixture_types import RunPython, TinyPath

from pyselfspec import Context, LayerMask
from pyselfspec.lab.adapt import state as states
from pyselfspec.runtime.passes import FULL, Pass, Rows
from pyselfspec.util.files import locked

PROMPT = "Once upon a time"
GREEDY = ("--temp", "0")
FIXED = ("--draft-p-min", "0")
LAYER_SKIP = ("--draft", "layer-skip")

Generate = Callable[..., Outcome]


@pytest.fixture
def generate(demo_path: Path) -> Generate:
    """Run lab generate with a short text on the demo model, in this process."""

    def outcome(*args: str | Path, model: str | Path = demo_path, **options: Any) -> Outcome:
        n = () if "-n" in args else ("-n", "24")
        result = run("lab", "generate", model, "-p", PROMPT, *n, *ONE_THREAD, *args, **options)
        assert result.traceback is None, repr(result.traceback)
        return result

    return outcome


def test_an_unverified_text_is_said_to_be_none_of_the_models(generate: Generate) -> None:
    options = ("--exit-layer", "3", "--unverified", "--seed", "3")
    report = generate(*options, "--json").json
    assert report["unverified"] and report["n_drafted"] == 0
    assert report["tokens"] != generate("--seed", "3", "--json").json["tokens"]
    outcome = generate(*options)
    assert outcome.stdout == report["text"] + "\n"
    assert "not the model's own text" in outcome.stderr


@pytest.mark.parametrize("given", ["--mask", "-o"])
def test_adapting_begins_with_the_mask_that_is_given(
    given: str, generate: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And drafts with the masks that it takes over, with --mask as with -o."""
    passes: list[LayerMask] = []
    run_pass = Context.run

    def recorded(context: Context, rows: Rows, what: Pass = FULL) -> Any:
        if what.is_draft and what.mask is not None and len(rows) == 1:
            passes.append(what.mask)
        return run_pass(context, rows, what)

    monkeypatch.setattr(Context, "run", recorded)
    bad = LayerMask.skipping(12, attn=range(3), ffn=range(3))
    file = tmp_path / "bad.json"
    file.write_text(bad.to_json())
    mask = (given, file) if given == "--mask" else (given, f"mask={file}")
    report = generate(
        "-n", "300", "--seed", "1", *LAYER_SKIP, *mask, *FIXED, *ALL_THE_TIME, "--json"
    ).json  # fmt: skip
    assert report["adapt"]["n_changes"] > 0
    drafted = [each for each in passes if each.skip_attn or each.skip_ffn]
    assert drafted[0] == bad
    assert report["mask"] in [each.to_dict() for each in drafted[1:]]


ALL_THE_TIME = ("--adapt-share", "1")


def test_adapting_changes_masks_and_not_the_text(generate: Generate) -> None:
    bad = ("--skip-attn", "0-2", "--skip-ffn", "0-2")
    text = ("-n", "300", "--seed", "1", "--json")
    report = generate(*text, *bad, *ALL_THE_TIME).json
    assert report["tokens"] == generate(*text, "--draft", "off").json["tokens"]
    assert report["adapt"].keys() == {"n_tried", "n_changes", "trial_us"}
    assert report["controller"] == "auto"
    assert report["adapt"]["n_tried"] > report["adapt"]["n_changes"] > 0
    assert report["mask"]["skip_attn"] != [0, 1, 2] or report["mask"]["skip_ffn"] != [0, 1, 2]
    assert 0 < report["adapt"]["trial_us"] < report["total_us"] - report["prefill_us"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_adapting_takes_no_more_memory_the_longer_the_text(
    demo_path: Path, run_python: RunPython
) -> None:
    """Freed graphs would pile up: 20 MB in 4000 tokens. Without copies, whose index takes a
    kilobyte a token, up to its bound; in a process of its own, whose memory is its own."""
    code = """
import json, sys
from pathlib import Path
from pyselfspec import Completion, DraftConfig, Model, SamplingParams
from pyselfspec.lab.adapt.adaptation import Adapt, start
sizes = []
with Model(sys.argv[1]) as model, model.context(n_ctx=4096, n_threads=1) as context:
    adaptation = start(context, DraftConfig("layer-skip"), Adapt(share=0.5), seed=1)
    completion = Completion(
        context,
        sys.argv[2],
        adaptation.drafter,
        controller=adaptation.controller,
        n_predict=3600,
        sampling=SamplingParams(seed=1),
    )
    for _piece in completion:
        if len(completion.tokens) // 600 > len(sizes):
            status = Path("/proc/self/status").read_text()
            sizes.append(int(status.split("RssAnon:")[1].split()[0]) // 1024)
    print(json.dumps([adaptation.state.n_candidates, sizes]))
"""
    outcome = run_python(code, demo_path, PROMPT)
    assert not outcome.returncode, outcome.stderr
    n_candidates, sizes = json.loads(outcome.stdout)
    assert n_candidates > 100 and len(sizes) == 6
    assert sizes[-1] < sizes[1] + 8, sizes


def record_in(file: Path) -> Any:
    """Return the contents of a file of --adapt-state."""
    text = file.read_text()
    assert text.endswith("}\n")
    return json.loads(text, parse_constant=pytest.fail)


def state_in(file: Path) -> Any:
    record = record_in(file)
    assert record.keys() == {"format", "model", "fingerprint", "state"}
    return record["state"]


def test_a_state_is_kept_and_goes_on(generate: Generate, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    arguments = ("-n", "120", "--seed", "1", *ALL_THE_TIME, "--adapt-state", file, "--json")
    first = generate(*arguments).json
    state = state_in(file)
    assert (state["mask"], state["n_candidates"]) == (first["mask"], first["adapt"]["n_tried"])
    second = generate(*arguments).json
    n_tried = first["adapt"]["n_tried"] + second["adapt"]["n_tried"]
    assert state_in(file)["n_candidates"] == n_tried > first["adapt"]["n_tried"] > 0
    assert [path.name for path in tmp_path.iterdir() if "state" in path.name] == ["state.json"]


def test_a_state_outlives_ctrl_c(
    generate: Generate, tmp_path: Path, ctrl_c: Callable[[int], None]
) -> None:
    file = tmp_path / "state.json"
    ctrl_c(200)
    outcome = generate("-n", "400", *ALL_THE_TIME, "--adapt-state", file)
    assert outcome.status == 130
    assert state_in(file)["n_candidates"] > 0


def test_a_state_is_saved_as_it_goes(
    generate: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the case that the process is killed."""
    file, seen = tmp_path / "state.json", []
    module = importlib.import_module("pyselfspec.cli.lab.generate")
    save = states.save

    def saved(state: Any, *rest: Any) -> None:
        save(state, *rest)
        seen.append(state_in(file)["n_steps"])

    monkeypatch.setattr(module, "SAVE_S", 0.0)
    monkeypatch.setattr(states, "save", saved)
    assert generate("-n", "40", *ALL_THE_TIME, "--adapt-state", file).status == 0
    assert len(seen) > 5 and seen == sorted(set(seen))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_learned_outlives_other_signals(
    demo_path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """docker stop, timeout(1) and closed terminals send these signals."""
    file = tmp_path / "state.json"
    process = subprocess.Popen(
        [*PROGRAM, "lab", "generate", demo_path, "-p", PROMPT, "-n", "100000", "-c", "100000",
         *ONE_THREAD, *GREEDY, "--adapt-state", file],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        env=environment(),
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(number)
    _rest, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + number, stderr.decode()
    assert "Traceback" not in stderr.decode() and " tokens" in stderr.decode()
    assert state_in(file)["n_steps"] > 0


def test_a_state_that_cannot_be_saved_costs_nothing_else(
    generate: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("pyselfspec.cli.lab.generate")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "state.json"))

    monkeypatch.setattr(module, "SAVE_S", 0.0)
    monkeypatch.setattr(states, "save", full)
    outcome = generate("-n", "8", "--adapt-state", tmp_path / "state.json", "--json")
    assert outcome.status == 1 and "state.json: No space left" in outcome.stderr
    assert strict_json(outcome.stdout)["n_generated"] == 8


def test_a_state_belongs_to_one_run_at_a_time(generate: Generate, tmp_path: Path) -> None:
    """Two would each forget what the other one has learned."""
    file = tmp_path / "state.json"
    with locked(file, "wait"):
        outcome = generate("-n", "1", "--adapt-state", file)
    assert outcome.status == 1 and outcome.stdout == ""
    assert "state.json is in use by another process" in outcome.stderr
    assert "give another --adapt-state" in outcome.stderr
    assert generate("-n", "1", "--adapt-state", file).status == 0


def test_a_state_has_a_mask_of_its_own(generate: Generate, tmp_path: Path) -> None:
    options = ("-n", "1", "--adapt-state", tmp_path / "state.json", "--skip-attn", "3")
    assert generate(*options).status == 0
    outcome = generate(*options)
    assert outcome.status == 2 and "state.json already has a mask" in outcome.stderr


def test_states_that_cannot_be(
    generate: Generate, demo_path: Path, tiny_path: TinyPath, tmp_path: Path
) -> None:
    file = tmp_path / "state.json"
    assert generate("-n", "1", "--adapt-state", file).status == 0
    before = file.read_bytes()
    broken = tmp_path / "broken.json"
    broken.write_bytes(before[:50])
    cases = {
        "state.json belongs to another model (demo.gguf)": (file, tiny_path()),
        "broken.json is no adaptation state": (broken, tiny_path()),
        "is no plain file": (tmp_path, tiny_path()),
        "is no folder: make it first": (tmp_path / "nowhere" / "state.json", tiny_path()),
    }
    for message, (path, model) in cases.items():
        outcome = generate("--adapt-state", path, model=model)
        assert outcome.status == 1 and message in outcome.stderr, outcome
        assert outcome.stderr.count("\n") == 1 and outcome.stdout == ""
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--adapt", "--draft", "off"), "no mask to adapt"),
        (("--adapt-state", "s.json", "--draft", "off"), "no mask to adapt"),
        (("--adapt-share", "0"), "above 0 and at most 1"),
        (("--adapt-share", "1.1"), "above 0 and at most 1"),
    ],
)
def test_adapting_that_cannot_be(
    generate: Generate, options: tuple[str, ...], message: str
) -> None:
    outcome = generate(*options)
    assert outcome.status == 2 and message in outcome.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--unverified needs a mask"),
        (("--exit-layer", "2", "--draft", "layer-skip"), "is not drafted"),
        (("--exit-layer", "2", "--verify", "residual"), "is not drafted"),
        (("--exit-layer", "2", "-o", "foo=bar"), "is not drafted"),
        (
            ("--exit-layer", "2", "--controller", "auto", "--draft-max", "3"),
            "go with --controller fixed",
        ),
    ],
)
def test_unverified_texts_that_cannot_be(
    generate: Generate, options: tuple[str, ...], message: str
) -> None:
    outcome = generate("--unverified", *options)
    assert outcome.status == 2 and message in outcome.stderr, outcome


def test_the_file_of_a_model_is_no_state(generate: Generate, demo_path: Path) -> None:
    outcome = generate("--adapt-state", demo_path)
    assert outcome.status == 1 and "is a model" in outcome.stderr
