"""Ways to compute attention and to store K and V, as keywords of a context."""

from __future__ import annotations

from typing import Any

ATTENTIONS: dict[str, dict[str, Any]] = {
    "flash": {"flash_attn": True},
    "no flash": {"flash_attn": False},
    "f32": {"type_k": "f32", "type_v": "f32"},
    "bf16": {"type_k": "bf16", "type_v": "bf16"},
    "q8_0": {"type_k": "q8_0", "type_v": "q8_0"},
    "q4_0": {"type_k": "q4_0", "type_v": "q4_0"},
    "mixed": {"flash_attn": True, "type_k": "q5_1", "type_v": "iq4_nl"},
    "K alone, no flash": {"flash_attn": False, "type_k": "q8_0", "type_v": "bf16"},
}
