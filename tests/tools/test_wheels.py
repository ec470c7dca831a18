"""Faults that tools/wheels.py finds; the tool itself builds for minutes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pyselfspec.runtime import processor
from tools import wheels

TOO_OLD = "status 1: Error: it needs a processor with sse4_2, which this one lacks; sorry"


def said(**changes: Any) -> dict[str, Any]:
    model = {"exact_width": 16, "same_at_widths": True, "accepted": 9, "wrong": [], "digest": "ab"}
    return {"variant": "haswell", "models": {"q8_0": model | changes}}


def test_nothing_is_wrong() -> None:
    assert wheels.faults(said(), "haswell") == []
    assert wheels.faults(TOO_OLD, None) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"wrong": ["ngram at 0.8"]}, "q8_0: ngram at 0.8 differs"),
        ({"same_at_widths": False}, "q8_0: bits depend on the width"),
        ({"accepted": 0}, "q8_0: nothing was drafted"),
    ],
)
def test_a_broken_promise_is_found(changes: dict[str, Any], fault: str) -> None:
    assert wheels.faults(said(**changes), "haswell") == [fault]


def test_without_a_promise_bits_may_differ() -> None:
    changes = {"exact_width": 0, "same_at_widths": False, "wrong": ["ngram at 0.0"]}
    assert wheels.faults(said(**changes), "haswell") == []
    assert "(bits differ) (text differs)" in wheels.line("here", said(**changes))


@pytest.mark.parametrize("crash", ["status -4: nothing said", "status 1: ImportError: numpy"])
def test_a_crash_is_no_sentence(crash: str) -> None:
    assert wheels.faults(crash, None) == wheels.faults(crash, "sse42") == [crash]


def test_another_variant_than_expected() -> None:
    assert wheels.faults(said(), "sse42") == ["chose haswell, not sse42"]
    assert wheels.faults(said(), None) == ["chose haswell, not None"]
    assert wheels.faults(TOO_OLD, "sse42") == [TOO_OLD]


def test_probes_know_what_this_build_is() -> None:
    """One that ran here says which variant it was; one that cannot run says why."""
    name = processor.variant(processor.cpu_backend())
    assert name in wheels.probed([sys.executable], "variants")
    assert wheels.probed([sys.executable], "texts", variant=name)["variant"] == name
    assert "PYSELFSPEC_CPU is 'none'" in wheels.probed([sys.executable], "texts", variant="none")
