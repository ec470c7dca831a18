"""Regular expressions over the text of JSON strings, as GBNF."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..grammar import N_TIMES
from .letters import LAST, Ranges, complement, letters, one_letter, union

N_GROUPS = 50  # nested

_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANK: Ranges = ((9, 13), (32, 32))
_SPACE = union(  # Unicode's
    [
        *_BLANK, (28, 31), (133, 133), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A),
        (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
    ]
)  # fmt: skip
_KINDS = {  # \s and \S leave out what dialects disagree about
    "d": _DIGIT, "D": complement(_DIGIT), "w": _WORD, "W": complement(_WORD),
    "s": _BLANK, "S": complement(_SPACE),
}  # fmt: skip
_LINE = complement(((10, 10), (13, 13), (0x2028, 0x2029)))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_COUNT = re.compile(r"\{(\d{1,9})(?:(,)(\d{0,9}))?\}")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")


class PatternError(ValueError):
    """A pattern that is wrong, or cannot become a grammar; the message is the reason."""


def pattern_to_gbnf(pattern: str, name: Callable[[str], str], most: int = N_TIMES) -> str:
    """Return GBNF for the inside of JSON strings whose text matches a pattern anywhere.

    name: adds a rule and returns its name. most: larger upper bounds of repetitions are left out.

    Raises PatternError.
    """
    return _Reader(pattern, name, most).whole()


class _Reader:
    """Reads a pattern once, from left to right."""

    def __init__(self, pattern: str, name: Callable[[str], str], most: int) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._name = name
        self._most = most

    def whole(self) -> str:
        """Return the GBNF of the whole pattern, whose alternatives may each have anchors."""
        choices = []
        while True:
            anchored = self._takes("^")
            found = self._sequence()
            before = "" if anchored else "char* "
            choices.append(before + found + ("" if self._takes("$") else " char*"))
            if self._at == len(self._text):
                return " | ".join(choices)
            if not self._takes("|"):
                raise PatternError(self._fault())

    def _fault(self) -> str:
        rest = self._text[self._at : self._at + 10]
        return f"character {self._at}, {rest!r}, is not supported there"

    def _takes(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _next(self) -> str:
        if self._at == len(self._text):
            raise PatternError("it ends in the middle of an expression")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> str:
        choices = [self._sequence()]
        while self._takes("|"):
            choices.append(self._sequence())
        return " | ".join(choices)

    def _sequence(self) -> str:
        items = []
        while self._at < len(self._text) and self._text[self._at] not in "|)^$":
            items.append(self._atom() + self._times())
        return " ".join(items) or '""'

    def _atom(self) -> str:
        """Return the name of a rule, or a group."""
        sign = self._next()
        if sign == "(":
            return self._group()
        if sign == ".":
            return self._one_of(_LINE)
        if sign == "[":
            return self._one_of(self._class())
        if sign == "\\":
            return self._one_of(self._escaped())
        if sign in "*+?":
            self._at -= 1
            raise PatternError(self._fault())
        return one_letter(sign)

    def _one_of(self, ranges: Ranges) -> str:
        if _is_single(ranges):
            return one_letter(chr(ranges[0][0]))
        gbnf = letters(ranges)
        if not gbnf:
            raise PatternError("a class of characters in it has none that JSON can write")
        return self._name(gbnf)

    def _group(self) -> str:
        if self._takes("?") and not self._takes(":"):
            self._at -= 2
            raise PatternError(self._fault())
        self._depth += 1
        if self._depth > N_GROUPS:
            raise PatternError(f"it nests more than {N_GROUPS} groups")
        inside = self._alternatives()
        if not self._takes(")"):
            at_end = self._at == len(self._text)
            raise PatternError("a group in it does not end" if at_end else self._fault())
        self._depth -= 1
        return f"({inside})"

    def _times(self) -> str:
        """Return the repetition that follows an atom; that it may be lazy changes nothing."""
        sign = self._text[self._at : self._at + 1]
        count = _COUNT.match(self._text, self._at)
        if sign and sign in "*+?":
            self._at += 1
            times = sign
        elif count:
            self._at = count.end()
            times = self._counted(int(count[1]), count[2] is not None, count[3])
        else:
            return ""
        self._takes("?")
        if self._text[self._at : self._at + 1] in ("*", "+", "?"):
            raise PatternError(self._fault())
        return times

    def _counted(self, low: int, is_range: bool, high: str | None) -> str:
        if low > N_TIMES:
            raise PatternError(f"it asks for {low} repetitions, at most {N_TIMES} are supported")
        if not is_range:
            return f"{{{low}}}"
        if high and int(high) < low:
            raise PatternError(f"it counts from {low} up to {high}")
        return f"{{{low},{high if high and int(high) <= max(low, self._most) else ''}}}"

    def _class(self) -> Ranges:
        """Return the characters of a class, from after its opening bracket on."""
        is_negative = self._takes("^")
        parts: list[tuple[int, int]] = []
        while not self._takes("]"):
            first = self._member()
            sign, after = (
                self._text[self._at : self._at + 1],
                self._text[self._at + 1 : self._at + 2],
            )
            if sign == "-" and after != "]" and _is_single(first):
                self._at += 1
                last = self._member()
                if not _is_single(last) or last < first:
                    raise PatternError("a range in a class of characters is wrong")
                parts.append((first[0][0], last[0][1]))
            else:
                parts.extend(first)
        found = union(parts)
        return complement(found) if is_negative else found

    def _member(self) -> Ranges:
        sign = self._next()
        if sign == "\\":
            return ((8, 8),) if self._takes("b") else self._escaped()
        return ((ord(sign), ord(sign)),)

    def _escaped(self) -> Ranges:
        """Return the characters that an escape stands for, from after its backslash on."""
        start = self._at
        sign = self._next()
        if sign in _KINDS:
            return _KINDS[sign]
        if found := _HEX.match(self._text, start):
            self._at = found.end()
            code = int(found[1] or found[2] or found[3], 16)
        elif sign in _CONTROLS:
            code = _CONTROLS[sign]
        elif sign.isalnum() and sign.isascii():  # a backward reference, \b, \p and the like
            self._at = start - 1
            raise PatternError(self._fault())
        else:
            code = ord(sign)
        if code > LAST:
            raise PatternError("it has an escape for no character")
        return ((code, code),)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
