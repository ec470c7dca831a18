"""Options of a server. API keys come from a file or the environment, not from the command line,
which other users of the machine can read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click

from ..errors import ArgumentError
from ..runtime.sampling import SamplingParams
from ..serve.settings import (
    CACHE_BYTES,
    GRACE_S,
    HOST,
    N_BYTES,
    N_BYTES_PICTURES,
    N_QUEUE,
    N_SLOTS,
    PORT,
    TIMEOUT_S,
    Capacity,
    Settings,
)
from ._options import mmproj_option, read_text, template_option
from ._types import FILE, FOLDER, Integer, Number, of_value, option, rare

KEY_VARIABLE = "PYSELFSPEC_API_KEY"
MIB = 1 << 20
MIB_MAX = 1024.0  # of a request
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def _origins(given: tuple[str, ...]) -> tuple[str, ...]:
    for origin in given:
        if not ORIGIN.fullmatch(origin):
            raise click.BadParameter(
                f"{origin!r} is not an origin; give scheme and host, like https://example.org"
            )
    return given


def _alias(given: str) -> str:
    if not given.strip():
        raise click.BadParameter("the name is empty; give a name, or leave out --alias")
    return given


def _refuse(_given: str) -> None:
    """Refuse llama-server's option, with the ways to give a key here."""
    raise click.UsageError(
        "--api-key is no option: other users of this machine could read the key; set "
        f"${KEY_VARIABLE}, or give --api-key-file FILE"
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The address, the capacity and the models of a server."""

    title: ClassVar[str] = "Server"
    host: str = option("--host", default=HOST, help="Address to listen on.")
    port: int = option(
        "--port",
        type=Integer(0, 65535),
        default=PORT,
        help="Port to listen on, 0 for any free one.",
    )
    slots: int = option(
        "--slots",
        "-np",
        "--parallel",
        type=Integer(1, 64),
        default=N_SLOTS,
        help="Number of requests to answer at once; they share the context (-c).",
    )
    queue: int = rare(
        "--queue",
        type=Integer(0),
        default=N_QUEUE,
        help="Number of requests that may wait for a slot; further ones are refused.",
    )
    timeout: float = rare(
        "--timeout",
        type=Number(0, min_open=True),
        default=TIMEOUT_S,
        help="Longest time of a request in seconds, including the wait for a slot.",
    )
    max_body: float | None = rare(
        "--max-body",
        type=Number(0, MIB_MAX, min_open=True),
        help=f"Largest size of a request in MiB.  [default: {N_BYTES // MIB}, with --mmproj "
        f"{N_BYTES_PICTURES // MIB}]",
    )
    api_key_file: Path | None = option(
        "--api-key-file",
        type=FILE,
        help=f"File with API keys, one a line.  [default: ${KEY_VARIABLE}, else none]",
    )
    api_key: None = option("--api-key", hidden=True, callback=of_value(_refuse))
    cors: tuple[str, ...] = rare(
        "--cors",
        metavar="ORIGIN",
        multiple=True,
        callback=of_value(_origins),
        help="Allow requests from web pages of this origin (CORS), like https://example.org, or * "
        "for any; repeatable.",
    )
    alias: str | None = rare(
        "--alias",
        callback=of_value(_alias),
        help="Name of the model in the API.  [default: the name of its file without .gguf]",
    )
    models: tuple[str, ...] = option(
        "-m",
        "--model",
        metavar="MODEL|NAME=MODEL",
        multiple=True,
        help="The model, or with a name one of several, each loaded when a request asks for it; "
        "repeatable.",
    )
    models_dir: Path | None = rare(
        "--models-dir",
        type=FOLDER,
        help="Serve the GGUF files of this folder in the same way, by their names.",
    )
    max_memory: float | None = rare(
        "--max-memory",
        type=Number(0, min_open=True),
        help="GiB that loaded models may take together, by estimate; the least recently used are "
        "unloaded first.  [default: what is free at the start]",
    )
    keep_alive: float | None = rare(
        "--keep-alive",
        type=Number(0),
        help="Seconds that such a model stays loaded after its last answer.  [default: until "
        "others need its memory]",
    )
    # the server ends when stdin is closed
    with_parent: bool = option("--with-parent", is_flag=True, hidden=True)
    template: str | None = template_option()
    pooling: str | None = rare(
        "--pooling",
        type=click.Choice(["none", "mean", "cls", "last", "rank"]),
        help="Serve embeddings, or with rank scores, made from the rows of a text in this way.  "
        "[default: as the model's file says, if it is made for them]",
    )
    cache_ram: float = rare(
        "--cache-ram",
        type=Number(0),
        default=CACHE_BYTES / MIB,
        help="MiB of memory for texts that the context has no room for, so that prompts which go "
        "on from them are not read again; 0 for none.",
    )
    cache_dir: Path | None = rare(
        "--cache-dir",
        type=FOLDER,
        help="Folder in which such texts are kept for later runs with the same model.",
    )
    slot_save_path: Path | None = rare(
        "--slot-save-path",
        type=FOLDER,
        help="Folder in which clients may save the texts of slots, with POST /slots/{id}.",
    )
    mmproj: Path | None = mmproj_option()
    grace: float = rare(
        "--grace",
        type=Number(0),
        default=GRACE_S,
        help="Seconds to let running requests finish after SIGTERM or Ctrl-C.",
    )

    @property
    def only_model(self) -> str | None:
        """Return the model of a single --model without a name for it, None for any other use."""
        if len(self.models) != 1 or self.models_dir is not None:
            return None
        (given,) = self.models
        return given if "=" not in given or Path(given).exists() else None

    def settings(self, name: str, sampling: SamplingParams) -> Settings:
        """Return how requests are treated; the API keys are the lines of a file, or the one of the
        environment."""
        path, keys = self.api_key_file, tuple(filter(None, [os.environ.get(KEY_VARIABLE)]))
        if path is not None:
            lines = map(str.strip, read_text(str(path)).splitlines())
            keys = tuple(line for line in lines if line and not line.startswith("#"))
            if not keys:
                raise ArgumentError(
                    f"{path} has no API key: write one into it, or several, one a line"
                )
        if not all(map(str.isascii, keys)):  # clients send others in different encodings
            raise ArgumentError(
                f"{path or f'${KEY_VARIABLE}'}: an API key consists of ASCII characters"
            )
        n_bytes = N_BYTES if self.mmproj is None else N_BYTES_PICTURES
        return Settings(
            name=name,
            keys=keys,
            origins=self.cors,
            timeout_s=self.timeout,
            n_bytes=n_bytes if self.max_body is None else round(self.max_body * MIB),
            sampling=sampling,
        )

    def capacity(self, n_ctx: int | None) -> Capacity:
        return Capacity(
            n_ctx,
            self.slots,
            self.queue,
            round(self.cache_ram * MIB),
            self.cache_dir,
            self.slot_save_path,
        )
