"""What a finished completion has to say: one JSON-ready object, one line for people. Prints
nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ._lib import BUILD_ID
from .completion import Completion


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
    if completion.draft != "off":
        rate = stats.acceptance_rate
        share = "" if rate is None else f" ({rate:.0%})"
        parts.append(f"{stats.n_drafted} drafted, {stats.n_accepted} accepted{share}")
        if stats.tokens_per_step is not None:
            parts.append(f"{stats.tokens_per_step:.2f} tokens per full pass")
    if plain is not None:
        ratio = speedup(completion, plain)
        if ratio is not None:
            plain_speed = _speed(plain.stats.tokens_per_second)
            parts.append(f"{ratio:.2f}x plain decoding (measured, {plain_speed})")
        parts.append(_sameness(completion.tokens, plain.tokens))
    return " · ".join(parts)


def _fields(completion: Completion, model: str) -> dict[str, Any]:
    mask = completion.mask
    return {
        "text": completion.text,
        "tokens": completion.tokens,
        **completion.stats.to_dict(),
        "finish_reason": completion.finish_reason,
        "draft": completion.draft,
        "mask": None if mask is None else mask.to_dict(),
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
