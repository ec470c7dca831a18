"""The options of a context: their defaults, and the values that they may have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, SupportsIndex

from ..errors import ArgumentError
from ..util.machine import usable_cores
from ..util.pass_width import MAX_DRAFT
from ..util.sizes import INT32_MAX
from . import kv_types
from .checkpoints import N_CHECKPOINTS
from .kv_types import CACHE_TYPE

if TYPE_CHECKING:
    from .model import Model

N_CTX = 4096  # tokens, or the model's training context when that is shorter
N_SEQ = 4
N_SEQ_MAX = 256  # llama.cpp's LLAMA_MAX_SEQ
N_THREADS_MAX = 512  # ggml's GGML_MAX_N_THREADS
N_CTX_UNIT = 256  # llama.cpp rounds up to it, but derives other sizes before it does
N_CTX_MAX = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """How a context is made.

    n_ctx: tokens of K/V cache over all sequences, drafts included; rounded up to a multiple of 256.
        Default: 4096, or the model's training context when that is shorter. A text of a model with
        a table of positions (GPT-2, StarCoder, MPT) ends with the table: see Context.n_ctx.
    n_batch: most tokens in one pass.
    n_threads: most CPU threads of a pass, which takes fewer while other programs want the cores.
        Default: the cores this process may use.
    n_seq_max: number of sequence ids, for texts and drafts. Default: 4; for recurrent and hybrid
        models 1, since they draft in the sequence of the text, and each has a state.
    flash_attn: None lets llama.cpp decide.
    type_k, type_v: types that K and V are stored as, of CACHE_TYPES. Quantized V needs flash
        attention, and quantized K heads whose size is a multiple of 32.
    n_snapshots: for recurrent and hybrid models, the snapshots of its state that each sequence
        keeps: the most draft tokens that can be removed without a checkpoint. llama.cpp has them
        for some architectures only. At most n_batch - 2. Default: none where the state can be
        computed again from the rows of the last pass, which removes up to 15 tokens; else up to 15,
        fewer where states are large beside the weights.
    n_checkpoints: for such models, the most checkpoints of states that the context keeps, to which
        texts can go back.
    is_causal: whether tokens of a pass see those before them only; if not, there are no drafts.
        None: as the model's file says.
    """

    n_ctx: int | None = None
    n_batch: int = 512
    n_threads: int | None = None
    n_seq_max: int | None = None
    flash_attn: bool | None = None
    type_k: str = CACHE_TYPE
    type_v: str = CACHE_TYPE
    n_snapshots: int | None = None
    n_checkpoints: int = N_CHECKPOINTS
    is_causal: bool | None = None

    def for_model(self, model: Model) -> Self:
        """Return these options with the defaults of a model, of all but n_snapshots and is_causal.

        Raises ArgumentError for a value outside its range, and for K or V without kernels.
        """
        n_ctx, n_threads, n_seq_max = self.n_ctx, self.n_threads, self.n_seq_max
        n_ctx = min(N_CTX, model.n_ctx_train) if n_ctx is None else n_ctx
        n_threads = min(usable_cores(), N_THREADS_MAX) if n_threads is None else n_threads
        if n_seq_max is None:
            n_seq_max = 1 if model.state_bytes else N_SEQ
        require_range("n_seq_max", n_seq_max, 1, N_SEQ_MAX)
        require_range("n_threads", n_threads, 1, N_THREADS_MAX)
        require_range("n_ctx (-c)", n_ctx, 1, N_CTX_MAX)
        require_range("n_batch", self.n_batch, n_seq_max, INT32_MAX)  # an output per sequence
        require_range("n_checkpoints", self.n_checkpoints, 1, INT32_MAX)
        if self.n_snapshots is not None:
            require_range("n_snapshots", self.n_snapshots, 0, min(MAX_DRAFT, self.most_snapshots))
        for parameter in ("type_k", "type_v"):
            kv_types.number(parameter, getattr(self, parameter))
        kv_types.require_kernels(model, self.flash_attn, self.type_k, self.type_v)
        return replace(self, n_ctx=n_ctx, n_threads=n_threads, n_seq_max=n_seq_max)

    @property
    def most_snapshots(self) -> int:
        """The number of snapshots that fit: llama.cpp keeps the rows that they belong to in one
        pass, and ends the process where these do not leave room for another row."""
        return max(0, self.n_batch - 2)

    @property
    def attention(self) -> str:
        """A description of how attention is computed, which identifies its results and costs."""
        flash = {None: "auto", True: "on", False: "off"}[self.flash_attn]
        return f"flash attention {flash}, K {self.type_k}, V {self.type_v}"


def require_range(parameter: str, value: int, low: int, high: int) -> None:
    """Raise ArgumentError for a value that is not a whole number or is outside its range."""
    if not isinstance(value, SupportsIndex):
        raise ArgumentError(f"{parameter} is a whole number, got {value!r}")
    if value < low:
        raise ArgumentError(f"{parameter} is at least {low}, got {value}")
    if value > high:
        raise ArgumentError(f"{parameter} is at most {high}, got {value}")
