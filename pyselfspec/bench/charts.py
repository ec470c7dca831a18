"""Charts of a benchmark, as geometry: what is where, in which colour. Pure; the report's template
draws it.

Colours are names of the template's. Coordinates are those of SVG, from the upper left corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from ..costs.table import N_WIDTH
from ..speculate.draft_names import SIGN
from .figures import ALL, Row, at_by_source, complete, overall, rows
from .sheets import short
from .types import PLAIN, Moment, Results, Run, Widths

OWN = "own"  # the colour of plain decoding and of the model's own tokens
SEVERAL = "several"  # the colour of drafters that are joined
COLOURS = ("one", "two", "three", "four", "five", "six")  # of drafters
N_POSITION = 12  # of a draft, shown at most
LEAST_DRAFTED = 8  # at a position, for its acceptance to be shown
N_TICK = 5
ROW, BAR, LANE = 26.0, 14.0, 84.0  # heights


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    dots: tuple[Dot, ...]
    colour: str
    label: str
    dashed: bool = False

    @property
    def points(self) -> str:
        return " ".join(f"{dot.x:.1f},{dot.y:.1f}" for dot in self.dots)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where in a picture figures go. x, y: the ranges of the figures."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    left: float = 46.0
    right: float = 12.0
    top: float = 10.0
    bottom: float = 40.0

    def at_x(self, value: float) -> float:
        low, high = self.x
        return self.left + (self.width - self.left - self.right) * (value - low) / (high - low)

    def at_y(self, value: float) -> float:
        low, high = self.y
        return (
            self.height
            - self.bottom
            - (self.height - self.top - self.bottom) * (value - low) / (high - low)
        )

    @property
    def floor(self) -> float:
        return self.height - self.bottom

    @property
    def end(self) -> float:
        return self.width - self.right


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over two axes."""

    frame: Frame
    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One way on one task. y: the middle. least, most: where the spread ends. speed: over plain."""

    y: float
    label: str
    box: Box
    least: float
    most: float
    value: str
    speed: str


@dataclass(frozen=True, slots=True)
class Group:
    """A task. y: of its name. plain: where plain decoding's bar ends."""

    y: float
    label: str
    bars: tuple[Bar, ...]
    plain: float


@dataclass(frozen=True, slots=True)
class Bars:
    width: float
    height: float
    left: float
    groups: tuple[Group, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of a text. colour: of whoever guessed it."""

    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One text in the making. y: of its floor. passes: a box for each; drafted: for what was
    guessed. end: where it is finished."""

    y: float
    label: str
    passes: tuple[Box, ...]
    drafted: tuple[Box, ...]
    end: float
    says: str


@dataclass(frozen=True, slots=True)
class Timeline:
    width: float
    height: float
    left: float
    prompt: str
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    best: str  # the way whose text is shown
    text: tuple[Piece, ...]  # without blank lines before it
    shares: tuple[tuple[str, str, int], ...]  # of its tokens: name, colour and number


def colours(results: Results) -> dict[str, str]:
    """Of every drafter, in the order in which they came."""
    names = dict.fromkeys(name for run in results.runs for name in run.sources)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def ticks(high: float, n: int = N_TICK) -> list[float]:
    """Round numbers from 0 up to the first that is no less than this.

    >>> ticks(37)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    raw = max(high, 1e-9) / n
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * (1 - 1e-9))
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


def bars(results: Results, width: float = 760.0) -> Bars | None:
    """Tokens per second by task and way; None where nothing can be compared."""
    found = rows(results)
    if not found:
        return None
    left, right, top = 150.0, 86.0, 4.0
    scale = ticks(max(row.tokens_per_second.most for row in found))
    frame = Frame(width, 1.0, (0.0, scale[-1]), (0.0, 1.0), left=left, right=right)
    groups, y = [], top
    for task in dict.fromkeys(row.task for row in found):
        of_task = [row for row in found if row.task == task]
        plain = next(row for row in of_task if row.way == PLAIN)
        name_y, y = y + 16.0, y + 24.0
        made = []
        for row in of_task:
            made.append(_bar(row, frame, y + ROW / 2, _way_colour(row.way, results)))
            y += ROW
        ends = frame.at_x(plain.tokens_per_second.median)
        groups.append(Group(name_y, "all tasks" if task == ALL else task, tuple(made), ends))
        y += 10.0
    marks = tuple(Tick(frame.at_x(value), short(value)) for value in scale)
    return Bars(width, y + 26.0, left, tuple(groups), marks)


def _bar(row: Row, frame: Frame, y: float, colour: str) -> Bar:
    speeds = row.tokens_per_second
    least, most = frame.at_x(speeds.least), frame.at_x(speeds.most)
    title = (
        f"{row.way}: {short(speeds.median)} tokens per second, {short(speeds.least)} to "
        f"{short(speeds.most)} in {row.n_rounds} rounds"
    )
    box = Box(frame.left, y - BAR / 2, frame.at_x(speeds.median) - frame.left, BAR, colour, title)
    about = "\u2248" if row.within_noise else ""
    speed = "" if row.speed is None else f"{about}{row.speed:.2f}\u00d7"
    return Bar(y, row.way, box, least, most, short(speeds.median), speed)


def _way_colour(way: str, results: Results) -> str:
    """A way that is one drafter has the colour of that."""
    if way == PLAIN:
        return OWN
    [drafters] = [each.drafters for each in results.setup.ways if each.name == way]
    return SEVERAL if SIGN in drafters else colours(results).get(drafters, COLOURS[0])


def acceptance(results: Results) -> Plot | None:
    """Acceptance by position in the draft, for every way and drafter; None where nothing was
    drafted."""
    found = complete(results.runs, results.setup.way_names)
    colour = colours(results)
    lines = []
    frame = Frame(370.0, 260.0, (0.5, N_POSITION + 0.5), (0.0, 1.0))
    for way, drafters in ((way.name, way.drafters) for way in results.setup.ways):
        own = [run for run in found if run.way == way]
        drafted = _drafted(own)
        for name, rates in at_by_source(own).items():
            dots = tuple(
                Dot(
                    frame.at_x(i + 1),
                    frame.at_y(rate),
                    f"{way}, token {i + 1} of a draft by {name}: {rate:.0%} of {n} right",
                )
                for i, (rate, n) in enumerate(zip(rates, drafted[name], strict=False))
                if i < N_POSITION and n >= LEAST_DRAFTED
            )
            if dots:
                alone = drafters == name
                label = name if alone else f"{name} in {way}"
                lines.append(Line(dots, colour[name], label, dashed=not alone))
    if not lines:
        return None
    return Plot(
        frame,
        "Right guesses by position in the draft",
        "position in the draft",
        "share that was right",
        tuple(Tick(frame.at_x(i), str(i)) for i in range(1, N_POSITION + 1)),
        tuple(Tick(frame.at_y(i / 4), f"{i / 4:.0%}") for i in range(5)),
        tuple(lines),
    )


def _drafted(runs: Iterable[Run]) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    for run in runs:
        for name, source in run.sources.items():
            now = counts.setdefault(name, [])
            now += [0] * (len(source.n_drafted_at) - len(now))
            for i, n in enumerate(source.n_drafted_at):
                now[i] += n
    return counts


def by_width(found: Widths) -> Plot:
    """Costs of a pass over those of a pass over one token, at every length of text."""
    high = max(costs.full_us[-1] / costs.plain_us for costs in found.costs.levels)
    scale = ticks(high)
    frame = Frame(370.0, 260.0, (0.5, N_WIDTH + 0.5), (0.0, scale[-1]))
    lines = []
    for colour, costs in zip((OWN, *COLOURS), found.costs.levels, strict=False):
        dots = tuple(
            Dot(
                frame.at_x(width),
                frame.at_y(us / costs.plain_us),
                f"{width} tokens behind {costs.n_past}: {us / 1000:.3g} ms, "
                f"{us / costs.plain_us:.2f} times one token",
            )
            for width, us in enumerate(costs.full_us, 1)
        )
        lines.append(Line(dots, colour, f"behind {costs.n_past} tokens"))
    return Plot(
        frame,
        "Time of a pass by its tokens",
        "tokens in the pass",
        "over a pass of one token",
        tuple(Tick(frame.at_x(i), str(i)) for i in (1, 2, 4, 6, 8, 10, 12, 14, N_WIDTH)),
        tuple(Tick(frame.at_y(value), short(value) if value else "0") for value in scale),
        tuple(lines),
    )


def timeline(results: Results, width: float = 760.0) -> Timeline | None:
    """The first round's answers to one prompt, pass by pass: that whose speed is closest to the
    speed over all of them. None where nothing can be compared."""
    best = max((row for row in overall(results) if row.speed), key=_speed, default=None)
    if best is None:
        return None
    first = [run for run in complete(results.runs, results.setup.way_names) if run.moments]
    by_prompt: dict[str, dict[str, Run]] = {}
    for run in first:
        by_prompt.setdefault(run.prompt, {})[run.way] = run
    typical = min(
        by_prompt.values(),
        key=lambda ways: abs(_gain(ways[PLAIN], ways[best.way]) - _speed(best)),
        default=None,
    )
    if typical is None:
        return None
    colour = colours(results)
    left, right = 16.0, 12.0
    ends_ms = max(_us(run.moments) for run in typical.values()) / 1000
    scale = ticks(ends_ms)
    frame = Frame(width, 1.0, (0.0, ends_ms), (0.0, 1.0), left=left, right=right)
    most = max(_n_proposed(moment) for run in typical.values() for moment in run.moments) + 1
    lanes = tuple(
        _lane(run, 16.0 + LANE * (i + 1) - 24.0, frame, most, colour)
        for i, run in enumerate(typical.values())
    )
    marks = tuple(Tick(frame.at_x(ms), _duration(ms)) for ms in scale if ms <= ends_ms)
    shown = typical[best.way]
    pieces = tuple(
        Piece(text, colour.get(origin, OWN))
        for moment in shown.moments
        for text, origin in zip(moment.texts, moment.origins, strict=True)
    )
    pieces = tuple(dropwhile(lambda piece: not piece.text.strip(), pieces))
    height = 16.0 + LANE * len(lanes) + 22.0
    shares = _shares(shown.moments, colour)
    return Timeline(width, height, left, shown.prompt, lanes, marks, best.way, pieces, shares)


def _lane(run: Run, y: float, frame: Frame, most: int, colour: Mapping[str, str]) -> Lane:
    unit = (LANE - 34.0) / most  # height of a token
    passes, drafted, us = [], [], 0
    for n, moment in enumerate(run.moments, 1):
        x, us = frame.at_x(us / 1000), us + moment.draft_us + moment.verify_us
        wide = max(frame.at_x(us / 1000) - x, 0.5)
        wide -= min(0.8, wide / 4)  # a gap
        title = _title(n, moment)
        if moment.drafted:
            tall = unit * (_n_proposed(moment) + 1)
            drafted.append(Box(x, y - tall, wide, tall, "drafted", title))
        for i, origin in enumerate(_own_first(moment.origins)):
            own = colour.get(origin, OWN)
            passes.append(Box(x, y - unit * (i + 1), wide, unit, own, title))
    seconds = us / 1e6
    n_tokens = sum(len(moment.texts) for moment in run.moments)
    says = f"{n_tokens} tokens in {len(run.moments)} passes, {seconds:.2f} s"
    return Lane(y, run.way, tuple(passes), tuple(drafted), frame.at_x(us / 1000), says)


def _own_first(origins: Sequence[str]) -> list[str]:
    """What the model writes itself stands at the foot of each pass."""
    return sorted(origins, key=bool)


def _title(n: int, moment: Moment) -> str:
    ms = (moment.draft_us + moment.verify_us) / 1000
    guessed = ", ".join(f"{count} by {name}" for name, count in moment.drafted.items())
    n_right = sum(map(bool, moment.origins))
    drafts = f"; guessed: {guessed}; {n_right} right" if guessed else ""
    return f"pass {n}, {ms:.1f} ms{drafts}: {''.join(moment.texts)!r}"


def _shares(
    moments: Sequence[Moment], colour: Mapping[str, str]
) -> tuple[tuple[str, str, int], ...]:
    names = [origin for moment in moments for origin in moment.origins]
    found = sorted(set(names))
    return tuple(
        (name or "the model itself", colour.get(name, OWN), names.count(name)) for name in found
    )


def _us(moments: Iterable[Moment]) -> int:
    return sum(moment.draft_us + moment.verify_us for moment in moments)


def _n_proposed(moment: Moment) -> int:
    return sum(moment.drafted.values())


def _gain(plain: Run, run: Run) -> float:
    return (plain.us / plain.n_tokens) / (run.us / run.n_tokens)


def _speed(row: Row) -> float:
    return row.speed or 0.0


def _duration(ms: float) -> str:
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.0f} ms"
