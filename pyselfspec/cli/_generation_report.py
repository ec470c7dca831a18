"""Reports on completions: an object for JSON, the closing line, explanations. Prints nothing."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from typing import Any

from ..runtime.context import Context
from ..speculate.completion import Completion
from ..speculate.controllers import Decision, explain
from ..speculate.residual import RESIDUAL
from ..speculate.stats import SourceStats
from ..util import build

N_PHASE = 64  # tokens per line of an explanation
N_TIMED = 50  # tokens of the shortest text whose speed says anything


def report(completion: Completion, model: str, plain: Completion | None = None) -> dict[str, Any]:
    """Return everything about a completion; with the plain run, also how the two compare.

    model: name by which the model was opened.
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
    """Return the tokens per second over those of the plain run, None if either is unknown."""
    fast, slow = completion.stats.tokens_per_second, plain.stats.tokens_per_second
    return fast / slow if fast and slow else None


def full_context(context: Context) -> str:
    """Return the line for a text that has filled its context."""
    more = "give a larger -c"
    if context.n_ctx >= context.model.n_ctx_train:
        more = "the model was trained with no more"
    return f"the context of {context.n_ctx} tokens is full; {more}"


def closing_line(
    completion: Completion, plain: Completion | None = None, *, verbose: bool = False
) -> str:
    """Return one line: tokens, speed, accepted draft tokens, and the comparison with a plain run.

    verbose: also the speed of short texts, draft tokens by drafter, tokens per pass, and why a mask
        is not used.
    """
    n = completion.stats.n_generated
    parts = ["1 token" if n == 1 else f"{n} tokens"]
    if verbose or n >= N_TIMED:
        parts += [_speed(completion.stats.tokens_per_second), *_gain(completion, plain)]
    elif plain is not None:
        parts.append(f"too short to compare speeds, which takes {N_TIMED} tokens")
    parts += _drafts(completion)
    if verbose and completion.draft is not None:
        parts += _details(completion)
    if plain is not None:
        ours, theirs = completion.tokens, plain.tokens
        if ours == theirs:
            parts.append("same text")
        elif completion.config.verify == RESIDUAL and not completion.sampling.is_greedy:
            parts.append("another text of the same distribution")
        else:
            pairs = enumerate(zip(ours, theirs, strict=False))
            shorter = min(len(ours), len(theirs))
            fork = next((i for i, (our, their) in pairs if our != their), shorter)
            parts.append(f"texts differ from token {fork} on (see docs/limits.md)")
    return " · ".join(parts)


def _gain(completion: Completion, plain: Completion | None) -> list[str]:
    """Return the speed-up over plain decoding, measured or estimated."""
    if plain is not None:
        ratio, plain_speed = speedup(completion, plain), _speed(plain.stats.tokens_per_second)
        return [] if ratio is None else [f"{ratio:.2f}x plain decoding (measured, {plain_speed})"]
    estimate = completion.estimated_speedup
    return [] if estimate is None else [f"about {estimate:.1f}x plain decoding"]


def _drafts(completion: Completion) -> list[str]:
    stats = completion.stats
    if stats.n_drafted:
        return [f"{stats.n_accepted} of {stats.n_drafted} draft tokens accepted"]
    return ["nothing was drafted"] if completion.draft is not None and stats.n_generated else []


def _details(completion: Completion) -> list[str]:
    stats, parts = completion.stats, []
    if len(stats.sources) > 1:
        accepted = ((name, each.n_accepted, each.n_drafted) for name, each in stats.sources.items())
        parts.append(", ".join(f"{n} of {of} from {name}" for name, n, of in accepted))
    if stats.n_drafted and stats.tokens_per_step is not None:
        parts.append(f"{stats.tokens_per_step:.2f} tokens per full pass")
    decision = explain(completion.controller)
    expected = None if decision is None else decision.speedup
    is_idle = completion.mask is not None and stats.n_drafted <= stats.n_copied
    if is_idle and expected is not None and expected < 1:
        parts.append(
            f"the mask was not used, because it would be slower here ({expected:.2f}x); search for "
            "a better one with pyselfspec scan-layers"
        )
    return parts


class Explainer:
    """Explains where the tokens of each phase come from and how long they take, and when and why
    drafting with passes starts or stops."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._decision = explain(completion.controller)
        self._began = deepcopy(completion.stats)  # statistics at the start of the phase
        self._said_reason = False

    def lines(self) -> list[str]:
        """Return the lines for the changes since the last call."""
        lines, before, now = [], self._decision, explain(self._completion.controller)
        if before is not None and now is not None and before.drafts != now.drafts:
            self._decision = now
            lines = self._reason(now)
        n_tokens = self._completion.stats.n_generated - self._began.n_generated
        if lines or n_tokens >= N_PHASE:
            return self._phase() + lines
        return []

    def last_lines(self) -> list[str]:
        """Return the remaining lines after the last token."""
        decision = explain(self._completion.controller)
        reason = [] if decision is None or self._said_reason else self._reason(decision)
        return self._phase() + reason

    def _reason(self, decision: Decision) -> list[str]:
        self._said_reason = True
        costs, rule = decision.costs, decision.best
        if rule is None:
            return []
        n = "1 token" if rule.n_max == 1 else f"{rule.n_max} tokens"
        return [
            f"step {self._completion.stats.n_steps}: drafting with extra passes is "
            f"{'on' if decision.drafts else 'off'}: plain decoding takes {_ms(costs.plain_us)} per "
            f"token; drafting up to {n} ({_ms(costs.token_us)} each) and verifying them in one "
            f"pass (up to {_ms(costs.verify_us[rule.n_max])}) should take {_ms(1 / rule.speed)} "
            f"per token, with {rule.tokens:.1f} tokens from each pass"
        ]

    def _phase(self) -> list[str]:
        """Return a line about the tokens since the last phase, and start a new phase."""
        began, now = self._began, self._completion.stats
        self._began = deepcopy(now)
        n_tokens, n_steps = now.n_generated - began.n_generated, now.n_steps - began.n_steps
        if not n_tokens:
            return []
        n_own = n_tokens - (now.n_accepted - began.n_accepted)
        parts = [f"{n_own} from the full model"]
        for name, stats in now.sources.items():
            before = began.sources.get(name, SourceStats())
            n_drafted = stats.n_drafted - before.n_drafted
            if n_drafted:
                parts.append(f"{stats.n_accepted - before.n_accepted} of {n_drafted} from {name}")
        us = (now.total_us - now.prefill_us) - (began.total_us - began.prefill_us)
        line = f"tokens {began.n_generated + 1} to {now.n_generated}: {n_steps} passes, "
        line += f"{', '.join(parts)}; {_ms(us / n_tokens)} per token"
        decision = explain(self._completion.controller)
        plain = "" if decision is None else f", plain {_ms(decision.costs.plain_us)}"
        return [line + plain]


def _ms(us: float) -> str:
    return f"{us / 1000:.3g} ms"


def _fields(completion: Completion, model: str) -> dict[str, Any]:
    mask, sampling = completion.mask, completion.sampling
    return {
        "text": completion.text,
        "tokens": completion.tokens,
        **completion.stats.to_dict(),
        "finish_reason": completion.finish_reason,
        "draft": completion.draft or "off",
        "verify": completion.config.verify,
        "controller": type(completion.controller).__name__.lower(),
        "mask": None if mask is None else mask.to_dict(),
        "sampling": asdict(sampling)
        | {
            "logit_bias": [list(pair) for pair in sampling.logit_bias],
            "dry_sequence_breakers": [*sampling.dry_sequence_breakers],
        },
        "model": model,
        "build": build.BUILD_ID,
    }


def _speed(tokens_per_second: float | None) -> str:
    return "- tokens/s" if tokens_per_second is None else f"{tokens_per_second:.1f} tokens/s"
