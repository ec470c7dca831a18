"""JSON numbers between bounds, as GBNF."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

N_DIGITS = 16  # before the point, where there is no upper bound
N_FRACTION = 10  # digits after the point that bounds are compared in
FRACTION = f'"." [0-9]{{1,{N_FRACTION}}}'


@dataclass(frozen=True, slots=True)
class Bound:
    """The smallest or the largest number that is allowed, or the first that is not."""

    value: Fraction
    is_strict: bool = False

    def up(self, scale: int = 1) -> int:
        """The smallest multiple of 1/scale that is allowed above it, times scale."""
        n = math.ceil(self.value * scale)
        return n + (self.is_strict and n == self.value * scale)

    def down(self, scale: int = 1) -> int:
        """The largest multiple of 1/scale that is allowed below it, times scale."""
        n = math.floor(self.value * scale)
        return n - (self.is_strict and n == self.value * scale)

    def negative(self) -> Bound:
        """The bound of the numbers with the other sign."""
        return Bound(-self.value, self.is_strict)


ZERO = Bound(Fraction(0))


def between(low: Bound | None, high: Bound | None, *, are_whole: bool) -> str:
    """Return GBNF for the numbers between two bounds, None for no bound; "" for none."""
    magnitudes = _whole if are_whole else _numbers
    choices = []
    if low is None or low.value < 0:
        top = None if low is None else low.negative()
        bottom = high.negative() if high is not None and high.value <= 0 else ZERO
        choices += [f'"-" ({found})' for found in magnitudes(bottom, top) if found]
    if high is None or high.value >= 0:
        bottom = low if low is not None and low.value >= 0 else ZERO
        choices += magnitudes(bottom, high)
    return " | ".join(choices)


def _limit(low: int) -> int:
    return int(10 ** max(N_DIGITS, len(str(low)) + 1)) - 1


def _whole(low: Bound, high: Bound | None) -> list[str]:
    """Return choices of GBNF for integers between bounds that are not negative."""
    first = low.up()
    return _integers(first, _limit(first) if high is None else high.down())


def _numbers(low: Bound, high: Bound | None) -> list[str]:
    """Return choices of GBNF for numbers between bounds that are not negative."""
    first = math.floor(low.value)
    last = _limit(first) if high is None else math.floor(high.value)
    choices = _integers(first + 1, last - 1 if high else last)
    choices = [f"({' | '.join(choices)}) ({FRACTION})?"] if choices else []
    for whole in sorted({first, last} if high else {first}):
        ends = _fractions(whole, low, high)
        choices += [f'"{whole}" ({" | ".join(ends)})'] if ends else []
    return choices


def _fractions(whole: int, low: Bound, high: Bound | None) -> list[str]:
    """Return choices of GBNF for what follows the integer part of a number between bounds."""
    choices = []
    for n_digits in range(N_FRACTION + 1):
        scale = 10**n_digits
        first = max(low.up(scale) - whole * scale, 0)
        last = min(scale - 1, high.down(scale) - whole * scale if high else scale - 1)
        if first <= last:
            point = '"." ' if n_digits else '""'
            a, b = (f"{end:0{n_digits}d}" if n_digits else "" for end in (first, last))
            choices.append(point + _digits(a, b))
    return choices


def _integers(first: int, last: int) -> list[str]:
    """Return choices of GBNF for the integers from first to last, neither negative."""
    choices = []
    for n in range(len(str(first)), len(str(last)) + 1):
        a, b = max(first, 10 ** (n - 1) if n > 1 else 0), min(last, 10**n - 1)
        if a <= b:
            choices.append(_digits(str(a), str(b)))
    return choices


def _digits(first: str, last: str) -> str:
    """Return GBNF for the numbers from first to last, all with as many digits."""
    if first == last:
        return f'"{first}"' if first else ""
    n = len(first) - 1
    a, b = int(first[0]), int(last[0])
    if a == b:
        return f'"{a}" {_digits(first[1:], last[1:])}'
    choices = []
    if n and first[1:] != "0" * n:
        choices.append(f'"{a}" {_digits(first[1:], "9" * n)}')
        a += 1
    if n and last[1:] != "9" * n:
        choices.append(f'"{b}" {_digits("0" * n, last[1:])}')
        b -= 1
    if a <= b:
        choices.append(f"[{a}-{b}]" + (f" [0-9]{{{n}}}" if n else ""))
    return f"({' | '.join(choices)})"
