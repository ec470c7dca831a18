"""Grammars (GBNF): which of them may be compiled."""

from __future__ import annotations

import re

N_GRAMMAR = 1 << 20  # characters
N_ELEMENTS = 1 << 19  # of a grammar whose repetitions are written out
N_RULE = 16  # elements that take as much memory as a rule of its own
N_NAME = 1024  # characters of a rule's name
N_TIMES = 2000  # llama.cpp takes a larger upper bound for none
DEPTH_MAX = 1000  # llama.cpp's parser recurses without a limit

_LEXEME = re.compile(
    r"""
      "(?P<literal>(?:\\.|[^"\\])*)"
    | \[(?P<characters>(?:\\.|[^]\\])*)\]
    | (?P<name>[a-zA-Z0-9-]+)
    | (?P<sign>[*+?])
    | \{\s*(?P<low>\d+)\s*(?:(?P<comma>,)\s*(?P<high>\d*)\s*)?\}
    | \#[^\r\n]*
    | (?P<other>[().<>!])
    """,
    re.VERBOSE | re.DOTALL,
)


def fault(grammar: str) -> str | None:
    """Return why a GBNF text must not be compiled; None for one that llama.cpp's parser can take.

    Only errors that the parser misses, or that would end the process, are searched for.
    """
    if not grammar.strip() or "\0" in grammar:
        return "it is empty or holds a NUL character"
    if not grammar.isascii() and any("\ud800" <= each <= "\udfff" for each in grammar):
        return "it holds half a character (a lone surrogate)"
    if len(grammar) > N_GRAMMAR:
        return f"it has {len(grammar)} characters, {N_GRAMMAR} are allowed"
    depth = deepest = n_elements = size = 0
    for found in _LEXEME.finditer(grammar):
        if found["sign"] or found["low"]:
            low, high = _times(found)
            if high is not None and high < low:
                return f"it counts from {low} up to {high}"
            n_more = 1 if high is None else high - low
            n_elements += low * size + n_more * (size + N_RULE)
            size = low * size + (n_more > 0)
        else:
            size = _size(found)
            n_elements += size
            depth += (found["other"] == "(") - (found["other"] == ")")
            deepest = max(deepest, depth)
        if n_elements > N_ELEMENTS:
            return f"its repetitions, written out, have more than {N_ELEMENTS} elements"
        if len(found["name"] or "") > N_NAME:
            return f"the name of a rule has more than {N_NAME} characters"
    if deepest > DEPTH_MAX:
        return f"it nests {deepest} deep, {DEPTH_MAX} is allowed"
    return None


def _times(found: re.Match[str]) -> tuple[int, int | None]:
    """Return the least and the most times that a repetition repeats; None for no limit."""
    if found["sign"]:
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[found["sign"]]
    low = min(int(found["low"][:9]), N_ELEMENTS)
    if not found["comma"]:
        return low, low
    high = int(found["high"][:9]) if found["high"] else None
    return low, None if high is None or high > N_TIMES else high


def _size(found: re.Match[str]) -> int:
    """Return the number of elements that a repetition after this lexeme would repeat."""
    text = found["literal"] or found["characters"]
    return 1 if text is None else len(text)
