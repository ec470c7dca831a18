"""Settings of a server and their defaults. Does not import FastAPI, so that the command's help can
show them without it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..runtime.sampling import SamplingParams

HOST = "127.0.0.1"
PORT = 8080
N_SLOTS = 4
N_QUEUE = 64
TIMEOUT_S = 600.0
N_BYTES = 4 << 20
N_BYTES_PICTURES = 16 << 20  # with a projector; a picture of a camera has a few MB
CACHE_BYTES = 1 << 30
GRACE_S = 10.0  # in which completions may finish at shutdown


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server treats requests.

    name: the model's name in the API. keys: the API keys, one of which a request needs; empty for
    no key. hosts: allowed Host headers, empty for all. origins: allowed CORS origins. timeout_s:
    time limit of an answer, including time in the queue. n_bytes: largest body of a request.
    sampling: defaults for fields that a request leaves out.
    """

    name: str
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    n_bytes: int = N_BYTES
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many completions fit into the server.

    n_ctx: tokens of all running completions; None for a default context per slot. n_slots:
    completions at once. n_queue: requests that may wait for a slot. cache_bytes: of snapshots in
    RAM, 0 for none. cache_dir: folder of snapshots for later runs. slot_dir: folder of snapshots
    that clients save.
    """

    n_ctx: int | None = None
    n_slots: int = N_SLOTS
    n_queue: int = N_QUEUE
    cache_bytes: int = CACHE_BYTES
    cache_dir: Path | None = None
    slot_dir: Path | None = None
