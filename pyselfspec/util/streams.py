"""Standard streams that take any text, on every system."""

from __future__ import annotations

import sys
from typing import Any


def take_any_text(stream: Any, system: str = sys.platform) -> None:
    """Let a text stream write "?" for a character that its encoding lacks, instead of failing.

    On Windows, files and pipes get UTF-8: the encoding of the console, their default there, lacks
    most characters. system: as sys.platform.
    """
    if not hasattr(stream, "reconfigure"):
        return
    if system == "win32" and not stream.isatty():
        stream.reconfigure(encoding="utf-8")
    stream.reconfigure(errors="replace")
