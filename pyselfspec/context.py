"""A context: K/V cache, compute buffers, and the one primitive, decode a batch with a layer mask.

A context belongs to one thread at a time, and a second thread is told so; several contexts, also of
one model, may run in several threads.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from . import _lib
from ._lib import llama
from .closing import Closing
from .errors import ArgumentError, ContextFullError, DecodeError
from .kv import KVSequence
from .model import INT32_MAX
from .types import SKIP_ATTN, SKIP_FFN, LayerMask

if TYPE_CHECKING:
    from .model import Model

Outputs = Literal["none", "last", "all", "best"]

N_CTX = 4096  # tokens, or the model's training context when that is shorter
N_SEQ_MAX = 256  # llama.cpp's LLAMA_MAX_SEQ
N_THREADS_MAX = 512  # ggml's GGML_MAX_N_THREADS
N_CTX_UNIT = 256  # llama.cpp rounds up to it, but derives other sizes before it does
N_CTX_MAX = 2**26

# What llama.cpp's --cache-type-k and --cache-type-v take, with the numbers of enum ggml_type.
FLOAT_CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30}
CACHE_TYPES = FLOAT_CACHE_TYPES | {
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "iq4_nl": 20,
    "q5_0": 6,
    "q5_1": 7,
}
CACHE_TYPE = "f16"
N_BLOCK = 32  # values that each of the quantized ones stores together


def _require_range(name: str, value: int, low: int, high: int) -> None:
    if value < low:
        raise ArgumentError(f"{name} is at least {low}, got {value}")
    if value > high:
        raise ArgumentError(f"{name} is at most {high}, got {value}")


def _cache_type(name: str, type_name: str) -> int:
    if type_name not in CACHE_TYPES:
        raise ArgumentError(f"{name} is one of {', '.join(CACHE_TYPES)}, got {type_name!r}")
    return CACHE_TYPES[type_name]


def _require_quantizable(model: Model, flash_attn: bool | None, type_k: str, type_v: str) -> None:
    """Raise ArgumentError for quantized K or V that llama.cpp has no kernels for."""
    if flash_attn is False and type_v not in FLOAT_CACHE_TYPES:
        raise ArgumentError(
            f"V of type {type_v} needs flash attention: leave --flash-attn at auto, "
            f"or take one of {', '.join(FLOAT_CACHE_TYPES)} for --cache-type-v"
        )
    # llama.cpp looks at this only with flash attention; without, it would read across heads
    if type_k not in FLOAT_CACHE_TYPES and model.head_size_k % N_BLOCK:
        raise ArgumentError(
            f"K of type {type_k} needs heads of a multiple of {N_BLOCK} values, the model's have "
            f"{model.head_size_k}; take one of {', '.join(FLOAT_CACHE_TYPES)} for --cache-type-k"
        )


def _output_marks(outputs: Outputs, n_tokens: int) -> bytes:
    """For each token, whether it gets an output."""
    if outputs == "none":
        return bytes(n_tokens)
    return b"\1" * n_tokens if outputs == "all" else bytes(n_tokens)[:-1] + b"\1"


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class MaskSupport:
    """Which blocks of a model a mask may skip, each part alone."""

    n_layer: int
    attn: frozenset[int]
    ffn: frozenset[int]

    @property
    def complete(self) -> bool:
        return len(self.attn) == len(self.ffn) == self.n_layer


class Alone:
    """Held by the thread that uses a context; another one is told so instead of having to wait."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ArgumentError(
                "the context is in use in another thread; it belongs to one thread at a time"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


class Decoded:
    """What a decode left behind. Logits are fetched when asked for, and only until the next
    decode."""

    __slots__ = ("_context", "_serial", "hidden", "n_outputs", "n_tokens")

    def __init__(
        self,
        context: Context,
        serial: int,
        n_tokens: int,
        n_outputs: int,
        hidden: NDArray[np.float32] | None,
    ) -> None:
        self._context = context
        self._serial = serial
        self.n_tokens = n_tokens
        self.n_outputs = n_outputs
        self.hidden = hidden  # float32 [n_tokens, n_embd], None when not asked for

    @property
    def logits(self) -> NDArray[np.float32]:
        """A copy, float32 [n_outputs, n_vocab]. Raises ArgumentError after the context decoded
        again."""
        rows = list(self.rows())
        return np.stack(rows) if rows else np.empty((0, self._context.model.n_vocab), np.float32)

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """The same row by row, each float32 [n_vocab], for batches whose logits fill memory."""
        context = self._context
        for i in range(self.n_tokens - self.n_outputs, self.n_tokens):
            if self._serial != context.n_decodes:
                raise ArgumentError(
                    "the context has decoded again; read logits before the next decode"
                )
            with context.alone:
                row = _lib.logits_row(context.handle, i, context.model.n_vocab)
            yield row


class Context(Closing):
    """Use in a ``with`` block. Closing twice is fine; close it before its model (the model sees to
    it).

    n_ctx: tokens of K/V cache over all sequences, drafts included; rounded up to a multiple of 256.
    n_batch: most tokens in one decode.
    n_threads: CPU threads, default: the cores this process may use.
    n_seq_max: sequence ids, the target's and the drafts'.
    flash_attn: None lets llama.cpp decide.
    type_k, type_v: what K and V are stored as, one of CACHE_TYPES. Quantized V needs flash
        attention, and quantized types heads whose size is a multiple of 32.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int | None = None,
        n_batch: int = 512,
        n_threads: int | None = None,
        n_seq_max: int = 4,
        flash_attn: bool | None = None,
        type_k: str = CACHE_TYPE,
        type_v: str = CACHE_TYPE,
    ) -> None:
        n_ctx = min(N_CTX, model.n_ctx_train) if n_ctx is None else n_ctx
        n_threads = min(usable_cores(), N_THREADS_MAX) if n_threads is None else n_threads
        _require_range("n_seq_max", n_seq_max, 1, N_SEQ_MAX)
        _require_range("n_threads", n_threads, 1, N_THREADS_MAX)
        _require_range("n_ctx", n_ctx, 1, N_CTX_MAX)
        _require_range("n_batch", n_batch, n_seq_max, INT32_MAX)  # a row of outputs per sequence
        params = llama.llama_context_default_params()
        params.type_k = _cache_type("type_k", type_k)
        params.type_v = _cache_type("type_v", type_v)
        _require_quantizable(model, flash_attn, type_k, type_v)
        params.n_ctx = -(-n_ctx // N_CTX_UNIT) * N_CTX_UNIT
        params.n_batch = params.n_ubatch = n_batch
        params.n_threads = params.n_threads_batch = n_threads
        params.n_seq_max = n_seq_max
        params.kv_unified = True  # forks share cells only in a unified cache
        params.swa_full = True  # a window-sized cache cannot roll back
        if flash_attn is not None:
            params.flash_attn_type = int(flash_attn)

        self.model = model
        self.n_threads = n_threads
        self.n_seq_max = n_seq_max
        self.flash_attn = flash_attn
        self.type_k = type_k
        self.type_v = type_v
        self.n_decodes = 0
        self.alone = Alone()
        self._stack = ExitStack()

        _lib.clear_log_error()
        handle = llama.llama_init_from_model(model.handle, params)
        if not handle:
            raise DecodeError(
                f"llama.cpp cannot make a context of {n_ctx} tokens: {_lib.log_error()}"
            )
        self._handle: int | None = handle
        self._stack.callback(self._free)
        self.n_ctx: int = llama.llama_n_ctx(handle)

        self.n_batch: int = llama.llama_n_batch(handle)

        self._session: int | None = _lib.session_init(handle)
        if not self._session:
            self._stack.close()
            raise DecodeError("not enough memory for a context")
        self._stack.callback(_lib.session_free, self._session)
        model.contexts.add(self)

    def _free(self) -> None:
        llama.llama_free(self._handle)
        self._handle = None

    def close(self) -> None:
        with self.alone:
            self.model.contexts.discard(self)
            self._stack.close()

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ArgumentError("the context is closed")
        return self._handle

    @property
    def session(self) -> int:
        _ = self.handle  # a closed context ends here
        assert self._session is not None
        return self._session

    @property
    def attention(self) -> str:
        """How attention is computed, in words that name results and costs of it."""
        flash = {None: "auto", True: "on", False: "off"}[self.flash_attn]
        return f"flash attention {flash}, K {self.type_k}, V {self.type_v}"

    @cached_property
    def has_memory(self) -> bool:
        """Whether there is a K/V cache or other state at all (diffusion models have none)."""
        return bool(llama.llama_get_memory(self.handle))

    @cached_property
    def can_rollback(self) -> bool:
        """Whether sequences can forget their last tokens, which drafting needs."""
        return bool(_lib.session_memory(self.session) & _lib.MEMORY_ROLLBACK)

    @cached_property
    def mask_support(self) -> MaskSupport:
        """What masks may skip in this model, found by building each graph once."""
        with self.alone:
            bits = _lib.mask_support(self.session, self.model.n_layer)
        return MaskSupport(
            self.model.n_layer,
            frozenset(il for il, b in enumerate(bits) if b & SKIP_ATTN),
            frozenset(il for il, b in enumerate(bits) if b & SKIP_FFN),
        )

    def can_enter(self, block: int) -> bool:
        """Whether hidden states entering a block can be read and given back, K/V rewritten in
        place: what it takes to check a draft from that block on."""
        with self.alone:
            return _lib.can_enter(self.session, block)

    @property
    def graph_bytes(self) -> int:
        """Memory of the graphs kept prepared for narrow batches, over all devices."""
        with self.alone:
            return int(_lib.graph_bytes(self.session))

    def sequence(self, seq_id: int = 0) -> KVSequence:
        return KVSequence(self, seq_id)

    def decode(
        self,
        tokens: Sequence[int] | None = None,
        *,
        seq: KVSequence | None = None,
        pos: int | None = None,
        mask: LayerMask | None = None,
        hidden: NDArray[np.float32] | None = None,
        hidden_at: int | None = None,
        outputs: Outputs = "all",
        in_place: bool = False,
    ) -> Decoded:
        """One pass over a batch of one sequence (default: sequence 0).

        tokens: ids, at most n_batch.
        pos: position of the first token; default: the next one. in_place needs it.
        mask: which parts to skip; None runs everything. K/V of skipped attention is not written.
        hidden: float32 [n_tokens, n_embd], states entering ``mask.first_active``, instead of
            tokens, or along with them for architectures that read ids in later blocks.
        hidden_at: also return the states entering this block, 1..n_layer (n_layer: those leaving
            the last).
        outputs: which tokens get logits. "best": none, but argmax() of the last one works, found
            where the head runs, so that a GPU's logits stay there.
        in_place: rewrite the K/V that the sequence holds at these positions instead of taking fresh
            cells. Sequences that share the cells see the new K/V too. If the computation fails, the
            positions from pos on are lost.

        Raises MaskError, ArgumentError, UnsupportedError, ContextFullError or DecodeError; the
        first three before anything has changed.
        """
        seq = self._checked_sequence(seq)
        if mask is not None:
            mask.require(self.model.n_layer)
        if outputs not in (all_outputs := get_args(Outputs)):
            raise ArgumentError(f"outputs is one of {', '.join(all_outputs)}, got {outputs!r}")
        if tokens is not None:
            tokens = [operator.index(token) for token in tokens]
            self.model.require_tokens(tokens)
        if hidden is not None:
            hidden = self._checked_hidden(hidden, tokens)
        n_tokens = len(hidden) if hidden is not None else len(tokens or ())
        hidden_out = None
        if hidden_at is not None:
            if not 1 <= hidden_at <= self.model.n_layer:
                raise ArgumentError(f"hidden_at is 1 to {self.model.n_layer}, got {hidden_at}")
            hidden_out = np.empty((n_tokens, self.model.n_embd), np.float32)
        with self.alone:
            pos = self._checked_position(pos, seq, n_tokens, in_place)
            self.n_decodes += 1
            _lib.decode(
                self.session,
                n_tokens=n_tokens,
                tokens=tokens,
                seq_ids=[seq.seq_id] * n_tokens,
                pos=range(pos, pos + n_tokens),
                outputs=_output_marks(outputs, n_tokens),
                hidden=hidden,
                mask=None if mask is None else mask.to_bytes(),
                hidden_at=-1 if hidden_at is None else hidden_at,
                hidden_out=hidden_out,
                head=_lib.HEAD_BEST if outputs == "best" else _lib.HEAD_LOGITS,
                in_place=in_place,
            )
        n_outputs = {"none": 0, "last": 1, "all": n_tokens, "best": 0}[outputs]
        return Decoded(self, self.n_decodes, n_tokens, n_outputs, hidden_out)

    def prefill(self, tokens: Sequence[int], seq: KVSequence | None = None) -> None:
        """Decode a prompt of any length with the full model, without outputs."""
        seq = self._checked_sequence(seq)
        if seq.n_past + len(tokens) > self.n_ctx:
            raise ContextFullError(
                f"the prompt has {seq.n_past + len(tokens)} tokens, the context {self.n_ctx}; "
                "use a larger -c or a shorter prompt"
            )
        for i in range(0, len(tokens), self.n_batch):
            self.decode(tokens[i : i + self.n_batch], seq=seq, outputs="none")

    @property
    def best_only(self) -> Outputs:
        """What to ask for where argmax() of one token is all that is needed. Logits that are on the
        CPU are where argmax() reads them: there, "best" would save nothing."""
        return "best" if self.model.n_gpu_layers > self.model.n_layer else "last"

    def argmax(self, row: int) -> tuple[int, float]:
        """The most likely token after token ``row`` of the last batch, and its probability."""
        with self.alone:
            return _lib.argmax(self.session, row)

    def _checked_sequence(self, seq: KVSequence | None) -> KVSequence:
        if seq is None:
            return self.sequence()
        if seq.context is not self:
            raise ArgumentError("the sequence belongs to another context")
        return seq

    def _checked_position(
        self, pos: int | None, seq: KVSequence, n_tokens: int, in_place: bool
    ) -> int:
        if pos is None:
            if in_place:
                raise ArgumentError("in_place needs pos, the first position to rewrite")
            return seq.n_past if self.has_memory else 0
        if not -INT32_MAX <= pos <= INT32_MAX - n_tokens:
            raise ArgumentError(
                f"position {pos} is not allowed, the next batch of sequence {seq.seq_id} "
                f"starts at {seq.n_past}"
            )
        return pos

    def _checked_hidden(
        self, hidden: NDArray[np.float32], tokens: Sequence[int] | None
    ) -> NDArray[np.float32]:
        hidden = np.ascontiguousarray(hidden, np.float32)
        if hidden.ndim != 2 or hidden.shape[1] != self.model.n_embd:
            raise ArgumentError(
                f"hidden states have shape [n_tokens, {self.model.n_embd}], "
                f"got {list(hidden.shape)}"
            )
        if tokens is not None and len(tokens) != len(hidden):
            raise ArgumentError(f"{len(tokens)} tokens do not go with {len(hidden)} hidden states")
        return hidden
