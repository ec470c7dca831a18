"""Headers of the native part are included from above only, and by their folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "pyselfspec" / "native"
ROOMS = ("abi", "session", "graph", "kv", "states", "grammar", "ngrams")
SOURCES = {
    path.relative_to(NATIVE).as_posix(): path.read_text(encoding="utf-8")
    for room in ROOMS
    for path in sorted((NATIVE / room).iterdir())
}

# The floors of the house, from the ground up: a file includes from its own room or from floors
# below. The longest name that fits counts: a folder, a file, or both files of one name.
FLOORS = (
    {"abi/selfspec.h"},
    {"grammar", "ngrams", "states/replay"},
    {"graph"},
    {"session/arguments", "session/architectures"},
    {"kv", "states", "session/interrupt"},
    {"session"},
    {"abi"},
)


def place(name: str) -> tuple[int, str]:
    """Return the floor of a file, and its room there."""
    rooms = [(len(room), i, room) for i, rooms in enumerate(FLOORS) for room in rooms]
    _, floor, room = max(each for each in rooms if re.match(rf"{each[2]}([./]|$)", name))
    return floor, room


def includes(text: str) -> list[str]:
    """Return the headers of ours that a text includes; others' are in no folder of ours."""
    return re.findall(rf'^#include "((?:{"|".join(ROOMS)})/[^"]+)"', text, flags=re.MULTILINE)


def climbs(name: str, found: list[str]) -> list[str]:
    """Includes of a file that run up, or sideways into another room."""
    floor, room = place(name)
    return [
        h for h in found if place(h)[0] > floor or (place(h)[0] == floor and place(h)[1] != room)
    ]


def test_includes_only_go_down() -> None:
    found = {name: includes(text) for name, text in SOURCES.items()}
    assert sum(map(len, found.values())) > 30, "sees no includes"
    up = {name: climbs(name, headers) for name, headers in found.items()}
    assert {name: headers for name, headers in up.items() if headers} == {}


def test_headers_of_ours_are_included_by_their_folders() -> None:
    named = {Path(name).name for name in SOURCES}
    bare = {
        name: set(re.findall(r'^#include "([^"/]+)"', text, re.M)) for name, text in SOURCES.items()
    }
    assert {name: headers & named for name, headers in bare.items() if headers & named} == {}


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("graph/hooks.cpp", "session/session.h"),
        ("states/rollback.h", "kv/placement.h"),
        ("session/arguments.h", "session/session.h"),
        ("grammar/rules.h", "graph/batch.h"),
    ],
)
def test_a_planted_include_is_found(name: str, planted: str) -> None:
    assert climbs(name, includes(f'{SOURCES[name]}\n#include "{planted}"\n')) == [planted]
