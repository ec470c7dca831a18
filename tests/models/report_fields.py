"""The fields that `generate --json` promises."""

from __future__ import annotations

# What the issue promises for --json; more is welcome.
FIELDS = {
    "text", "tokens", "n_prompt", "n_generated", "n_steps", "n_drafted", "n_accepted",
    "prefill_us", "draft_us", "verify_us", "total_us", "tokens_per_second", "acceptance_rate",
    "draft", "mask", "model", "build",
}  # fmt: skip
