"""The tool that tells forks from faults, on models where widths matter and where they do not."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from command_line import strict_json

import forks
from pyselfspec import LayerMask
from pyselfspec.speculate import types

MASK = LayerMask.early_exit(4, 2)


def texts(drafted: str, replayed: str) -> forks.Texts:
    return forks.Texts(tuple(b"abcd"), tuple(drafted.encode()), tuple(replayed.encode()), 0)


def test_a_fork_is_the_first_difference() -> None:
    assert texts("abcd", "abcd").fork is None
    assert texts("abXd", "abXd").fork == 2
    assert texts("Xbcd", "Xbcd").fork == 0


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_replays_agree_whatever_the_kernels_do(
    temp: float, tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(tiny(qtype="Q8_0", late_scale=0.3))
    found = forks.compare(context, MASK, [token_ids(9, seed) for seed in range(3)], temp, 24)
    assert found["n_as_replayed"] == found["n_texts"] == 3
    assert found["n_accepted"] > 0
    assert all(0 <= fork["at"] < 24 for fork in found["forks"])


def test_the_gap_is_between_the_two_tokens(tiny: Any, new_context: Any, token_ids: Any) -> None:
    context, prompt = new_context(tiny()), token_ids(9)
    context.prefill(prompt[:-1])
    best, _ = (context.decode(prompt[-1:]), context.argmax(0))[1]
    other = best - 1
    row = context.decode([best]).logits[0]
    next_best = int(row.argmax())
    made = forks.Texts((best, next_best), (best, other), (best, other), 0)
    gap = forks.gap_at(context, prompt, made, 1)
    assert gap == pytest.approx(row[next_best] - row[other]) and gap > 0


def test_a_draft_that_reaches_the_text_fails(
    tiny_path: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A replay that is told of other tokens gives another text."""
    path, out = tiny_path(qtype="Q8_0", late_scale=0.3), tmp_path / "forks.jsonl"
    arguments = [str(path), "-t", "1", "--tokens", "16", "--exit-layer", "2", "--out", str(out)]
    good = CliRunner().invoke(forks.main, arguments)
    assert good.exit_code == 0, good.output
    assert "3 of 3 are what their passes give" in good.output
    assert strict_json(out.read_text())["bench"] == "forks"

    class Deaf(forks.Replay):
        def draft(self, history: Any, limit: Any) -> Any:
            return types.Draft()

    def shifted(*args: Any) -> Any:
        steps = real(*args)
        return steps[:-1] if isinstance(args[2], Deaf) else steps

    real = forks.run
    monkeypatch.setattr(forks, "Replay", Deaf)
    monkeypatch.setattr(forks, "run", shifted)
    bad = CliRunner().invoke(forks.main, arguments)
    assert bad.exit_code == 1
    assert "drafting has reached the text" in bad.output
