"""``hf:USER/REPO[:FILE]``: GGUF files of the Hugging Face hub, in its shared cache.

The library huggingface_hub downloads them: it takes a token and an endpoint from its environment
variables, resumes broken downloads, and names a file when it is complete. Files in the cache are
found without a network.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ..errors import ArgumentError, PullError
from . import _repositories
from ._repositories import REPO, Name, choose, models
from ._source import UNSTATED, Entry, Offer, pull

PREFIX = "hf:"
FORM = f"{PREFIX}USER/REPO[:FILE]"
BARE = re.compile(rf"(?!\W){REPO}(?::(?P<file>.+))?")
ADDRESS = re.compile(  # of a browser, or in Ollama's form
    r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(models/)?"
    rf"{REPO}(/(blob|resolve)/[^/]+/(?P<path>[^?#]+)|/[^?#:]*)?(:(?P<file>[^?#]+))?([?#].*)?"
)
N_FOUND = 20  # repositories that a search returns


@dataclass(frozen=True, slots=True)
class Found:
    """A repository with GGUF files. name: as ``models pull`` takes it."""

    name: str
    n_downloads: int  # in the last month
    licence: str


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


def _parse(name: str) -> Name:
    return _repositories.parse(PREFIX, name)


#
# what is here
#


def find(name: str) -> Path | None:
    return _repositories.find(_cached(), _parse(name))


def installed() -> Iterator[tuple[str, Path]]:
    return _repositories.named(PREFIX, _cached())


def how_to_get(name: str) -> str:
    return pull(name)


def removable(name: str) -> Path:
    raise ArgumentError(
        f"{name} is in the cache of the Hugging Face hub, which other programs share; "
        f"remove it with: hf cache rm model/{_parse(name).repo}"
    )


def _cached() -> Iterator[tuple[str, dict[str, Path]]]:
    """Yield the repositories in the cache, with their files by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, OSError, ValueError):  # none, or not a folder that can be read
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


def known() -> Iterator[Entry]:
    yield from ()


def search(word: str) -> list[Found]:
    """Return the repositories with GGUF files that match a word, most downloaded first.

    Raises PullError if the hub cannot be reached.
    """
    from huggingface_hub import ModelInfo, constants, get_session, get_token

    query = f"search={quote(word)}&filter=gguf&sort=downloads&limit={N_FOUND}"
    headers = {"Authorization": f"Bearer {token}"} if (token := get_token()) else {}
    make: Any = ModelInfo  # which has no types
    try:  # not with list_models, which tries six times before it reports a missing connection
        answer = get_session().get(f"{constants.ENDPOINT}/api/models?{query}", headers=headers)
        answer.raise_for_status()
        found = [make(**each) for each in answer.json()]
    except _unreachable() as error:
        raise PullError(f"{constants.ENDPOINT} cannot be searched: {error}") from error
    return [Found(PREFIX + each.id, each.downloads or 0, _licence(each)) for each in found]


def offer(text: str) -> Offer:
    """Return what `fetch` would download, from the hub's description of the repository."""
    name = _parse(text)
    with _translate_errors(name.repo):
        from huggingface_hub import HfApi, constants

        info = HfApi().model_info(name.repo, files_metadata=True)
    siblings = {file.rfilename: file for file in info.siblings or ()}
    found = models(siblings)
    files = found[choose(found, name)]
    choice = f"one of {len(found)} models; others: {PREFIX}{name.repo}:FILE"
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


def _licence(info: Any) -> str:
    """Return the licence of a repository by its card, or by its tags, and a link if it has one."""
    card = info.card_data or {}  # has the method get
    tagged = (tag.removeprefix("license:") for tag in info.tags or () if "license:" in tag)
    licence = card.get("license_name") or card.get("license") or next(tagged, None)
    return ", ".join(filter(None, (licence and str(licence), card.get("license_link")))) or UNSTATED


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
    except _unreachable() as error:
        raise PullError(
            f"{repo} cannot be downloaded from {constants.ENDPOINT}: {error}"
        ) from error


def _unreachable() -> tuple[type[Any], ...]:
    """Return the errors of the hub and the network: those of its HTTP library, and of answers that
    are no JSON."""
    from huggingface_hub import errors

    return (OSError, ValueError, *errors.HfHubHTTPError.__bases__)
