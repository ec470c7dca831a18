"""The bench that tells near-ties from faults, with kernels of either kind."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from command_line import strict_json

from pyselfspec import LayerMask
from pyselfspec.speculate import types
from tools.bench import divergence

MASK = LayerMask.early_exit(4, 2)


def texts(drafted: str, replayed: str) -> divergence.Texts:
    return divergence.Texts(tuple(b"abcd"), tuple(drafted.encode()), tuple(replayed.encode()), 0)


def test_texts_diverge_at_the_first_difference() -> None:
    assert texts("abcd", "abcd").diverges_at is None
    assert texts("abXd", "abXd").diverges_at == 2
    assert texts("Xbcd", "Xbcd").diverges_at == 0


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_replays_agree_whatever_the_kernels_do(
    temp: float, tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(tiny(qtype="Q8_0", late_scale=0.3))
    found = divergence.compare(context, MASK, [token_ids(9, seed) for seed in range(3)], temp, 24)
    assert found["n_as_replayed"] == found["n_texts"] == 3
    assert found["n_accepted"] > 0
    assert all(0 <= each["at"] < 24 for each in found["diverged"])


def test_the_gap_is_between_the_two_tokens(tiny: Any, new_context: Any, token_ids: Any) -> None:
    context, prompt = new_context(tiny()), token_ids(9)
    context.prefill(prompt[:-1])
    best, _ = (context.decode(prompt[-1:]), context.argmax(0))[1]
    other = best - 1
    row = context.decode([best]).logits[0]
    next_best = int(row.argmax())
    made = divergence.Texts((best, next_best), (best, other), (best, other), 0)
    gap = divergence.gap_at(context, prompt, made, 1)
    assert gap == pytest.approx(row[next_best] - row[other]) and gap > 0


def test_a_draft_that_reaches_the_text_fails(
    tiny_path: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A replay that is told of other tokens gives another text."""
    path, out = tiny_path(qtype="Q8_0", late_scale=0.3), tmp_path / "results.jsonl"
    arguments = [str(path), "-t", "1", "--tokens", "16", "--exit-layer", "2", "--out", str(out)]
    good = CliRunner().invoke(divergence.command, arguments)
    assert good.exit_code == 0, good.output
    assert "| 3 of 3 |" in good.output
    assert strict_json(out.read_text())["bench"] == "divergence"

    class Deaf(divergence.Replay):
        def draft(self, history: Any, limit: Any) -> Any:
            return types.Draft()

    def shifted(*args: Any) -> Any:
        steps = real(*args)
        return steps[:-1] if isinstance(args[2], Deaf) else steps

    real = divergence.run
    monkeypatch.setattr(divergence, "Replay", Deaf)
    monkeypatch.setattr(divergence, "run", shifted)
    bad = CliRunner().invoke(divergence.command, arguments)
    assert bad.exit_code == 1
    assert "drafting has reached the text" in bad.output
