"""``hf:USER/REPO[:FILE]``: GGUF files of the Hugging Face hub, in the cache that all its users
share.

The library huggingface_hub fetches them: it takes a token and an endpoint from its environment
variables, goes on where a connection broke, and gives a file its name when it is complete. What is
here is found without a network. FILE is a file of the repository, or a type such as Q8_0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from ..errors import ArgumentError, PullError
from ..gguf.file import SPLIT_NAME
from .offer import Offer

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, ModelInfo

PREFIX = "hf:"
FORM = "hf:USER/REPO[:FILE]"
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
NAME = re.compile(rf"hf:{REPO}(?::(?P<file>.+))?")
BARE = re.compile(rf"(?!\W){REPO}(?::(?P<file>.+))?")
ADDRESS = re.compile(  # what a browser shows, and what Ollama takes
    r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(models/)?"
    rf"{REPO}(/(blob|resolve)/[^/]+/(?P<path>[^?#]+)|/[^?#:]*)?(:(?P<file>[^?#]+))?([?#].*)?"
)
DEFAULT_TYPE = "Q4_K_M"  # of several, what most people take
NO_MODEL = re.compile(r"(^|/)(mmproj|imatrix)[^/]*$|imatrix\.gguf$", re.IGNORECASE)
N_LISTED = 20  # files named in an error

Models = Mapping[str, tuple[str, ...]]  # first part: all parts, in order


class Name(NamedTuple):
    """What stands behind ``hf:``. file: None for the only one, or the one of DEFAULT_TYPE."""

    repo: str
    file: str | None


def canonical(text: str) -> str:
    """The ``hf:`` name for an address of the hub, anything else as it is."""
    match = ADDRESS.fullmatch(text)
    return text if match is None else _written(match["repo"], match["path"] or match["file"])


def named(text: str) -> str | None:
    """The ``hf:`` name for ``USER/REPO[:FILE]``, None for what does not look like one."""
    match = None if text.endswith(".gguf") else BARE.fullmatch(text)
    return None if match is None else _written(match["repo"], match["file"])


def _written(repo: str, file: str | None) -> str:
    return f"{PREFIX}{repo}:{unquote(file)}" if file else f"{PREFIX}{repo}"


def is_name(text: str) -> bool:
    return text.startswith(PREFIX)


def parse(text: str) -> Name:
    match = NAME.fullmatch(text)
    if match is None:
        raise ArgumentError(f"unknown model {text!r}; write {FORM}")
    return Name(match["repo"], match["file"])


#
# which file
#


def models(files: Iterable[str]) -> Models:
    """The models among files: those that are split count once, and only if no part is missing."""
    there = {name for name in files if name.endswith(".gguf") and not NO_MODEL.search(name)}
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(there):
        split = SPLIT_NAME.fullmatch(name)
        if split is None:
            found[name] = (name,)
        elif int(split["number"]) == 1:
            n = int(split["count"])
            parts = [f"{split['prefix']}-{i:05}-of-{n:05}.gguf" for i in range(1, n + 1)]
            if there.issuperset(parts):
                found[name] = tuple(parts)
    return found


def choose(found: Models, name: Name) -> str:
    """The first part of the model that is meant. Raises ArgumentError when it is not clear."""
    wanted = name.file
    if not found:
        raise ArgumentError(f"{name.repo} has no GGUF model")
    if wanted is None:
        fits = list(found) if len(found) == 1 else _of_type(found, DEFAULT_TYPE)
    else:
        fits = [first for first, parts in found.items() if wanted in parts]
        fits = fits or _of_type(found, wanted)
    if len(fits) == 1:
        return fits[0]
    listed = sorted(fits or found)
    more = f" and {len(listed) - N_LISTED} more" if len(listed) > N_LISTED else ""
    which = f"no file {wanted}" if wanted and not fits else "several files that fit"
    raise ArgumentError(
        f"{name.repo} has {which}; give one of them as {PREFIX}{name.repo}:FILE: "
        f"{', '.join(listed[:N_LISTED])}{more}"
    )


def _of_type(found: Models, type_name: str) -> list[str]:
    ends = re.compile(
        rf"(^|[-._/]){re.escape(type_name)}(-\d{{5}}-of-\d{{5}})?\.gguf", re.IGNORECASE
    )
    return [first for first in found if (match := ends.search(first)) and match.end() == len(first)]


#
# what is here
#


def find(text: str) -> Path | None:
    """The file of a name, None where it is not here."""
    name = parse(text)
    here = {repo: files for repo, files in _cached()}.get(name.repo, {})
    found = models(here)
    if name.file is not None:  # others that are here are not what was asked for
        found = {f: p for f, p in found.items() if name.file in p or _of_type({f: p}, name.file)}
    return here[choose(found, name)] if found else None


def pulled() -> Iterator[tuple[str, Path]]:
    """The models that are here, with names that mean just them."""
    for repo, files in _cached():
        for first in models(files):
            yield f"{PREFIX}{repo}:{first}", files[first]


def _cached() -> Iterator[tuple[str, dict[str, Path]]]:
    """Repositories of the cache with the files that are here, by their names."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model":
            yield repo.repo_id, _files(repo)


def _files(repo: CachedRepoInfo) -> dict[str, Path]:
    """Of the newest revision that has a file."""
    revisions = sorted(repo.revisions, key=lambda revision: revision.last_modified)
    return {
        file.file_path.relative_to(revision.snapshot_path).as_posix(): file.file_path
        for revision in revisions
        for file in revision.files
    }


#
# getting
#


def offer(text: str) -> Offer:
    name = parse(text)
    with _errors_of(name.repo):
        from huggingface_hub import HfApi, constants

        info = HfApi().model_info(name.repo, files_metadata=True)
    siblings = {file.rfilename: file for file in info.siblings or ()}
    found = models(siblings)
    files = found[choose(found, name)]
    choice = f"one of {len(found)} models there; others by {PREFIX}{name.repo}:FILE"
    return Offer(
        text,
        files[0] + (f" and {len(files) - 1} more parts" if len(files) > 1 else ""),
        files,
        sum(siblings[file].size or 0 for file in files),
        _licence(info),
        f"{constants.ENDPOINT}/{name.repo}",
        name.repo,
        tuple(getattr(siblings[file].lfs, "sha256", None) for file in files),
        choice if name.file is None and len(found) > 1 else "",
    )


def _licence(info: ModelInfo) -> str:
    card: Any = info.card_data or {}  # has get as a dict has
    tagged = (tag.removeprefix("license:") for tag in info.tags or () if "license:" in tag)
    name = card.get("license_name") or card.get("license") or next(tagged, None)
    return ", ".join(filter(None, (name and str(name), card.get("license_link")))) or "not stated"


def fetch(offered: Offer) -> Path:
    """Get all parts, and where the first one is."""
    from huggingface_hub import hf_hub_download

    paths = []
    for file, sha256 in zip(offered.files, offered.sha256, strict=True):
        with _errors_of(offered.repository):
            paths.append(Path(hf_hub_download(offered.repository, file)))
        _check(paths[-1], sha256)
    return paths[0]


def _check(path: Path, sha256: str | None) -> None:
    """Compare with what the hub says of the file, where it does; what is something else goes."""
    if sha256 is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise PullError(
            f"{path.name} came with SHA-256 {digest}, not {sha256}, and was removed; try again"
        )


@contextmanager
def _errors_of(repo: str) -> Iterator[None]:
    """What the hub and the network say, in one sentence."""
    from huggingface_hub import constants, errors

    # also those of whatever library huggingface_hub talks HTTP with
    unreachable: tuple[type[Any], ...] = (OSError, *errors.HfHubHTTPError.__bases__)
    try:
        yield
    except errors.GatedRepoError as error:
        raise PullError(
            f"{repo} asks for consent: accept its terms at {constants.ENDPOINT}/{repo}, then log "
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
        raise PullError(f"{repo} is not here, and HF_HUB_OFFLINE forbids to fetch it") from error
    except unreachable as error:
        raise PullError(f"{repo} cannot be fetched from {constants.ENDPOINT}: {error}") from error
