"""The headers of the patches: why each exists, and what tests it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from source import Project

TRAILERS = ("Base", "Reason", "Forwarded", "Remove-when", "Test")
REASONS = ("embedding-specific", "temporary", "incompatible")


@dataclass(frozen=True)
class Header:
    """The header of a patch file. `n_added` counts lines."""

    subject: str
    body: str
    trailers: dict[str, str]
    n_added: int


def _split(text: bytes) -> tuple[str, str, bytes]:
    """Mail headers with the message, the trailer block, and the diff of a patch file."""
    cut = text.find(b"\ndiff --git ")
    message, diff = (text[:cut], text[cut:]) if cut >= 0 else (text, b"")
    before, _, last = message.decode().rstrip("\n").rpartition("\n\n")
    if all(re.match(r"[A-Za-z-]+: |\s", line) for line in last.splitlines()) and before:
        return before, last, diff
    return message.decode().rstrip("\n"), "", diff


def with_base(text: bytes, requirement: str) -> bytes:
    """The patch with the trailer `Base: requirement`, replaced where it stands or added first."""
    message, trailers, diff = _split(text)
    lines = [line for line in trailers.splitlines() if line]
    at = next((i for i, line in enumerate(lines) if line.startswith("Base: ")), None)
    if at is None:
        lines.insert(0, f"Base: {requirement}")
    else:
        lines[at] = f"Base: {requirement}"
    block = "\n".join(lines)
    return f"{message}\n\n{block}\n".encode() + diff


def read_header(patch: Path) -> Header:
    """Parse one patch file."""
    message, trailers, diff = _split(patch.read_bytes())
    mail, _, body = message.partition("\n\n")
    subject = re.search(r"^Subject: (?:\[PATCH\] )?(.*(?:\n .*)*)", mail, re.MULTILINE)
    pairs = (line.partition(": ") for line in re.sub(r"\n\s+", " ", trailers).splitlines())
    added = re.findall(rb"^\+(?!\+\+ [ab]/)", diff, re.MULTILINE)
    return Header(
        subject=subject[1].replace("\n", "") if subject else "",
        body=body.strip(),
        trailers={key: value.strip() for key, _, value in pairs},
        n_added=len(added),
    )


def header_problems(project: Project, patch: Path) -> list[str]:
    """Return what the header of a patch lacks, one sentence each."""
    header, requirement = read_header(patch), project.pin.requirement
    problems = [] if header.body else ["says nothing about why it exists: write it in the body"]
    for key in TRAILERS:
        if not header.trailers.get(key):
            problems.append(f"has no trailer `{key}:`")
    base, reason, test = (header.trailers.get(key) for key in ("Base", "Reason", "Test"))
    if base and base != requirement:
        problems.append(f"has Base: {base}, but the pin is {requirement}: run `export`")
    if reason and reason not in REASONS:
        problems.append(f"has Reason: {reason}, which is not one of {', '.join(REASONS)}")
    if test and not (project.root / test.partition("::")[0]).is_file():
        problems.append(f"names the test {test}, which does not exist")
    return [f"{patch.name} {problem}." for problem in problems]


def table(patches: Iterable[Path]) -> str:
    """The series as a markdown table, with the lines each patch adds."""
    rows = ["| patch | why | upstream | test | lines |", "|---|---|---|---|---:|"]
    headers = [(patch, read_header(patch)) for patch in patches]
    for patch, header in headers:
        cells = [patch.name[:4] + " " + header.subject]
        cells += [header.trailers.get(key, "?") for key in ("Reason", "Forwarded", "Test")]
        rows.append(f"| {' | '.join(cells)} | {header.n_added} |")
    rows.append(f"| {len(headers)} patches | | | | {sum(h.n_added for _, h in headers)} |")
    return "\n".join(rows)
