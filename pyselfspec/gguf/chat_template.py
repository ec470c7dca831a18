"""Recognize chat models by their chat template, which distinguishes the roles. Pure."""

from __future__ import annotations

import re

KEY = "tokenizer.chat_template"  # of GGUF files
_ROLE = re.compile(r"\brole\b")


def tells_speakers_apart(template: object) -> bool:
    """Return whether a template uses the roles of messages; one that does not only joins texts."""
    return isinstance(template, str) and _ROLE.search(template) is not None
