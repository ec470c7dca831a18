"""``hf:USER/REPO[:FILE]``: GGUF files of the Hugging Face hub, in its shared cache.

The library huggingface_hub downloads them: it takes a token and an endpoint from its environment
variables, resumes broken downloads, and names a file when it is complete. Files in the cache are
found without a network. FILE is a file of the repository, or a type such as Q8_0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..errors import ArgumentError, PullError, UnknownModelError
from ..gguf.file import SPLIT_NAME
from .packages import Offer

PREFIX = "hf:"
FORM = "hf:USER/REPO[:FILE]"
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
NAME = re.compile(rf"hf:{REPO}(?::(?P<file>.+))?")
BARE = re.compile(rf"(?!\W){REPO}(?::(?P<file>.+))?")
ADDRESS = re.compile(  # of a browser, or in Ollama's form
    r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(models/)?"
    rf"{REPO}(/(blob|resolve)/[^/]+/(?P<path>[^?#]+)|/[^?#:]*)?(:(?P<file>[^?#]+))?([?#].*)?"
)
DEFAULT_TYPE = "Q4_K_M"  # chosen if a repository has several
NO_MODEL = re.compile(r"(^|/)(mmproj|imatrix)[^/]*$|imatrix\.gguf$", re.IGNORECASE)
N_LISTED = 20  # files named in an error

Models = Mapping[str, tuple[str, ...]]  # first part: all parts, in order


class Name(NamedTuple):
    """A parsed ``hf:`` name. file: None for the only file, or that of DEFAULT_TYPE."""

    repo: str
    file: str | None


def canonical(text: str) -> str:
    """Return the ``hf:`` name for a URL of the hub, any other text unchanged."""
    match = ADDRESS.fullmatch(text)
    return text if match is None else _join_name(match["repo"], match["path"] or match["file"])


def named(text: str) -> str | None:
    """Return the ``hf:`` name for ``USER/REPO[:FILE]``, None for any other text."""
    match = None if text.endswith(".gguf") else BARE.fullmatch(text)
    return None if match is None else _join_name(match["repo"], match["file"])


def _join_name(repo: str, file: str | None) -> str:
    return f"{PREFIX}{repo}:{unquote(file)}" if file else f"{PREFIX}{repo}"


def is_name(text: str) -> bool:
    return text.startswith(PREFIX)


def parse(text: str) -> Name:
    match = NAME.fullmatch(text)
    if match is None:
        raise UnknownModelError(f"unknown model {text!r}; write {FORM}")
    return Name(match["repo"], match["file"])


#
# which file
#


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
        f"{name.repo} has {which}; give one of them as {PREFIX}{name.repo}:FILE: "
        f"{', '.join(listed[:N_LISTED])}{more}"
    )


def _with_type(found: Models, type_name: str) -> list[str]:
    ends = re.compile(
        rf"(^|[-._/]){re.escape(type_name)}(-\d{{5}}-of-\d{{5}})?\.gguf", re.IGNORECASE
    )
    return [first for first in found if (match := ends.search(first)) and match.end() == len(first)]


#
# what is here
#


def find(text: str) -> Path | None:
    """Return the file of a name, None if it is not in the cache."""
    name = parse(text)
    here = {repo: files for repo, files in _cached()}.get(name.repo, {})
    found = models(here)
    if name.file is not None:  # ignore other files of the repository
        found = {f: p for f, p in found.items() if name.file in p or _with_type({f: p}, name.file)}
    return here[choose(found, name)] if found else None


def pulled() -> Iterator[tuple[str, Path]]:
    """Yield unambiguous name and file of every model in the cache."""
    for repo, files in _cached():
        for first in models(files):
            yield f"{PREFIX}{repo}:{first}", files[first]


def _cached() -> Iterator[tuple[str, dict[str, Path]]]:
    """Yield the repositories in the cache, with their files by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model":
            # each file in its newest revision
            revisions = sorted(repo.revisions, key=lambda revision: revision.last_modified)
            yield (
                repo.repo_id,
                {
                    file.file_path.relative_to(revision.snapshot_path).as_posix(): file.file_path
                    for revision in revisions
                    for file in revision.files
                },
            )


#
# getting
#


def offer(text: str) -> Offer:
    """Return what `fetch` would download, from the hub's description of the repository."""
    name = parse(text)
    with _translate_errors(name.repo):
        from huggingface_hub import HfApi, constants

        info = HfApi().model_info(name.repo, files_metadata=True)
    card: Any = info.card_data or {}  # has the method get
    tagged = (tag.removeprefix("license:") for tag in info.tags or () if "license:" in tag)
    licence = card.get("license_name") or card.get("license") or next(tagged, None)
    licence_and_link = filter(None, (licence and str(licence), card.get("license_link")))
    siblings = {file.rfilename: file for file in info.siblings or ()}
    found = models(siblings)
    files = found[choose(found, name)]
    choice = f"one of {len(found)} models; others: {PREFIX}{name.repo}:FILE"
    return Offer(
        text,
        files[0] + (f" and {len(files) - 1} more parts" if len(files) > 1 else ""),
        files,
        sum(siblings[file].size or 0 for file in files),
        ", ".join(licence_and_link) or "not stated",
        f"{constants.ENDPOINT}/{name.repo}",
        name.repo,
        tuple(getattr(siblings[file].lfs, "sha256", None) for file in files),
        choice if name.file is None and len(found) > 1 else "",
    )


def fetch(offered: Offer) -> Path:
    """Download all parts. Return the path of the first."""
    from huggingface_hub import hf_hub_download

    paths = []
    for file, sha256 in zip(offered.files, offered.sha256, strict=True):
        with _translate_errors(offered.repository):
            path = Path(hf_hub_download(offered.repository, file))
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest() if sha256 else None
        if digest != sha256:  # the one that the hub gives, if any
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise PullError(
                f"{path.name} has SHA-256 {digest}, expected {sha256}; it was removed, try again"
            )
        paths.append(path)
    return paths[0]


@contextmanager
def _translate_errors(repo: str) -> Iterator[None]:
    """Turn errors of the hub and the network into errors of one line."""
    from huggingface_hub import constants, errors

    # includes the errors of its HTTP library
    unreachable: tuple[type[Any], ...] = (OSError, *errors.HfHubHTTPError.__bases__)
    try:
        yield
    except errors.GatedRepoError as error:
        raise PullError(
            f"{repo} requires consent: accept its terms at {constants.ENDPOINT}/{repo}, then log "
            "in with hf auth login or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise PullError(
            f"{constants.ENDPOINT} has no model {repo}, or it is private: check the name; for a "
            "private one log in with hf auth login or set HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise ArgumentError(f"{repo}: {error}") from error
    except errors.OfflineModeIsEnabled as error:
        raise PullError(
            f"{repo} is not in the cache, and HF_HUB_OFFLINE forbids downloads"
        ) from error
    except unreachable as error:
        raise PullError(
            f"{repo} cannot be downloaded from {constants.ENDPOINT}: {error}"
        ) from error
