"""Texts that no repetition reaches across, for DRY: which of them llama.cpp can take."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ArgumentError

N_BREAKERS = 64  # llama.cpp compares each with the whole vocabulary
N_BREAKER = 40  # bytes; llama.cpp cuts longer ones


def require_breakers(breakers: Sequence[str]) -> None:
    """Raise ArgumentError for texts that llama.cpp's DRY would cut or leave out."""
    if len(breakers) > N_BREAKERS:
        raise ArgumentError(
            f"dry_sequence_breakers is at most {N_BREAKERS} texts, got {len(breakers)}"
        )
    for each in breakers:
        try:
            n_bytes = len(each.encode())
        except UnicodeEncodeError:  # half a character
            n_bytes = 0
        if not 0 < n_bytes <= N_BREAKER or "\0" in each:
            raise ArgumentError(
                f"dry_sequence_breakers is texts of 1 to {N_BREAKER} bytes without NUL, "
                f"got {each[: 2 * N_BREAKER]!r}"
            )
