"""Obtain the pinned llama.cpp, patch it, and name the result (the build id).

Handles the pin, the cache and the patch files, and does not depend on CMake, git or packaging
hooks: `build_backend.py` calls `prepare`, `tools/vendor.py` uses the steps one by one.
"""

from __future__ import annotations

import filecmp
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

try:
    import tomllib  # new in Python 3.11
except ModuleNotFoundError:
    # Before any other import that may fail: pip prints the text of a SystemExit.
    raise SystemExit(
        "pyselfspec needs Python 3.11 or newer, this is "
        f"{sys.version_info[0]}.{sys.version_info[1]}."
    ) from None

import patch_ng

LOCAL_SOURCE_VARIABLE = "PYSELFSPEC_LLAMA_CPP_SOURCE"
STAMP = ".pyselfspec-stamp"


class SourceError(Exception):
    """One sentence for the user: what is wrong and what to do."""


@dataclass(frozen=True)
class Pin:
    """Contents of pin.toml. `folder` is a path in the archive, `keep` are paths below it, and
    `bindings` are further paths in the archive."""

    name: str
    version: str
    sha256: str
    folder: str
    keep: tuple[str, ...]
    bindings: tuple[str, ...]

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Project:
    """Paths below the repository root."""

    root: Path

    @property
    def pin_file(self) -> Path:
        return self.root / "vendor" / "pin.toml"

    @property
    def cache(self) -> Path:
        return self.root / "vendor" / "cache"

    @property
    def tree(self) -> Path:
        return self.root / "vendor" / "llama.cpp"

    @property
    def pin(self) -> Pin:
        return read_pin(self.pin_file)

    @property
    def patches(self) -> list[Path]:
        return sorted((self.root / "patches").glob("*.patch"))

    @property
    def native_sources(self) -> list[Path]:
        native = self.root / "pyselfspec" / "native"
        built = {".h", ".c", ".cpp", ".cmake"}
        return sorted(
            p for p in native.rglob("*") if p.suffix in built or p.name == "CMakeLists.txt"
        )


@dataclass(frozen=True)
class Source:
    """A llama.cpp tree that is ready to build, and the id of what will be built."""

    path: Path
    build_id: str


def read_pin(file: Path) -> Pin:
    """Read pin.toml; raises SourceError when a key is missing or misspelt."""
    values: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    try:
        lists = {name: tuple(values[name]) for name in ("keep", "bindings")}
        return Pin(**{**values, **lists})
    except (KeyError, TypeError) as error:
        raise SourceError(
            f"{file} must hold exactly name, version, sha256, folder, keep and bindings ({error})."
        ) from None


# --- identity -------------------------------------------------------------------------------------


def _digest(files: Iterable[Path]) -> str:
    """First 12 hex digits of the sha256 over names and bytes."""
    digest = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        # The length keeps "name + bytes" of one file apart from the next one.
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:12]


def tree_id(project: Project) -> str:
    """Return the id of the patched tree, from the files it depends on: the pin and the patches."""
    return f"{project.pin.version}-{_digest([project.pin_file, *project.patches])}"


def build_id(project: Project) -> str:
    """Return the id of the library, from the files it depends on: pin, patches and our own C++."""
    files = [project.pin_file, *project.patches, *project.native_sources]
    return f"{project.pin.version}-{_digest(files)}"


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- the source distribution ----------------------------------------------------------------------


def download(requirement: str, folder: Path) -> Path:
    """Download a source distribution into `folder` with pip, as the user has configured it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    # pip prepares the metadata of what it downloads, which needs scikit-build-core; it is here.
    command += ["--no-build-isolation", requirement]
    # In these, an outer pip names our build backend; the inner pip would use it for the download.
    hooks = ("PEP517_", "_PYPROJECT_HOOKS_")
    env = {name: text for name, text in os.environ.items() if not name.startswith(hooks)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    found = sorted(folder.glob("*.tar.gz"))
    if result.returncode != 0 or len(found) != 1:
        last_line = result.stderr.strip().rpartition("\n")[2].removeprefix("ERROR: ").rstrip(".")
        raise SourceError(
            f"Could not download the source of {requirement}: check the network and the package "
            f"index in pip's configuration, then install again (pip says: {last_line})."
        )
    return found[0]


def fetch_sdist(project: Project) -> Path:
    """Return the pinned source distribution, from vendor/cache/ or from the package index.

    Its hash is verified either way; raises SourceError when the index serves another file.
    """
    pin = project.pin
    cached = project.cache / f"{pin.name}-{pin.version}.tar.gz"
    if cached.is_file() and sha256_of(cached) == pin.sha256:
        return cached
    project.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=project.cache, prefix=".download-") as folder:
        sdist = download(pin.requirement, Path(folder))
        found = sha256_of(sdist)
        if found != pin.sha256:
            raise SourceError(
                f"The source of {pin.requirement} has sha256 {found}, but vendor/pin.toml says "
                f"{pin.sha256}: do not build it, and find out why the index serves another file."
            )
        os.replace(sdist, cached)
    return cached


def _wanted(name: str, folder: str, keep: Sequence[str]) -> PurePosixPath | None:
    """Return the path of an archive member below `folder`, or None when it is not needed."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise SourceError(
            f"The source distribution holds the unsafe path {name!r}: do not build it."
        )
    below = PurePosixPath(*path.parts[1:])  # the first part is NAME-VERSION
    if not below.is_relative_to(folder):
        return None
    relative = below.relative_to(folder)
    return relative if any(relative.is_relative_to(kept) for kept in keep) else None


def unpack(sdist: Path, folder: str, keep: Sequence[str], target: Path) -> None:
    """Write the kept files below `folder` of the archive to `target`.

    Raises SourceError for a path that leads out of the archive and for a link among the kept files.
    """
    try:
        with tarfile.open(sdist, "r:gz") as archive:
            for member in archive:
                relative = _wanted(member.name, folder, keep)
                if relative is None or member.isdir():
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise SourceError(
                        f"{sdist.name} holds {member.name}, not a plain file: do not use it."
                    )
                file = target / relative
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as stream:
                    shutil.copyfileobj(content, stream)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceError(
            f"Could not unpack {sdist}: delete it and install again ({error})."
        ) from error


def unpack_pin(sdist: Path, pin: Pin, target: Path) -> None:
    """Write the pinned llama.cpp to `target`, and the Python bindings to its folder bindings/."""
    unpack(sdist, pin.folder, pin.keep, target)
    unpack(sdist, ".", pin.bindings, target / "bindings")


# --- patches --------------------------------------------------------------------------------------


def _hunk_lines(hunk: Any, sign: bytes) -> list[bytes]:
    """Return the lines of a hunk before (`-`) or after (`+`) it is applied."""
    return [line[1:].rstrip(b"\r\n") for line in hunk.text if line[:1] in (b" ", sign)]


def _misfits(items: Sequence[Any], tree: Path, sign: bytes) -> Iterator[str]:
    """Yield where files differ from the patch, before (`-`) or after (`+`) it is applied."""
    for item in items:
        name = item.source.decode().removeprefix("a/")
        renamed = item.mode or item.target.decode().removeprefix("b/") != name
        if renamed or not (tree / name).is_file():
            yield f"{name} is not a file that exists and keeps its name"
            continue
        lines = [line.rstrip(b"\r\n") for line in (tree / name).read_bytes().split(b"\n")]
        for hunk in item.hunks:
            start = hunk.startsrc if sign == b"-" else hunk.starttgt
            wanted = _hunk_lines(hunk, sign)
            if lines[start - 1 : start - 1 + len(wanted)] != wanted:
                yield f"{name} line {start} is not what the patch expects"


def apply_patch(patch: Path, tree: Path) -> None:
    """Apply one patch exactly: every hunk at its line, without fuzz, to files that exist."""
    text = patch.read_bytes()
    parsed = patch_ng.fromstring(text)
    n_hunks = len(re.findall(rb"^@@ -", text, re.MULTILINE))
    if not parsed or n_hunks == 0 or sum(len(item.hunks) for item in parsed.items) != n_hunks:
        raise SourceError(
            f"{patch.name} is not a readable patch: write it with `python tools/vendor.py export`."
        )
    # patch-ng counts "already applied" as success, so look before and after.
    problem = next(_misfits(parsed.items, tree, b"-"), None)
    if problem is None:
        applied = parsed.apply(root=str(tree))
        problem = next(_misfits(parsed.items, tree, b"+"), None if applied else "patch-ng refuses")
    if problem:
        raise SourceError(
            f"{patch.name} does not apply ({problem}): bring the series up to date with "
            "`python tools/vendor.py fetch`, `apply` and `export`."
        )


def apply_patches(patches: Iterable[Path], tree: Path) -> None:
    """Apply a series in order; raises SourceError at the first patch that does not fit."""
    # Our own message reports the failure in one sentence.
    logging.getLogger("patch_ng").setLevel(logging.CRITICAL)
    for patch in patches:
        apply_patch(patch, tree)


# --- the tree -------------------------------------------------------------------------------------


def files_of(tree: Path) -> Iterator[Path]:
    """Yield the files of a tree, relative to it, without the stamp and git's own."""
    for file in sorted(tree.rglob("*")):
        relative = file.relative_to(tree)
        if file.is_file() and relative.parts[0] not in {STAMP, ".git"}:
            yield relative


def sync(fresh: Path, tree: Path) -> None:
    """Make `tree` equal to `fresh`, moving only what differs: builds stay incremental."""
    wanted = set(files_of(fresh))
    for name in set(files_of(tree)) - wanted:
        (tree / name).unlink()
    for name in sorted(wanted):
        old = tree / name
        if not old.is_file() or not filecmp.cmp(fresh / name, old, shallow=False):
            old.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh / name, old)


def update_tree(project: Project) -> Path:
    """Write the pinned and patched source to vendor/llama.cpp, unless its stamp is up to date."""
    stamp, wanted = project.tree / STAMP, tree_id(project)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return project.tree
    pin = project.pin
    sdist = fetch_sdist(project)
    with tempfile.TemporaryDirectory(dir=project.tree.parent, prefix=".unpack-") as folder:
        fresh = Path(folder)
        unpack_pin(sdist, pin, fresh)
        apply_patches(project.patches, fresh)
        # Without a stamp a tree counts as unfinished: remove it first, write it last.
        stamp.unlink(missing_ok=True)
        sync(fresh, project.tree)
    stamp.write_text(wanted, encoding="utf-8")
    return project.tree


def _check_local(tree: Path) -> None:
    """Raise SourceError unless `tree` looks like a patched llama.cpp."""
    graph = tree / "src" / "llama-graph.cpp"
    if not (tree / "CMakeLists.txt").is_file() or not graph.is_file():
        raise SourceError(
            f"{LOCAL_SOURCE_VARIABLE}={tree} is not a llama.cpp source tree: name its top folder."
        )
    if not any(
        b"selfspec" in file.read_bytes() for file in graph.parent.glob("*.*") if file.is_file()
    ):
        raise SourceError(
            f"{LOCAL_SOURCE_VARIABLE}={tree} lacks the patches: apply patches/*.patch to it."
        )


def prepare(project: Project, environ: Mapping[str, str] = os.environ) -> Source:
    """Return the tree to build and the build id.

    A developer's own tree is used unchanged, and the id then ends in -local.
    """
    if local := environ.get(LOCAL_SOURCE_VARIABLE):
        tree = Path(local).expanduser().resolve()
        _check_local(tree)
        return Source(tree, f"{build_id(project)}-local")
    return Source(update_tree(project), build_id(project))
