"""``ollama:NAME[:TAG]``: models that Ollama has pulled, read where they are.

Ollama keeps a manifest for each name, and the GGUF files beside them under their digests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import ArgumentError, ModelFileError

PREFIX = "ollama:"
DEFAULT_TAG = "latest"
DEFAULT_PLACE = ("registry.ollama.ai", "library")  # left out of names
HOMES = ("~/.ollama/models", "/usr/share/ollama/.ollama/models")  # the user's, the service's
MODEL = "application/vnd.ollama.image.model"  # the type of the layer with the GGUF file
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def is_name(text: str) -> bool:
    return text.startswith(PREFIX)


def find(name: str) -> Path | None:
    has_tag = ":" in name.removeprefix(PREFIX).rpartition("/")[2]
    manifest = dict(_manifests()).get(name if has_tag else f"{name}:{DEFAULT_TAG}")
    return None if manifest is None else _file(name, manifest)


def installed() -> Iterator[tuple[str, Path]]:
    for name, manifest in _manifests():
        with suppress(ModelFileError):
            yield name, _file(name, manifest)


def how_to_get(name: str) -> str:
    return f"ollama pull {shlex.quote(name.removeprefix(PREFIX))}"


def removable(name: str) -> Path:
    removal = f"ollama rm {shlex.quote(name.removeprefix(PREFIX))}"
    raise ArgumentError(f"{name} is in Ollama's folder; remove it with: {removal}")


def _manifests() -> Iterator[tuple[str, Path]]:
    """Yield the names of all models, and their manifests."""
    folders = [given] if (given := os.environ.get("OLLAMA_MODELS")) else HOMES
    for folder in folders:
        manifests = Path(os.path.expanduser(folder)) / "manifests"
        for path in sorted(manifests.glob("*/*/*/*")):  # host, namespace, model, tag
            *place, model, tag = path.relative_to(manifests).parts
            while place and place[0] in DEFAULT_PLACE:
                place.pop(0)
            yield f"{PREFIX}{'/'.join([*place, model])}:{tag}", path


def _file(name: str, manifest: Path) -> Path:
    """Return the GGUF file that a manifest names. Raises ModelFileError if it names none."""
    try:
        layers = json.loads(manifest.read_bytes())["layers"]
        digest: str = next(layer["digest"] for layer in layers if layer["mediaType"] == MODEL)
        if DIGEST.fullmatch(digest):
            return manifest.parents[4] / "blobs" / digest.replace(":", "-")
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        pass
    raise ModelFileError(
        f"{name}: Ollama's {manifest} cannot be read or names no GGUF file; get it again with: "
        f"{how_to_get(name)}"
    )
