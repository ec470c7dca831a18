"""What a finished completion has to say: one JSON-ready object, one line for people. Prints
nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..util.build import BUILD_ID
from .completion import Completion
from .controllers import Decision, explain


def report(completion: Completion, model: str, plain: Completion | None = None) -> dict[str, Any]:
    """Everything about a completion; with the plain run beside it, also what the comparison shows.

    model: the name under which the model was opened.
    """
    fields = _fields(completion, model)
    if plain is not None:
        fields |= {
            "plain": _fields(plain, model),
            "identical": completion.tokens == plain.tokens,
            "speedup": speedup(completion, plain),
        }
    return fields


def speedup(completion: Completion, plain: Completion) -> float | None:
    """Tokens per second over those of the plain run."""
    fast, slow = completion.stats.tokens_per_second, plain.stats.tokens_per_second
    return fast / slow if fast and slow else None


def closing_line(completion: Completion, plain: Completion | None = None) -> str:
    """Tokens, speed, drafted, accepted, tokens per full pass, and the comparison when it was
    made."""
    stats = completion.stats
    tokens = "1 token" if stats.n_generated == 1 else f"{stats.n_generated} tokens"
    parts = [tokens, _speed(stats.tokens_per_second)]
    decision = _decision(completion)
    if decision is not None and stats.n_drafted == 0 and decision.speedup < 1:
        parts.append(
            f"speculation off: {_what_drafts(completion)} would be {decision.speedup:.2f}x on this "
            "machine (see pyselfspec calibrate)"
        )
    elif completion.draft is not None:
        rate = stats.acceptance_rate
        share = "" if rate is None else f" ({rate:.0%})"
        parts.append(f"{stats.n_drafted} drafted, {stats.n_accepted} accepted{share}")
        if stats.tokens_per_step is not None:
            parts.append(f"{stats.tokens_per_step:.2f} tokens per full pass")
    if completion.adaptation is not None:
        trials = completion.adaptation.summary()
        parts.append(f"{trials['n_tried']} masks tried, {trials['n_changes']} taken over")
    if plain is not None:
        ratio = speedup(completion, plain)
        if ratio is not None:
            plain_speed = _speed(plain.stats.tokens_per_second)
            parts.append(f"{ratio:.2f}x plain decoding (measured, {plain_speed})")
        parts.append(_sameness(completion.tokens, plain.tokens))
    return " · ".join(parts)


def _decision(completion: Completion) -> Decision | None:
    return explain(completion.controller)


def _what_drafts(completion: Completion) -> str:
    return "drafting" if completion.mask is None else "the best mask known for this model"


class Explainer:
    """Says when and why a controller begins or ends drafting, what came of it, and when
    another mask is taken over. At the end, what came of the last phase, or why there was no
    drafting."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._decision = _decision(completion)
        self._mask = completion.mask
        self._began = (0, 0, 0)  # steps, tokens, microseconds

    def lines(self) -> list[str]:
        """What has changed since the last call."""
        return self._new_mask() + self._new_decision()

    def _new_mask(self) -> list[str]:
        mask = self._completion.mask
        if mask is None or mask == self._mask:
            return []
        self._mask = mask
        return [
            f"step {self._completion.stats.n_steps}: a better mask, skips {len(mask.skip_attn)} "
            f"attention, {len(mask.skip_ffn)} feed-forward parts"
        ]

    def _new_decision(self) -> list[str]:
        before, now = self._decision, _decision(self._completion)
        if before is None or now is None or before.drafts == now.drafts:
            return []
        lines = [*self._phase(), f"step {self._completion.stats.n_steps}: {_reason(now)}"]
        self._decision = now
        self._began = self._so_far()
        return lines

    def last_lines(self) -> list[str]:
        """What is left to say after the last token."""
        decision = _decision(self._completion)
        if decision is None or self._began[0]:
            return self._phase()
        return [f"step {self._completion.stats.n_steps}: {_reason(decision)}"]

    def _phase(self) -> list[str]:
        """What came of the last decision, beside what it promised."""
        decision, began, now = self._decision, self._began, self._so_far()
        n_tokens = now[1] - began[1]
        if decision is None or not began[0] or not n_tokens:
            return []
        return [
            f"steps {began[0]} to {now[0]}: {_ms((now[2] - began[2]) / n_tokens)} per token, "
            f"{_ms(decision.us_per_token)} predicted"
        ]

    def _so_far(self) -> tuple[int, int, int]:
        stats = self._completion.stats
        return stats.n_steps, stats.n_generated, stats.total_us - stats.prefill_us


def _reason(decision: Decision) -> str:
    costs, rule = decision.costs, decision.best
    return (
        f"plain {_ms(costs.plain_us)}, draft up to {rule.n_max} x {_ms(costs.token_us)} + verify "
        f"up to {_ms(costs.verify_us[rule.n_max])} for {rule.tokens:.1f} expected tokens → "
        f"{_ms(1 / rule.speed)} per token, {'drafting' if decision.drafts else 'plain'}"
    )


def _ms(us: float) -> str:
    return f"{us / 1000:.3g} ms"


def _fields(completion: Completion, model: str) -> dict[str, Any]:
    mask = completion.mask
    return {
        "text": completion.text,
        "tokens": completion.tokens,
        **completion.stats.to_dict(),
        "finish_reason": completion.finish_reason,
        "draft": completion.draft or "off",
        "controller": type(completion.controller).__name__.lower(),
        "mask": None if mask is None else mask.to_dict(),
        "adapt": None if completion.adaptation is None else completion.adaptation.summary(),
        "sampling": asdict(completion.sampling),
        "model": model,
        "build": BUILD_ID,
    }


def _speed(tokens_per_second: float | None) -> str:
    return "- tokens/s" if tokens_per_second is None else f"{tokens_per_second:.1f} tokens/s"


def _sameness(tokens: list[int], plain: list[int]) -> str:
    if tokens == plain:
        return "same text"
    fork = next((i for i, (a, b) in enumerate(zip(tokens, plain, strict=False)) if a != b), None)
    at = min(len(tokens), len(plain)) if fork is None else fork
    return f"texts differ from token {at} on (see the README on widths)"
