"""Names of GGUF files in repositories: ``PREFIX:USER/REPO[:FILE]``.

FILE is a file of the repository, or a type such as Q8_0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import ArgumentError, UnknownModelError
from ..gguf.file import SPLIT_NAME

REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
REPO_AND_FILE = re.compile(rf"{REPO}(?::(?P<file>.+))?")
DEFAULT_TYPE = "Q4_K_M"  # chosen if a repository has several
NO_MODEL = re.compile(r"(^|/)(mmproj|imatrix)[^/]*$|imatrix\.gguf$", re.IGNORECASE)
N_LISTED = 20  # files named in an error

Models = Mapping[str, tuple[str, ...]]  # first part: all parts, in order
Repository = tuple[str, Mapping[str, Path]]  # USER/REPO, and its files by name


class Name(NamedTuple):
    """A parsed name. file: None for the only file, or that of DEFAULT_TYPE."""

    prefix: str  # with its colon
    repo: str
    file: str | None


def parse(prefix: str, text: str) -> Name:
    match = REPO_AND_FILE.fullmatch(text.removeprefix(prefix))
    if match is None:
        raise UnknownModelError(f"unknown model {text!r}; write {prefix}USER/REPO[:FILE]")
    return Name(prefix, match["repo"], match["file"])


def find(repositories: Iterable[Repository], name: Name) -> Path | None:
    """Return the file of a name, None if it is not in its repository."""
    here = dict(repositories).get(name.repo, {})
    found = models(here)
    if name.file is not None:  # ignore other files of the repository
        found = {f: p for f, p in found.items() if name.file in p or _with_type({f: p}, name.file)}
    return here[choose(found, name)] if found else None


def named(prefix: str, repositories: Iterable[Repository]) -> Iterator[tuple[str, Path]]:
    """Yield unambiguous name and file of every model in repositories."""
    for repo, files in repositories:
        for first in models(files):
            yield f"{prefix}{repo}:{first}", files[first]


def models(files: Iterable[str]) -> Models:
    """Return the models among files. A split model counts once, and only if no part is missing."""
    names = {name for name in files if name.endswith(".gguf") and not NO_MODEL.search(name)}
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        split = SPLIT_NAME.fullmatch(name)
        if split is None:
            found[name] = (name,)
        elif int(split["number"]) == 1:
            n = int(split["count"])
            parts = [f"{split['prefix']}-{i:05}-of-{n:05}.gguf" for i in range(1, n + 1)]
            if names.issuperset(parts):
                found[name] = tuple(parts)
    return found


def choose(found: Models, name: Name) -> str:
    """Return the first part of the named model. Raises ArgumentError unless exactly one matches."""
    file = name.file
    if not found:
        raise ArgumentError(f"{name.repo} has no GGUF model; choose another repository")
    if file is None:
        matches = list(found) if len(found) == 1 else _with_type(found, DEFAULT_TYPE)
    else:
        matches = [first for first, parts in found.items() if file in parts]
        matches = matches or _with_type(found, file)
    if len(matches) == 1:
        return matches[0]
    listed = sorted(matches or found)
    more = f" and {len(listed) - N_LISTED} more" if len(listed) > N_LISTED else ""
    which = f"no file {file}" if file and not matches else "several files that match"
    raise ArgumentError(
        f"{name.repo} has {which}; give one of them as {name.prefix}{name.repo}:FILE: "
        f"{', '.join(listed[:N_LISTED])}{more}"
    )


def _with_type(found: Models, type_name: str) -> list[str]:
    ends = re.compile(
        rf"(^|[-._/]){re.escape(type_name)}(-\d{{5}}-of-\d{{5}})?\.gguf", re.IGNORECASE
    )
    return [first for first in found if (match := ends.search(first)) and match.end() == len(first)]
