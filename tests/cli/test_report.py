"""The report on finished completions: fields, ratios, the closing line. No model is loaded."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from report_fields import FIELDS
from simulation import table

from pyselfspec import BUILD_ID, Fixed, GenerationStats, LayerMask, SamplingParams
from pyselfspec.cli._generation_report import N_PHASE, Explainer, closing_line, report
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.controllers import Decision, Rule
from pyselfspec.speculate.controllers.auto import Auto, make
from pyselfspec.speculate.stats import SourceStats

MASK = LayerMask(4, frozenset({1, 2}), frozenset({3}))
SAMPLING = SamplingParams(temperature=0.5, seed=7, logit_bias=((5, 1.5),))
SECOND = 1_000_000


def stats(**changes: Any) -> GenerationStats:
    """60 tokens in 1 s after a prompt of 0.25 s; 24 steps, 36 of 72 drafted tokens accepted."""
    return replace(
        GenerationStats(
            n_prompt=3,
            n_generated=60,
            n_steps=24,
            n_drafted=72,
            n_accepted=36,
            prefill_us=SECOND // 4,
            draft_us=SECOND // 4,
            verify_us=SECOND // 2,
            total_us=SECOND // 4 + SECOND,
        ),
        **changes,
    )


def drafted(**changes: Any) -> Any:
    """A finished completion as far as a report looks at it."""
    fields: dict[str, Any] = {
        "text": "grün",
        "tokens": list(range(60)),
        "stats": stats(),
        "finish_reason": "length",
        "draft": "layer-skip",
        "mask": MASK,
        "controller": Fixed(),
        "sampling": SAMPLING,
        "config": DraftConfig(),
        "estimated_speedup": None,
    }
    return SimpleNamespace(**fields | changes)


def plain(seconds: float = 2.0, **changes: Any) -> Any:
    """The plain run beside it: the same tokens in other seconds."""
    us = int(seconds * SECOND)
    slow = stats(
        n_steps=60, n_drafted=0, n_accepted=0, draft_us=0, total_us=SECOND // 4 + us, verify_us=us
    )
    return drafted(**{"stats": slow, "draft": None, "mask": None} | changes)


def test_report_has_every_promised_field() -> None:
    fields = report(drafted(), "some.gguf")
    assert fields.keys() >= FIELDS
    assert not fields.keys() & {"plain", "identical", "speedup"}
    assert fields["text"] == "grün"
    assert fields["tokens"] == list(range(60))
    assert fields["mask"] == {"n_layer": 4, "skip_attn": [1, 2], "skip_ffn": [3]}
    assert fields["tokens_per_second"] == pytest.approx(60)
    assert fields["acceptance_rate"] == 0.5
    assert fields["sampling"]["seed"] == 7
    assert (fields["model"], fields["build"]) == ("some.gguf", BUILD_ID)


def test_report_with_comparison() -> None:
    fields = report(drafted(), "some.gguf", plain())
    assert fields["plain"].keys() >= FIELDS
    assert fields["plain"]["draft"] == "off"
    assert fields["plain"]["mask"] is None
    assert fields["plain"]["acceptance_rate"] is None
    assert fields["identical"] is True
    assert fields["speedup"] == pytest.approx(2.0)


def test_identical_compares_tokens_not_texts() -> None:
    other = plain(tokens=[*range(59), 99])  # two tokens may have the same text
    assert report(drafted(), "m", other)["identical"] is False


def test_report_of_nothing_has_no_ratios() -> None:
    nothing = drafted(text="", tokens=[], stats=GenerationStats(n_prompt=3))
    fields = report(nothing, "m", nothing)
    for name in ("tokens_per_second", "acceptance_rate", "speedup"):
        assert fields[name] is None, name


@pytest.mark.parametrize(
    ("completion", "line"),
    [
        (
            drafted(estimated_speedup=1.314),
            "60 tokens · 60.0 tokens/s · about 1.3x plain decoding · "
            "36 of 72 draft tokens accepted",
        ),
        (drafted(), "60 tokens · 60.0 tokens/s · 36 of 72 draft tokens accepted"),
        (
            drafted(stats=stats(n_drafted=0, n_accepted=0)),
            "60 tokens · 60.0 tokens/s · nothing was drafted",
        ),
        (plain(), "60 tokens · 30.0 tokens/s"),
        (drafted(tokens=[], stats=GenerationStats(n_prompt=3)), "0 tokens"),
    ],
    ids=["gain", "unknown gain", "no drafts", "plain", "no tokens"],
)
def test_closing_line(completion: Any, line: str) -> None:
    assert closing_line(completion) == line


def test_a_verbose_closing_line_tells_drafters_apart() -> None:
    both = {"ngram": SourceStats([5, 3], [4, 0]), "layer-skip": SourceStats([4], [2])}
    completion = drafted(stats=stats(sources=both))
    line = closing_line(completion, verbose=True)
    assert line == closing_line(completion) + (
        " · 4 of 8 from ngram, 2 of 4 from layer-skip · 2.50 tokens per full pass"
    )


def test_closing_line_with_comparison() -> None:
    line = closing_line(drafted(), plain())
    assert "2.00x plain decoding (measured, 30.0 tokens/s)" in line and "about" not in line
    assert line.endswith(" · same text")


def test_closing_line_of_a_short_text_says_nothing_about_speed() -> None:
    """Unless it is asked for."""
    short = drafted(stats=stats(n_generated=49), estimated_speedup=0.7)
    assert closing_line(short) == "49 tokens · 36 of 72 draft tokens accepted"
    assert "x plain" not in closing_line(short, plain())
    assert "takes 50 tokens" in closing_line(short, plain())
    assert "49.0 tokens/s · about 0.7x plain decoding" in closing_line(short, verbose=True)


@pytest.mark.parametrize(
    ("tokens", "first"),
    [([9, *range(1, 60)], 0), ([0, 1, 2, 9, *range(4, 60)], 3), ([0, 1], 2), ([*range(62)], 60)],
    ids=["at once", "inside", "shorter", "longer"],
)
def test_closing_line_names_the_first_different_token(tokens: list[int], first: int) -> None:
    line = closing_line(drafted(), plain(tokens=tokens))
    assert f"differ from token {first} on" in line
    assert "same text" not in line


# what the default controller has to say


def deciding(speed: float, drafts: bool) -> Auto:
    """An auto controller that expects this speed of drafting."""
    controller = make(table(plain_us=52_000))
    costs = controller.decision.costs
    best = Rule(3, 0.0, 2.7, 2.7 * costs.plain_us / speed)
    plain = Rule(0, 0.0, 1.0, costs.plain_us)
    controller.decision = Decision(best if drafts else plain, best, costs)
    return controller


@pytest.mark.parametrize("copied", [0, 12])
def test_only_a_verbose_closing_line_says_why_a_mask_was_not_used(copied: int) -> None:
    unused = stats(n_drafted=copied, n_copied=copied, n_accepted=copied // 2)
    completion = drafted(stats=unused, controller=deciding(0.934, False))
    assert "mask" not in closing_line(completion)
    assert closing_line(completion, verbose=True).endswith(
        "the mask was not used, because it would be slower here (0.93x); search for a better one "
        "with pyselfspec scan-layers"
    )


def test_closing_line_of_a_mask_that_was_used_says_nothing_of_it() -> None:
    used = drafted(controller=deciding(0.9, False))
    nothing = stats(n_drafted=0, n_accepted=0, n_steps=10)
    pays = drafted(stats=nothing, controller=deciding(1.2, False))
    for completion in (used, pays):
        assert "mask" not in closing_line(completion, verbose=True)


def test_explanations_come_with_changes_of_mind() -> None:
    completion = drafted(controller=deciding(1.3, False))
    explainer = Explainer(completion)
    assert explainer.lines() == []
    completion.controller = deciding(1.3, True)
    (start,) = explainer.lines()
    assert start.startswith(
        "step 24: drafting with extra passes is on: plain decoding takes 52 ms per token; drafting "
        "up to 3 tokens (14 ms each) and verifying them in one pass (up to "
    )
    assert start.endswith(" should take 40 ms per token, with 2.7 tokens from each pass")
    assert explainer.lines() == []

    completion.stats = stats(
        n_steps=34,
        n_generated=90,
        n_drafted=110,
        n_accepted=56,
        total_us=SECOND // 4 + 3 * SECOND,
        sources={"layer-skip": SourceStats([20], [12]), "ngram": SourceStats([10, 8], [5, 3])},
    )
    completion.controller = deciding(0.9, False)
    phase, stop = explainer.lines()
    assert phase == (
        "tokens 61 to 90: 10 passes, 10 from the full model, 12 of 20 from layer-skip, "
        "8 of 18 from ngram; 66.7 ms per token, plain 52 ms"
    )
    assert stop.startswith("step 34: drafting with extra passes is off: ")
    assert explainer.last_lines() == []  # no token since

    completion.stats = replace(
        completion.stats, n_steps=44, n_generated=100, total_us=SECOND // 4 + 4 * SECOND
    )
    (last,) = explainer.last_lines()
    assert last == (
        "tokens 91 to 100: 10 passes, 10 from the full model; 100 ms per token, plain 52 ms"
    )


def test_a_long_phase_is_told_in_parts() -> None:
    completion = drafted(controller=deciding(1.3, False))
    explainer = Explainer(completion)
    completion.stats = stats(n_generated=60 + N_PHASE - 1)
    assert explainer.lines() == []
    completion.stats = stats(n_generated=60 + N_PHASE)
    assert len(explainer.lines()) == 1
    assert explainer.lines() == []


def test_a_text_without_drafts_is_explained_at_its_end() -> None:
    explainer = Explainer(drafted(controller=deciding(0.9, False)))
    assert explainer.lines() == []
    (why,) = explainer.last_lines()
    assert why.startswith("step 24: drafting with extra passes is off: plain decoding takes 52 ms ")


def test_other_controllers_have_nothing_to_explain() -> None:
    explainer = Explainer(drafted())
    assert explainer.lines() == explainer.last_lines() == []
