"""JSON fields that responses of all endpoints share. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...masks.layer_mask import LayerMask
from ...speculate.stats import GenerationStats
from ..engine.jobs import Finished, Progress, TokenText

_STOP_REASONS = ("eog", "stop")  # of a Completion; OpenAI calls both "stop", all others "length"


def new_id(prefix: str, separator: str = "-") -> str:
    """Return a random id of a response."""
    return f"{prefix}{separator}{secrets.token_hex(12)}"


def utc_text(at: datetime) -> str:
    """Return a time in UTC as text."""
    return at.isoformat().replace("+00:00", "Z")


def finish_reason(finished: Finished) -> str:
    """Return OpenAI's name of the reason why a completion ended."""
    return "stop" if finished.reason in _STOP_REASONS else "length"


def usage(n_prompt: int, found: Sequence[Finished]) -> dict[str, Any]:
    """Return the field "usage". n_prompt: tokens of all prompts, each prompt counted once."""
    stats = [each.stats for each in found]
    n_generated = sum(each.n_generated for each in stats)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {
            "cached_tokens": min(n_prompt, sum(s.n_prompt_reused for s in stats))
        },
        "pyselfspec": statistics(found),
    }


def statistics(found: Sequence[Finished]) -> dict[str, Any]:
    """Return the sums of counts and times over all choices of a request."""
    total = GenerationStats()
    for each in found:
        total.add(each.stats)
    fields = total.to_dict()
    fields["draft"] = found[0].draft if found else None
    fields["us"] = fields["total_us"]
    fields["mask"] = mask_fields(found[0].mask) if found else None
    # estimated plain time over time taken; None if a choice has no estimate
    times = [each.stats.draft_us + each.stats.verify_us for each in found]
    plain = [
        us * each.estimated_speedup
        for us, each in zip(times, found, strict=True)
        if each.estimated_speedup is not None
    ]
    is_known = plain and len(plain) == len(found)
    fields["estimated_speedup"] = sum(plain) / sum(times) if is_known else None
    return fields


def mask_fields(mask: LayerMask | None) -> dict[str, Any] | None:
    """Return a mask as a JSON object."""
    if mask is None:
        return None
    return {
        "n_layer": mask.n_layer,
        "skip_attn": sorted(mask.skip_attn),
        "skip_ffn": sorted(mask.skip_ffn),
    }


def progress_fields(progress: Progress) -> dict[str, Any]:
    """Return the field in which llama-server tells how much of a prompt has been read."""
    fields = {
        "total": progress.n_prompt,
        "cache": progress.n_reused,
        "processed": progress.n_read,
        "time_ms": progress.us // 1000,
    }
    return {"prompt_progress": fields}


def token_fields(tokens: Sequence[TokenText], us: int) -> dict[str, Any]:
    """Return the tokens of a text with their sources, and the microseconds that they took."""
    return {"tokens": [[each.text, each.source] for each in tokens], "us": us}
