"""Which models were made to chat: those whose chat template tells apart who speaks. Pure."""

from __future__ import annotations

import re

KEY = "tokenizer.chat_template"  # of GGUF files
_ROLE = re.compile(r"\brole\b")


def tells_speakers_apart(template: object) -> bool:
    """Whether this is a template that shows who said what; one that does not only joins texts."""
    return isinstance(template, str) and _ROLE.search(template) is not None
