"""pyselfspec generate: what comes out where, which text, which numbers, and how it is cut off."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import (
    ONE_THREAD,
    PROGRAM,
    TIMEOUT,
    Outcome,
    environment,
    on_terminal,
    run,
    run_alone,
    strict_json,
)
from fixture_types import TinyPath
from report_fields import FIELDS
from tiny_mamba import write_mamba

from pyselfspec import Context, LayerMask, Model, SamplingParams
from pyselfspec.cli import main
from pyselfspec.speculate import controllers, drafters
from pyselfspec.speculate.drafters import layer_skip

PROMPT = "Once upon a time"
N_LAYER = 4
CLOSING_LINE = re.compile(r"\d+ tokens?( · \d+\.\d tokens/s)?( · .+)?\n")
GREEDY = ("--temp", "0")
FIXED = ("--draft-p-min", "0")  # always drafts; the default controller may think better of it

Generate = Callable[..., Outcome]


@pytest.fixture
def generate(demo_path: Path) -> Generate:
    """Run generate with a short text on the demo model, in this process."""

    def outcome(*args: str | Path, model: str | Path = demo_path, **options: Any) -> Outcome:
        source = () if {"-p", "-f", "--prompt-tokens"} & set(args) else ("-p", PROMPT)
        n = () if "-n" in args else ("-n", "24")
        result = run("generate", model, *source, *n, *ONE_THREAD, *args, **options)
        assert result.traceback is None, repr(result.traceback)
        return result

    return outcome


# --- what comes out where --------------------------------------------------------------------


def test_text_on_stdout_one_line_on_stderr(demo_path: Path) -> None:
    args = ("generate", demo_path, "-p", PROMPT, "-n", "8", "--seed", "1", *ONE_THREAD)
    text, report = run_alone(*args), run_alone(*args, "--json")
    assert text.status == 0
    assert CLOSING_LINE.fullmatch(text.stderr)
    assert text.stderr.startswith("8 tokens")
    assert report.stderr == ""
    assert text.stdout == report.json["text"] + "\n"


def test_verbose_talks_on_stderr_only(tiny_path: TinyPath) -> None:
    args = ("generate", tiny_path(), "-p", PROMPT, "-n", "4", *ONE_THREAD, *GREEDY, "--json")
    quiet, verbose = run_alone(*args), run_alone(*args, "-v")
    assert quiet.stderr == ""
    assert "llama_model_loader" in verbose.stderr
    assert quiet.json["tokens"] == verbose.json["tokens"]


@pytest.mark.parametrize(
    ("draft", "compare"), [("off", ()), ("layer-skip", ()), ("layer-skip", ("--compare",))]
)
def test_json_fields_fit_together(
    generate: Generate, demo: Model, draft: str, compare: tuple[str, ...]
) -> None:
    report = generate("--seed", "3", "--draft", draft, *FIXED, "--json", *compare).json
    assert ("plain" in report) == ("identical" in report) == ("speedup" in report) == bool(compare)
    for run_ in [report, *([report["plain"]] if compare else [])]:
        check_fields(run_, demo)
        assert (run_["n_generated"], run_["finish_reason"]) == (24, "length")
    assert report["draft"] == draft
    assert (report["mask"] is None) == (draft == "off")


def test_nothing_to_compare(generate: Generate) -> None:
    """Without drafts, plain against plain would show noise as a result."""
    outcome = generate("--compare", "--draft", "off")
    assert outcome.status == 2
    assert "--compare needs drafts" in outcome.stderr


def test_a_recurrent_model_drafts(tmp_path: Path) -> None:
    mamba = write_mamba(tmp_path / "mamba.gguf")
    tokens = ",".join(["5", "6", "7"] * 6)
    options = ("--prompt-tokens", tokens, "--draft", "ngram", "-n", "24", "--compare", "--json")
    report = run("generate", mamba, *options, *ONE_THREAD).json
    assert report["n_drafted"] > 0 and report["identical"] is True


def test_a_comparison_leaves_one_text_in_the_file(generate: Generate, tmp_path: Path) -> None:
    """The one that was asked for, and none of those that warm up."""
    file = tmp_path / "texts.json"
    report = generate(
        "--compare", "--json", "--draft", "ngram", "-o", f"file={file}", "-n", "9"
    ).json
    n_kept = len(json.loads(file.read_text())["tokens"])
    assert n_kept == report["n_prompt"] + report["n_generated"]


def check_fields(report: dict[str, Any], model: Model) -> None:
    assert report.keys() >= FIELDS
    assert report["n_prompt"] == len(model.tokenize(PROMPT))
    assert report["text"] == model.detokenize(report["tokens"])
    assert report["n_generated"] == len(report["tokens"])
    # every full pass accepts some of the draft and adds one token of its own
    assert report["n_steps"] + report["n_accepted"] == report["n_generated"]
    assert 0 <= report["n_accepted"] <= report["n_drafted"]
    assert sum(report["n_drafted_at"]) == report["n_drafted"]
    assert sum(report["n_accepted_at"]) == report["n_accepted"]
    assert report["prefill_us"] > 0 and report["verify_us"] > 0
    decoding_us = report["total_us"] - report["prefill_us"]
    assert report["draft_us"] + report["verify_us"] <= decoding_us
    speed = report["n_generated"] * 1e6 / decoding_us
    assert report["tokens_per_second"] == pytest.approx(speed)
    if report["draft"] == "off":
        assert report["n_drafted"] == report["draft_us"] == 0
    if report["n_drafted"] == 0:
        assert report["acceptance_rate"] is None
    else:
        rate = report["n_accepted"] / report["n_drafted"]
        assert report["acceptance_rate"] == pytest.approx(rate)


def test_compare_for_people(generate: Generate) -> None:
    args = ("--seed", "5", "-n", "60")
    outcome = generate(*args, "--compare")
    assert outcome.stdout == generate(*args).stdout  # the text once
    assert CLOSING_LINE.fullmatch(outcome.stderr)
    assert "x plain decoding (measured" in outcome.stderr
    assert outcome.stderr.endswith("same text\n")


# --- the same text ---------------------------------------------------------------------------


def test_seed_decides_the_text(generate: Generate) -> None:
    texts = [generate("--seed", seed).stdout for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_drawn_seed_is_reported_and_works(generate: Generate) -> None:
    first = generate("--json").json
    again = generate("--json", "--seed", str(first["sampling"]["seed"])).json
    assert first["tokens"] == again["tokens"]


def test_residual_sampling_says_so(generate: Generate) -> None:
    options = ("--verify", "residual", "--seed", "9", "--compare", *FIXED)
    report = generate(*options, "--json").json
    assert (report["verify"], report["plain"]["verify"]) == ("residual", "match")
    assert 0 < report["n_accepted"] < report["n_drafted"]
    assert not report["identical"]
    assert generate(*options).stderr.endswith("another text of the same distribution\n")
    greedy = generate(*options, *GREEDY, "--json").json
    assert greedy["identical"]


def test_draft_limits_are_kept(generate: Generate) -> None:
    to_the_end = generate("--draft-max", "2", "--draft-p-min", "0", "--json").json
    assert len(to_the_end["n_drafted_at"]) == 2
    # no token is certain, so every draft is dropped
    assert generate("--draft-p-min", "1", "--json").json["n_drafted"] == 0


def test_repeat_penalty_reaches_the_sampler(generate: Generate) -> None:
    def n_different(*args: str) -> int:
        return len(set(generate(*GREEDY, "-n", "48", "--json", *args).json["tokens"]))

    assert n_different("--repeat-penalty", "2") > n_different()
    assert n_different("--presence-penalty", "9") > n_different()
    assert n_different("--frequency-penalty", "9") > n_different()
    assert n_different("--repeat-penalty", "2", "--repeat-last-n", "0") == n_different()


def test_sampling_options_reach_the_report(generate: Generate) -> None:
    args = "--temp 0.5 --top-k 7 --top-p 0.75 --min-p 0.25 --repeat-penalty 1.5 --repeat-last-n 9"
    args += " --presence-penalty 0.1 --frequency-penalty -0.2 --seed 4"
    sampling = generate("-n", "1", "--json", *args.split()).json["sampling"]
    expected = SamplingParams(0.5, 7, 0.75, 0.25, 1.5, 9, 0.1, -0.2, seed=4)
    breakers = tuple(sampling["dry_sequence_breakers"])
    read = sampling | {"logit_bias": (), "dry_sequence_breakers": breakers}
    assert SamplingParams(**read) == expected


WARM = ("--seed", "9")


@pytest.mark.parametrize(
    ("sampling", "draft"),
    [(GREEDY, FIXED), (WARM, FIXED), ((*WARM, "--repeat-penalty", "1.3"), FIXED),
     ((*GREEDY, "--top-k", "1"), FIXED), (WARM, ("--skip-attn", "0-11", *FIXED)),
     (WARM, ("--skip-attn", "1", "--skip-ffn", "2,4-6", *FIXED)),
     (GREEDY, ("--exit-layer", "5", *FIXED)), (WARM, ("--draft-max", "1", *FIXED)),
     (WARM, ("--draft-max", "9", *FIXED)), (WARM, ("--controller", "auto"))],
    ids=" ".join,
)  # fmt: skip
def test_drafts_never_change_the_text(
    generate: Generate, sampling: tuple[str, ...], draft: tuple[str, ...]
) -> None:
    plain = generate(*sampling, "--draft", "off", "--json").json
    fast = generate(*sampling, *draft, "--json").json
    assert fast["tokens"] == plain["tokens"]
    if "--controller" not in draft:  # others may see no point in it
        assert fast["n_drafted"] > 0


def test_options_that_choose_a_controller(generate: Generate) -> None:
    for args, name in (
        ((), "auto"),
        (("--draft-max", "3"), "fixed"),
        (("--draft-p-min", "0.5"), "fixed"),
        (("--controller", "fixed"), "fixed"),
    ):
        assert generate("-n", "2", "--json", *args).json["controller"] == name
    outcome = generate("--controller", "auto", "--draft-max", "3")
    assert outcome.status == 2 and "auto chooses both values" in outcome.stderr


# --- which model -----------------------------------------------------------------------------


def test_model_default(tiny_path: TinyPath) -> None:
    args = ("generate", "-p", PROMPT, "-n", "1", "--json", *ONE_THREAD)
    tiny = str(tiny_path())
    assert run(*args, PYSELFSPEC_MODEL=tiny).json["model"] == tiny
    for given in (["demo"], ["-m", "demo"], ["--model=demo"]):
        assert run(*args, *given, PYSELFSPEC_MODEL=tiny).json["model"] == "demo"


def test_demo_drafts_with_its_own_mask() -> None:
    report = run("generate", "demo", "-p", PROMPT, "-n", "4", "--json", *ONE_THREAD).json
    assert report["draft"] == "ngram+layer-skip"
    assert report["mask"] == run("models", "info", "demo", "--json").json["draft_mask"]


def test_model_without_a_mask_drafts_with_one_when_told_to(
    generate: Generate, tiny_path: TinyPath
) -> None:
    told = generate("--json", "--draft", "layer-skip", model=tiny_path(n_layer=2)).json
    assert told["mask"] == LayerMask.full(2).to_dict()


def test_drafters_can_be_joined(generate: Generate, tiny_path: TinyPath) -> None:
    model = tiny_path(n_layer=N_LAYER)
    report = generate("--json", "--draft", "ngram+layer-skip", model=model).json
    assert report["draft"] == "ngram+layer-skip"
    assert report["mask"] == LayerMask.alternate(N_LAYER).to_dict()
    for wrong in ("ngram+nope", "ngram+", "nope"):
        outcome = generate("--draft", wrong, model=model)
        assert outcome.status == 2 and "is none of: auto, off, " in outcome.stderr
    outcome = generate("--draft", "auto+ngram", model=model)
    assert outcome.status == 2 and "auto cannot be joined with other drafters" in outcome.stderr
    outcome = generate("--draft", "ngram+ngram", model=model)
    assert outcome.status == 1 and "twice" in outcome.stderr


def test_a_mask_that_cannot_pay_is_named_when_asked(
    generate: Generate, tiny_path: TinyPath
) -> None:
    mask = ("--draft", "layer-skip", "--skip-attn", "1")
    model = tiny_path(n_layer=N_LAYER, qtype="F32")
    outcome = generate(*mask, model=model)
    assert CLOSING_LINE.fullmatch(outcome.stderr)
    assert outcome.stderr.endswith(" · nothing was drafted\n")
    *_log, verbose = generate(*mask, "-v", model=model).stderr.splitlines()
    *_explained, explained = generate(*mask, "--explain", model=model).stderr.splitlines()
    for line in (verbose, explained):
        assert re.search(r"the mask was not used, .* slower here \(0\.\d\dx\)", line)


@pytest.mark.parametrize("how", [(), ("--draft-max", "3"), ("--draft", "ngram")])
def test_explanations_say_where_all_tokens_came_from(
    how: tuple[str, ...], generate: Generate
) -> None:
    outcome = generate("--explain", "-n", "150", *how)
    assert outcome.status == 0
    *explained, closing = outcome.stderr.splitlines()
    phases = [line for line in explained if line.startswith("tokens ")]
    ends = [tuple(map(int, re.findall(r"\d+", line)[:2])) for line in phases]
    assert [first for first, _ in ends] == [1, *(last + 1 for _, last in ends[:-1])]
    n_own = sum(int(re.search(r"(\d+) from the full model", line)[1]) for line in phases)  # type: ignore[index]
    accepted = re.search(r"(\d+) of \d+ draft tokens accepted|nothing was drafted", closing)
    assert accepted
    assert n_own + int(accepted[1] or 0) == int(closing.split()[0]) == ends[-1][1]
    assert CLOSING_LINE.fullmatch(f"{closing}\n")


def test_on_a_terminal_the_explanation_follows_the_text(demo_path: Path) -> None:
    args = ["generate", str(demo_path), "-p", PROMPT, "-n", "80", *ONE_THREAD, *GREEDY]
    text = run(*args).stdout
    shown = on_terminal(*args, "--explain")
    assert shown.startswith(text)
    report = shown.removeprefix(text).splitlines()
    assert re.match(r"tokens 1 to \d+: ", report[0])
    assert CLOSING_LINE.fullmatch(f"{report[-1]}\n")


# --- which prompt ----------------------------------------------------------------------------


def test_every_way_to_give_a_prompt(generate: Generate, demo: Model, tmp_path: Path) -> None:
    prompt = "Grüße — \n\n two lines\n"
    file = tmp_path / "prompt.txt"
    file.write_text(prompt, encoding="utf-8", newline="")
    ids = ",".join(map(str, demo.tokenize(prompt)))
    base = generate("-p", prompt, *GREEDY, "--json").json
    for args, stdin in [
        (("-f", file), b""),
        (("-f", "-"), prompt.encode()),
        (("--prompt-tokens", ids), b""),
        (("-p", prompt), b"stdin is not read when there is a prompt"),
    ]:
        report = generate(*args, *GREEDY, "--json", stdin=stdin).json
        assert report["n_prompt"] == base["n_prompt"], args
        assert report["tokens"] == base["tokens"], args
    common = (*GREEDY, *ONE_THREAD, "-n", "24", "--json")
    piped = run("generate", "demo", *common, stdin=prompt.encode()).json
    assert piped["tokens"] == base["tokens"]
    typed = run("generate", "demo", prompt, *common).json
    assert typed["tokens"] == base["tokens"]


def test_ids_in_ids_out(generate: Generate, tiny_path: TinyPath) -> None:
    path = tiny_path(n_layer=N_LAYER, vocab="none")
    args = ("--prompt-tokens", "5, 6,7", *GREEDY)
    for draft in ((), ("--skip-attn", "1-2")):
        text = generate(*args, *draft, model=path)
        report = generate(*args, *draft, "--json", model=path).json
        assert text.status == 0
        assert text.stdout == ",".join(map(str, report["tokens"])) + "\n"
        assert (report["text"], report["n_prompt"], report["n_generated"]) == ("", 3, 24)
        assert CLOSING_LINE.fullmatch(text.stderr)


def test_ids_in_ids_out_where_text_is_possible(generate: Generate) -> None:
    args = ("--prompt-tokens", "5,6", *GREEDY)
    report = generate(*args, "--json").json
    assert generate(*args).stdout == ",".join(map(str, report["tokens"])) + "\n"


# --- where it ends ---------------------------------------------------------------------------


def test_no_limit_but_the_context(generate: Generate, tiny_path: TinyPath) -> None:
    """-n -1 and -c 0, as llama.cpp's programs take them."""
    args = (*GREEDY, "-n", "-1", "--json", "--draft", "off")
    report = generate(*args, "-c", "256", model=tiny_path()).json
    assert report["n_prompt"] + report["n_generated"] == 256 + 1
    assert report["finish_reason"] == "context"
    path = tiny_path(n_ctx=512)
    report = generate(*args, "-c", "0", model=path).json
    assert report["n_prompt"] + report["n_generated"] == 512 + 1


def test_seed_minus_one_draws_one(generate: Generate) -> None:
    first, second = (generate("--seed", "-1", "--json").json["sampling"]["seed"] for _ in "12")
    assert first != second and min(first, second) >= 0


def test_stop(generate: Generate) -> None:
    whole = generate(*GREEDY, "--json").json["text"]
    stop = whole[len(whole) // 2 :][:5]
    before = whole[: whole.index(stop)]
    report = generate(*GREEDY, "--json", "--stop", "@@@", "--stop", stop).json
    assert (report["text"], report["finish_reason"]) == (before, "stop")
    assert generate(*GREEDY, "--stop", stop).stdout == before + "\n"


def test_grammar(generate: Generate, tmp_path: Path) -> None:
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= "yes" | "no"\n')
    for seed in ("1", "2"):
        report = generate("--grammar", grammar, "--seed", seed, "--compare", "--json").json
        assert report["text"] in ("yes", "no")
        assert report["finish_reason"] == "eog"
        assert report["identical"] is True


# --- masks -----------------------------------------------------------------------------------


def test_every_way_to_give_a_mask(generate: Generate, tmp_path: Path) -> None:
    mask = LayerMask(12, frozenset({3, 5, 8, 9, 10, 11}), frozenset({0}))
    file = tmp_path / "mask.json"
    file.write_text(mask.to_json())
    always = (*GREEDY, *FIXED, "--json")
    reports = [
        generate(*always, "--skip-attn", "3,5,8-11", "--skip-ffn", "0").json,
        generate(*always, "--skip-attn", " 8-11 ,5, 3 ", "--skip-ffn", "0-0").json,
        generate(*always, "--mask", file).json,
        generate(*always, "--mask", "-", stdin=mask.to_json().encode()).json,
    ]
    for report in reports:
        assert report["mask"] == mask.to_dict()
        assert report["n_accepted"] == reports[0]["n_accepted"]


def test_exit_layer(generate: Generate) -> None:
    mask = generate("-n", "1", "--json", "--exit-layer", "5").json["mask"]
    assert mask == LayerMask.early_exit(12, 5).to_dict()
    outcome = generate("--exit-layer", "5", "--skip-ffn", "6")
    assert outcome.status == 2 and "give only one mask" in outcome.stderr


# --- options of the drafter that is named ----------------------------------------------------

LAYER_SKIP = ("--draft", "layer-skip")


def test_drafter_options_reach_the_drafter(generate: Generate, tmp_path: Path) -> None:
    mask = LayerMask.skipping(12, attn=[3, 5], ffn=[2])
    file = tmp_path / "mask.json"
    file.write_text(mask.to_json())
    always = (*GREEDY, *FIXED, *LAYER_SKIP, "--json")
    plain = generate(*GREEDY, "--draft", "off", "--json").json
    reports = [
        generate(*always, "--mask", file).json,
        generate(*always, "-o", f"mask={file}").json,
        generate(*always, "--draft-option", f"mask={file}", "-o", "share=false").json,
        generate(*always, "-o", "mask=-", stdin=mask.to_json().encode()).json,
    ]
    for report in reports:
        assert report["mask"] == mask.to_dict()
        assert report["tokens"] == plain["tokens"]
        assert report["n_accepted"] == reports[0]["n_accepted"] > 0


def test_an_option_changes_nothing_else(
    generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own mask stays where only the way to draft is given."""
    shares: list[bool] = []
    init = layer_skip.LayerSkipDrafter.__init__

    def recorded(drafter: Any, *args: Any, **options: Any) -> None:
        init(drafter, *args, **options)
        shares.append(drafter.shares)

    monkeypatch.setattr(layer_skip.LayerSkipDrafter, "__init__", recorded)
    always = ("-n", "3", *GREEDY, *LAYER_SKIP, "--json")
    reports = [generate(*always, *given).json for given in ((), ("-o", "share=false"))]
    assert set(shares) == {True, False}
    assert (
        reports[0]["mask"]
        == reports[1]["mask"]
        == run("models", "info", "demo", "--json").json["draft_mask"]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "share=false"), "-o sets options of the drafter that --draft names; name one"),
        (("--draft", "auto", "-o", "share=false"), "name one"),
        (("--draft", "off", "-o", "share=false"), "name one"),
        ((*LAYER_SKIP, "-o", "width=3"), "option of a drafter: layer-skip has mask, share"),
        ((*LAYER_SKIP, "-o", "share"), "option of a drafter: layer-skip has mask, share"),
        ((*LAYER_SKIP, "-o", "share=1", "-o", "share=0"), "-o share is given twice"),
    ],
)
def test_drafter_options_that_cannot_be(
    generate: Generate, options: tuple[str, ...], message: str
) -> None:
    outcome = generate(*options)
    assert outcome.status == 2 and message in outcome.stderr
    assert outcome.stdout == "" and "Traceback" not in outcome.stderr


def test_values_of_drafter_options_that_cannot_be(generate: Generate, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"n_layer": 3}')
    cases = {
        "-o share=perhaps: expected bool": "share=perhaps",
        "for 3 blocks": f"mask={other}",
        "nowhere.json": f"mask={tmp_path / 'nowhere.json'}",
    }
    for message, pair in cases.items():
        outcome = generate(*LAYER_SKIP, "-o", pair)
        assert outcome.status == 1 and message in outcome.stderr, outcome
        assert outcome.stderr.count("\n") == 1 and outcome.stdout == ""


# --- cut off ---------------------------------------------------------------------------------


def test_ctrl_c(tiny_path: TinyPath) -> None:
    """Whatever has been shown stays, the line is whole, the status is the shell's for Ctrl-C."""
    process = subprocess.Popen(
        [*PROGRAM, "generate", tiny_path(), "-p", PROMPT, "-n", "100000", "-c", "100000",
         *ONE_THREAD, *GREEDY],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        env=environment(),
        # a shell that runs tests in the background ignores Ctrl-C for them
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    warning, closing = stderr.decode().splitlines(keepends=True)
    assert "trained" in warning and CLOSING_LINE.fullmatch(closing), stderr.decode()
    text = (first + rest).decode()
    assert len(text) > 1 and text.endswith("\n")


@pytest.fixture
def no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that passes count from the first one that matters."""
    monkeypatch.setattr(
        importlib.import_module("pyselfspec.cli.generate"), "_warm_up", lambda *_: 0
    )


@pytest.mark.usefixtures("no_warm_up")
@pytest.mark.parametrize("n_passes", [1, 6, 7, 8, 9, 10, 11])
def test_ctrl_c_with_json(
    generate: Generate, demo: Model, ctrl_c: Callable[[int], None], n_passes: int
) -> None:
    whole = generate(*GREEDY, "--json").json["tokens"]
    ctrl_c(n_passes)
    outcome = generate(*GREEDY, *FIXED, "--json", "--compare")
    assert (outcome.status, outcome.stderr) == (130, "")
    report = strict_json(outcome.stdout)
    assert report["finish_reason"] == "interrupted"
    assert not report.keys() & {"plain", "identical", "speedup"}
    assert report["n_generated"] == len(report["tokens"])
    assert report["tokens"] == whole[: len(report["tokens"])]
    assert report["text"] == demo.detokenize(report["tokens"])


@pytest.mark.usefixtures("no_warm_up")
def test_ctrl_c_in_the_plain_run_compares_nothing(
    generate: Generate, ctrl_c: Callable[[int], None]
) -> None:
    """Half a plain text would look like a different one."""
    passes = 0

    def counted(*args: Any, run_pass: Any = Context.run, **options: Any) -> Any:
        nonlocal passes
        passes += 1
        return run_pass(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "run", counted)
        generate(*GREEDY, *FIXED, "--json")
    ctrl_c(passes + 5)
    outcome = generate(*GREEDY, *FIXED, "--json", "--compare")
    assert outcome.status == 130
    report = strict_json(outcome.stdout)
    assert report["n_generated"] == 24
    assert not report.keys() & {"plain", "identical", "speedup"}


def test_ctrl_c_before_the_first_token(generate: Generate, ctrl_c: Callable[[int], None]) -> None:
    ctrl_c(1)
    outcome = generate()
    assert (outcome.status, outcome.stdout) == (130, "\n")
    assert CLOSING_LINE.fullmatch(outcome.stderr)


def test_ctrl_c_before_anything_has_happened(
    generate: Generate, ctrl_c: Callable[[int], None]
) -> None:
    ctrl_c(1)
    outcome = generate("--json", "--compare")  # which begins with a warm-up
    assert (outcome.status, outcome.stdout) == (130, "")


@pytest.mark.parametrize("args", [(), ("--json", "-n", "64")], ids=["text", "json"])
def test_reader_that_goes_away(tiny_path: TinyPath, args: tuple[str, ...]) -> None:
    """A reader such as `head -c 10` closes the pipe: the program ends without a message."""
    process = subprocess.Popen(
        [*PROGRAM, "generate", tiny_path(), "-p", PROMPT, "-n", "100000", "-c", "4096",
         *ONE_THREAD, *GREEDY, *args],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        env=environment(),
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    if not args:
        assert process.stdout.read(1)
    process.stdout.close()
    stderr = process.stderr.read().decode()
    assert process.wait(TIMEOUT) in (0, 1)
    for word in ("Traceback", "Exception", "Errno", "Broken"):
        assert word not in stderr


def test_names_of_other_programs_for_options(generate: Generate) -> None:
    ours = generate("-n", "5", "--temp", "0")
    theirs = generate("--max-tokens", "5", "--temperature", "0")
    assert theirs.status == 0 and theirs.stdout == ours.stdout


def test_a_context_of_the_size_the_model_was_trained_with_cannot_be_larger() -> None:
    full = run("generate", "demo", "Once", "-n", "-1", "--draft", "off", *ONE_THREAD, *GREEDY)
    expected = "the context of 512 tokens is full; the model was trained with no more"
    assert full.stderr.splitlines()[-2] == expected


def test_text_that_the_locale_cannot_read() -> None:
    """Python reads the command line with the encoding of the locale."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for args in (["-p", "Où"], ["Où"]):
        outcome = run_alone("generate", "demo", *args, env=ascii_only)
        assert outcome.status == 2 and "set LC_ALL=C.UTF-8" in outcome.stderr


def test_more_threads_than_cores_are_said() -> None:
    outcome = run("generate", "demo", "Once", "-n", "1", "-t", "512")
    assert outcome.status == 0
    assert outcome.stderr.startswith("Warning: -t 512 is more than the ")


def test_a_full_context_is_said(tiny_path: TinyPath) -> None:
    args = ("generate", tiny_path(), "-p", PROMPT, "-n", "1000", "-c", "256", *ONE_THREAD, *GREEDY)
    full, report = run(*args), run(*args, "--json")
    assert full.status == 0
    notes = full.stderr.splitlines()
    assert notes[-2] == "the context of 256 tokens is full; give a larger -c"
    assert report.json["finish_reason"] == "context"
    assert report.json["n_generated"] < 1000


def test_a_context_beyond_the_training_is_warned_of(demo_path: Path) -> None:
    args = ("generate", demo_path, "-p", PROMPT, "-n", "4", *ONE_THREAD, *GREEDY)
    first, *_ = run(*args, "-c", "1024").stderr.splitlines()
    assert first.startswith("Warning: -c 1024 is more than the 512 tokens of context")
    for fine in (["-c", "512"], ["-c", "0"], []):
        assert "trained" not in run(*args, *fine).stderr


def test_a_long_prompt_is_refused_at_once(demo_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("the king and the hen " * 10**6)
    outcome = run("generate", demo_path, "-f", file, *ONE_THREAD)
    assert outcome.status == 1
    said = re.search(
        r"the prompt has about (\d+) tokens, the context 512; give a larger n_ctx \(-c\)",
        outcome.stderr,
    )
    assert said and 4e6 < int(said[1]) < 8e6


def test_the_length_of_a_prompt_that_is_too_long_is_said(demo_path: Path) -> None:
    text = "the king and the hen " * 200
    with Model(demo_path) as model:
        n_tokens = len(model.tokenize(text))
    outcome = run("generate", demo_path, "-p", text, *ONE_THREAD)
    assert f"the prompt has {n_tokens} tokens, the context 512; " in outcome.stderr


@pytest.mark.parametrize(
    ("options", "breakers"),
    [
        ((), ["\n", ":", '"', "*"]),
        (("--dry-sequence-breaker", "none"), []),
        (("--dry-sequence-breaker", "a", "--dry-sequence-breaker", "é"), ["a", "é"]),
    ],
)
def test_further_samplers(options: tuple[str, ...], breakers: list[str], demo_path: Path) -> None:
    given = ("--dry-multiplier", "1", "--typical", "0.9", "--top-nsigma", "2", "--dynatemp-range")
    outcome = run("generate", demo_path, "-p", "Once", "-n", "4", "--json", *given, "0.3", *options)
    sampling = json.loads(outcome.stdout)["sampling"]
    assert sampling["dry_sequence_breakers"] == breakers
    names = ("dry_multiplier", "typical_p", "top_n_sigma", "dynatemp_range")
    assert [sampling[name] for name in names] == [1, 0.9, 2, 0.3]


SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, '
SCHEMA += '"required": ["n"]}'


@pytest.mark.parametrize("in_file", [False, True])
def test_a_json_schema(in_file: bool, demo_path: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA)
    given = f"@{tmp_path / 'schema.json'}" if in_file else SCHEMA
    outcome = run("generate", demo_path, "-p", "Once", "--json", "--json-schema", given)
    assert 0 <= json.loads(json.loads(outcome.stdout)["text"])["n"] <= 9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("{",), "--json-schema: this is not JSON: "),
        (("[]",), "a schema is a JSON object"),
        (("@-",), "takes no stdin"),
        (("@missing.json",), "missing.json: No such file"),
        (('{"type": "x"}',), "#/type is not one or several of"),
        (("{}", "--grammar", "a.gbnf"), "give --grammar or --json-schema, not both"),
    ],
)
def test_what_is_no_json_schema(given: tuple[str, ...], message: str, demo_path: Path) -> None:
    outcome = run("generate", demo_path, "-p", "Once", "--json-schema", *given)
    assert outcome.status and message in outcome.stderr
    assert len(re.findall("^Error: ", outcome.stderr, re.MULTILINE)) == 1


# --- help ------------------------------------------------------------------------------------


def test_help_names_every_drafter_and_controller() -> None:
    help_ = " ".join(run("generate", "--help-all").stdout.split())
    assert {*drafters.names()} < {*re.search(r"auto\|off\|[a-z|-]+", help_)[0].split("|")}  # type: ignore[index]
    assert f"[{'|'.join(controllers.names())}]" in help_


def test_example_in_the_help_works() -> None:
    outcome = run("generate", "-h")
    assert 'pyselfspec generate demo "Once upon a time"' in outcome.stdout
    assert run("generate", "demo", PROMPT, "-n", "2", *ONE_THREAD).status == 0


def test_version_names_program_and_library() -> None:
    outcome = run_alone("--version")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert re.fullmatch(r"pyselfspec \d\S+, library \d\S+, CPU code \w+\n", outcome.stdout)


def test_installed_script_is_this_program() -> None:
    """`pyselfspec` and `python -m pyselfspec` are one."""
    from importlib.metadata import entry_points

    scripts = entry_points(group="console_scripts", name="pyselfspec")
    if not scripts:
        pytest.skip("runs from a checkout")
    assert next(iter(scripts)).load() is main


@pytest.mark.parametrize(
    ("locale", "shown"),
    [
        ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, "é☃\n"),
        ({"PYTHONIOENCODING": "ascii"}, "é☃\n"),
        ({"PYTHONIOENCODING": "latin-1"}, None),  # cannot show it; must not crash over it
    ],
    ids=["C", "ascii", "latin-1"],
)
def test_narrow_terminals(
    tmp_path: Path, demo_path: Path, locale: dict[str, str], shown: str | None
) -> None:
    grammar = tmp_path / "snow.gbnf"
    grammar.write_text('root ::= "é☃"\n', encoding="utf-8")
    args = ("generate", demo_path, "-p", "snow", "--grammar", grammar, *ONE_THREAD)
    outcome = run_alone(*args, env=locale)
    assert "Traceback" not in outcome.stderr
    assert outcome.status == 0
    assert shown is None or outcome.stdout == shown
    assert run_alone(*args, "--json", env=locale).json["text"] == "é☃"
