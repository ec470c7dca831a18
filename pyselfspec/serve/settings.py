"""What a server is told when it starts, and its defaults. Knows nothing of FastAPI, so that they
can be shown without it."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.sampling import SamplingParams

HOST = "127.0.0.1"
PORT = 8080
N_SLOTS = 4
N_QUEUE = 64
TIMEOUT_S = 600.0
N_BYTES = 4 << 20
GRACE_S = 10.0  # for texts to be finished when the engine is closed


@dataclass(frozen=True, slots=True)
class Settings:
    """name: of the model. key: that requests need, None: none. hosts: names that the server answers
    to, none: all. origins: of web pages that may ask, see CORS. timeout_s: for a whole answer,
    waiting included. n_bytes: of a request's body at most. sampling: where requests say nothing.
    """

    name: str
    key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    n_bytes: int = N_BYTES
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class Room:
    """n_ctx: tokens of all texts together; None: as many for each slot as one text has by default.
    n_slots: texts at once. n_queue: requests that may wait."""

    n_ctx: int | None = None
    n_slots: int = N_SLOTS
    n_queue: int = N_QUEUE
