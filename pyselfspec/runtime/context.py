"""A context: K/V cache, compute buffers, and the one primitive, decode a batch with a layer mask.

A context belongs to one thread at a time, and a second thread is told so; several contexts, also of
one model, may run in several threads.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, ContextFullError, DecodeError, UnsupportedError
from ..gguf import heads
from ..masks.layer_mask import SKIP_ATTN, SKIP_FFN, LayerMask
from ..masks.space import MaskSupport
from ..util.closing import Closing
from ..util.machine import usable_cores
from . import _lib, memory
from ._lib import INT32_MAX, llama
from .guards import Alone
from .kv import KVSequence
from .ledger import Ledger
from .passes import FULL, OUTPUTS, Head, Hidden, Outputs, Pass, Rows

if TYPE_CHECKING:
    from .model import Model

T = TypeVar("T")

N_CTX = 4096  # tokens, or the model's training context when that is shorter
N_SEQ = 4
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
            f"V of type {type_v} needs flash attention: leave flash_attn=None, "
            f"or take one of {', '.join(FLOAT_CACHE_TYPES)} for type_v"
        )
    # llama.cpp looks at this only with flash attention; without, it would read across heads
    if type_k not in FLOAT_CACHE_TYPES and model.head_size_k % N_BLOCK:
        raise ArgumentError(
            f"K of type {type_k} needs heads of a multiple of {N_BLOCK} values, the model's have "
            f"{model.head_size_k}; take one of {', '.join(FLOAT_CACHE_TYPES)} for type_k"
        )


class Decoded:
    """What a pass left behind. Logits are fetched when asked for, and only until the context's next
    pass.

    hidden: the states that were asked for, one per row; None when none were.
    """

    __slots__ = ("_context", "_outputs", "_serial", "hidden")

    def __init__(
        self, context: Context, serial: int, outputs: Sequence[bool], hidden: Hidden | None
    ) -> None:
        self._context = context
        self._serial = serial
        self._outputs = outputs
        self.hidden = hidden

    @property
    def n_tokens(self) -> int:
        return len(self._outputs)

    @property
    def n_outputs(self) -> int:
        return sum(self._outputs)

    @property
    def logits(self) -> NDArray[np.float32]:
        """A copy, float32 [n_outputs, n_vocab]. Raises ArgumentError after the context's next
        pass."""
        rows = list(self.rows())
        return np.stack(rows) if rows else np.empty((0, self._context.model.n_vocab), np.float32)

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """The same row by row, each float32 [n_vocab], for batches whose logits fill memory."""
        context = self._context
        for i, wanted in enumerate(self._outputs):
            if not wanted:
                continue
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
    target: for draft heads, the context that they draft for, whose model lends what the head's file
        leaves out; on the same model, the context is one for the model's own head. The target has
        to outlive it.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int | None = None,
        n_batch: int = 512,
        n_threads: int | None = None,
        n_seq_max: int = N_SEQ,
        flash_attn: bool | None = None,
        type_k: str = CACHE_TYPE,
        type_v: str = CACHE_TYPE,
        target: Context | None = None,
    ) -> None:
        n_ctx = min(N_CTX, model.n_ctx_train) if n_ctx is None else n_ctx
        n_threads = min(usable_cores(), N_THREADS_MAX) if n_threads is None else n_threads
        _require_range("n_seq_max", n_seq_max, 1, N_SEQ_MAX)
        _require_range("n_threads", n_threads, 1, N_THREADS_MAX)
        _require_range("n_ctx", n_ctx, 1, N_CTX_MAX)
        _require_range("n_batch", n_batch, n_seq_max, INT32_MAX)  # a row of outputs per sequence
        if target is None and model.file.architecture == heads.ARCHITECTURE:
            raise ArgumentError(
                f"{model.path.name} is a draft head, which writes nothing by itself; draft with it "
                "for its model, as head:FILE"
            )
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
        # where all weights are on the CPU, a GPU must not help out: its results are others
        params.op_offload = model.n_gpu_layers > 0
        if target is not None:
            params.ctx_other = target.handle
            if target.model is model:
                params.ctx_type = llama.LLAMA_CONTEXT_TYPE_MTP
        if flash_attn is not None:
            params.flash_attn_type = int(flash_attn)

        self._describe(model, n_threads, n_seq_max, flash_attn, type_k, type_v)
        if target is None and not model.n_gpu_layers:
            memory.require_for_context(
                model.file,
                params.n_ctx,
                type_k,
                type_v,
                n_threads=n_threads,
                free=model.free_bytes,
            )
        with model.users:
            self._open(params, n_ctx)
            model.contexts.add(self)

    @classmethod
    def lent(
        cls,
        model: Model,
        handle: int,
        *,
        n_batch: int,
        n_threads: int,
        n_seq_max: int,
        flash_attn: bool,
        type_k: str,
        type_v: str,
    ) -> Context:
        """A context that somebody else has made, and frees. Close this one before; the arguments
        say how it was made. Whoever lends it may evaluate tokens in sequence 0 by other ways, and
        says afterwards what that holds; no branches are drafted, since the cells that they leave
        empty would be in the way.

        n_batch: most tokens of a pass, none of them computed apart from the others.

        Raises DecodeError where memory is short.
        """
        context = cls.__new__(cls)
        context._describe(model, n_threads, n_seq_max, flash_attn, type_k, type_v)
        context._is_lent = True
        context._stack.callback(context._forget)
        with model.users:
            context._read(handle)
            context.n_batch = n_batch
            model.contexts.add(context)
        return context

    def _describe(
        self,
        model: Model,
        n_threads: int,
        n_seq_max: int,
        flash_attn: bool | None,
        type_k: str,
        type_v: str,
    ) -> None:
        self.model: Model = model
        self.n_threads = n_threads
        self.n_seq_max: int = n_seq_max
        self.flash_attn = flash_attn
        self.type_k = type_k
        self.type_v = type_v
        self.n_decodes = 0
        self.alone = Alone("the context")
        self._session: int | None = None
        self._in_session = threading.RLock()  # against its end while another thread stops passes
        self.ledger = Ledger(n_seq_max)
        self._is_lent = False
        self._made: dict[Hashable, Any] = {}
        self._stack = ExitStack()

    def _open(self, params: Any, n_ctx: int) -> None:
        _lib.clear_log_error()
        handle = llama.llama_init_from_model(self.model.handle, params)
        if not handle:
            raise DecodeError(
                f"llama.cpp cannot make a context of {n_ctx} tokens: {_lib.log_error()}"
            )
        self._stack.callback(self._free)
        self._read(handle)
        try:
            what = f"a pass in a context of {n_ctx} tokens"
            memory.require_room(self.model.file, what, n_threads=self.n_threads)
        except DecodeError:
            self._stack.close()
            raise

    def _read(self, handle: int) -> None:
        _lib.require_not_forked()
        self._handle: int | None = handle
        self.n_ctx: int = llama.llama_n_ctx(handle)
        self.n_batch: int = llama.llama_n_batch(handle)

        self._session = _lib.session_init(handle)
        if not self._session:
            self._stack.close()
            raise DecodeError("not enough memory for a context")
        self._stack.callback(self._end_session)

    def _free(self) -> None:
        llama.llama_free(self._handle)
        self._forget()

    def _end_session(self) -> None:
        with self._in_session:
            session, self._session = self._session, None
            _lib.session_free(session)

    def _forget(self) -> None:
        self._handle = None

    def close(self) -> None:
        with self.alone:
            self.model.contexts.discard(self)
            self._stack.close()

    def closes(self, other: Closing) -> None:
        """Close something else first whenever this context is closed."""
        self._stack.callback(other.close)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make()`` returned the first time that it was asked for under this key; kept as
        long as the context is, and closed with it if it can be closed."""
        if key not in self._made:
            self._made[key] = made = make()
            if isinstance(made, Closing):
                self._stack.callback(made.close)
        value: T = self._made[key]
        return value

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ArgumentError("the context is closed")
        return self._handle

    @property
    def session(self) -> int:
        if self._session is None:
            raise ArgumentError("the context is closed")
        return self._session

    @property
    def attention(self) -> str:
        """How attention is computed, in words that name results and costs of it."""
        flash = {None: "auto", True: "on", False: "off"}[self.flash_attn]
        return f"flash attention {flash}, K {self.type_k}, V {self.type_v}"

    @cached_property
    def has_memory(self) -> bool:
        """Whether there is a K/V cache or other state at all (diffusion models have none)."""
        with self.alone:
            return bool(llama.llama_get_memory(self.handle))

    @cached_property
    def can_rollback(self) -> bool:
        """Whether sequences can forget their last tokens, which drafting needs."""
        return bool(self._memory_bits & _lib.MEMORY_ROLLBACK)

    def require_rollback(self) -> None:
        """Raise UnsupportedError where sequences cannot forget their last tokens."""
        if not self.can_rollback:
            raise self.no_rollback()

    def no_rollback(self) -> UnsupportedError:
        return UnsupportedError(
            f"architecture {self.model.file.architecture}: its memory cannot take tokens back, "
            "which drafting needs; decode plainly, draft=None"
        )

    @cached_property
    def _memory_bits(self) -> int:
        with self.alone:
            return _lib.session_memory(self.session)

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
        place: what it takes to verify a draft from that block on."""
        with self.alone:
            return _lib.can_enter(self.session, block)

    @cached_property
    def can_shorten(self) -> bool:
        """Whether passes can look at a short list of tokens only: where all is on a CPU that has a
        kernel for the head's weights."""
        with self.alone:
            return _lib.can_shorten(self.session)

    @property
    def n_graph_checks(self) -> int:
        """Graphs built without computing them so far, to find out what masks may do."""
        with self.alone:
            return int(_lib.n_graph_checks(self.session))

    @property
    def n_moves(self) -> int:
        """How often K/V cells have been moved so far, to keep those of every sequence in order."""
        with self.alone:
            return _lib.n_moves(self.session)

    @property
    def graph_bytes(self) -> int:
        """Memory of the graphs kept prepared for narrow batches, over all devices."""
        with self.alone:
            return int(_lib.graph_bytes(self.session))

    @cached_property
    def exact_width(self) -> int:
        """Up to so many rows in a pass, the bits of each row's results do not depend on how many
        there are; 0 where the library cannot promise that: where a GPU or a BLAS library may
        compute, and for architectures that add up over the rows of a pass."""
        with self.alone:
            return _lib.exact_width(self.session)

    @cached_property
    def exact_prompts(self) -> bool:
        """Whether a prompt has the same bits however it is split, in passes wider than exact_width
        too; False where the library cannot promise that."""
        with self.alone:
            return _lib.exact_prompts(self.session)

    @property
    def is_exact_beside_others(self) -> bool:
        """Whether the bits of a text do not depend on the other texts in the context, as long as
        passes keep to the exact width. False without flash attention, which some architectures do
        not have: other attention adds up in an order that depends on where the cells are."""
        return bool(self.exact_width and self._memory_bits & _lib.MEMORY_SCATTER)

    @property
    def pass_width(self) -> int:
        """Most rows of a verification pass: wider ones could change the text."""
        return self.exact_width or self.n_batch

    def sequence(self, seq_id: int = 0) -> KVSequence:
        return KVSequence(self, seq_id)

    def require_spare(self) -> None:
        """Raise ArgumentError where all sequence ids are the texts' own."""
        if self.n_seq_max < 2:
            raise ArgumentError("drafting needs a context with n_seq_max of at least 2")

    @contextmanager
    def spare_sequence(self) -> Iterator[KVSequence]:
        """An empty sequence to work in, empty again afterwards. Ids are lent from the highest down,
        never those that texts have claimed.

        Raises ArgumentError when none is free.
        """
        with self.alone:
            seq = self._spare()
            if seq is None:
                raise ArgumentError(
                    f"all {self.n_seq_max} sequences of the context are in use; give it a larger "
                    "n_seq_max"
                )
            self.ledger.lend(seq.seq_id)
        try:
            yield seq
        finally:
            self.ledger.give_back(seq.seq_id)
            seq.undo(0)

    @property
    def has_spare(self) -> bool:
        """Whether there is a sequence to lend."""
        return self._spare() is not None

    @property
    def n_branches(self) -> int:
        """Branches that a text can try in one pass now, each in a sequence: 1 where the others are
        in use; where no token can be taken back (recurrent and hybrid models); without flash
        attention, where the cells that branches leave empty would change the last bits; and in a
        context that is lent."""
        wanted = _lib.MEMORY_ROLLBACK | _lib.MEMORY_SCATTER
        if self._is_lent or self._memory_bits & wanted != wanted:
            return 1
        return min(self.n_seq_max, 1 + sum(1 for _ in self._spares()))

    def _spare(self) -> KVSequence | None:
        return next(self._spares(), None)

    def _spares(self) -> Iterator[KVSequence]:
        free = (i for i in reversed(range(self.n_seq_max)) if self.ledger.is_free(i))
        return (seq for seq in map(self.sequence, free) if seq.n_past == 0)

    def decode(
        self,
        tokens: Sequence[int] | None = None,
        *,
        seq: KVSequence | None = None,
        pos: int | None = None,
        outputs: Outputs = "all",
        mask: LayerMask | None = None,
        hidden: Hidden | NDArray[np.float32] | None = None,
        hidden_at: int | tuple[int, ...] | None = None,
        head: Head = "logits",
        in_place: bool = False,
    ) -> Decoded:
        """One pass over tokens of one sequence: ``run`` for what is needed most.

        tokens: ids, at most n_batch. None with hidden states, where the architecture needs no ids.
        seq: default: sequence 0.
        pos: position of the first token; default: the next one. in_place needs it.
        outputs: which tokens get an output: "none", "last" or "all".
        mask, head, in_place: as in Pass. hidden: Pass.enter, also as float32 [n_tokens, n_embd].
        hidden_at: Pass.leave.

        Raises what ``run`` does.
        """
        seq = self.sequence() if seq is None else seq
        if seq.context is not self:
            raise ArgumentError("the sequence belongs to another context")
        if outputs not in OUTPUTS:
            raise ArgumentError(f"outputs is one of {', '.join(OUTPUTS)}, got {outputs!r}")
        if hidden is not None and not isinstance(hidden, Hidden):
            hidden = Hidden(np.ascontiguousarray(hidden, np.float32))
        if pos is None:
            if in_place:
                raise ArgumentError("in_place needs pos, the first position to rewrite")
            pos = seq.n_past if self.has_memory else 0
        ids = [0] * len(hidden or ()) if tokens is None else tokens
        rows = Rows.of(seq.seq_id, pos, ids, outputs)
        what = Pass(mask, hidden, hidden_at, head, in_place)
        return self._run(rows, what, has_tokens=tokens is not None)

    def run(self, rows: Rows, what: Pass = FULL) -> Decoded:
        """One pass over rows of any sequences. The primitive under everything.

        The rows of a sequence continue it, in order; with ``what.in_place`` they are at positions
        that it holds. If the computation fails or is stopped, its rows are forgotten; in place,
        those positions are lost; and where the memory takes no tokens back, the whole sequence is.
        Ctrl-C stops it in the main thread, see ``stopped`` for others.

        Raises MaskError, ArgumentError, UnsupportedError, ContextFullError or DecodeError; the
        first three before anything has changed. LibraryError in a process that was forked after the
        library was loaded.
        """
        return self._run(rows, what, has_tokens=True)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """While inside, passes end before they are finished, with DecodeError: one that runs in
        another thread, and those that begin. May be entered from any thread, also by several at a
        time. Operations that run on a GPU are waited for."""
        with self._in_session:
            _lib.stop_passes(self.session, True)
        try:
            yield
        finally:
            with self._in_session:
                if self._session is not None:
                    _lib.stop_passes(self._session, False)

    def _run(self, rows: Rows, what: Pass, *, has_tokens: bool) -> Decoded:
        rows.require_whole()
        if what.mask is not None:
            what.mask.require(self.model.n_layer)
        tokens = [operator.index(token) for token in rows.tokens]
        self.model.require_tokens(tokens)
        if what.enter is not None:
            self._require_states(what.enter, len(rows))
        states = None
        blocks = what.blocks_left
        last = self.model.n_layer + (self.model.own_head is not None)
        for block in blocks:
            if not 1 <= block <= last:
                raise ArgumentError(f"hidden_at is 1 to {last}, got {block}")
        if blocks:
            states = np.empty((len(rows), len(blocks) * self.model.n_embd), np.float32)
        with self.alone:
            self._require_positions(rows)
            self.ledger.touch(rows, what.in_place)
            self.n_decodes += 1
            try:
                _lib.decode(
                    self.session,
                    tokens=tokens if has_tokens else None,
                    seq_ids=rows.seq_ids,
                    pos=rows.pos,
                    outputs=bytes(rows.outputs),
                    hidden=None if what.enter is None else what.enter.numpy(),
                    mask=None if what.mask is None else what.mask.to_bytes(),
                    hidden_at=blocks,
                    hidden_out=states,
                    head=what.head,
                    among=None if what.among is None else what.among.ids,
                    in_place=what.in_place,
                    shared=rows.shared,
                )
            except BaseException:  # Ctrl-C too
                self._forget_lost()
                raise
            if has_tokens and what.is_whole:
                self.ledger.evaluated(rows)
        outputs = rows.outputs if what.head == "logits" else (False,) * len(rows)
        return Decoded(self, self.n_decodes, outputs, None if states is None else Hidden(states))

    def prefill(self, tokens: Sequence[int], seq: KVSequence | None = None) -> None:
        """Decode a prompt of any length with the full model, without outputs."""
        seq = self.sequence() if seq is None else seq
        n_past = seq.n_past
        if n_past + len(tokens) > self.n_ctx:
            raise ContextFullError(
                f"the prompt has {n_past + len(tokens)} tokens, the context {self.n_ctx}; "
                "give a larger n_ctx or a shorter prompt"
            )
        for i in range(0, len(tokens), self.n_batch):
            self.decode(tokens[i : i + self.n_batch], seq=seq, outputs="none")

    @property
    def best_head(self) -> Head:
        """What to ask of the head where argmax() is all that is needed. Logits that are on the CPU
        are where argmax() reads them: there, "best" would save nothing."""
        return "best" if self.model.n_gpu_layers > self.model.n_layer else "logits"

    def logits(self, row: int) -> NDArray[np.float32]:
        """A copy of the logits after token ``row`` of the last batch, float32 [n_vocab]."""
        with self.alone:
            return _lib.logits_row(self.handle, row, self.model.n_vocab)

    def argmax(self, row: int) -> tuple[int, float]:
        """The most likely token after token ``row`` of the last batch, and its probability."""
        with self.alone:
            return _lib.argmax(self.session, row)

    def runners_up(
        self, row: int, best: tuple[int, float], n: int, p_min: float
    ) -> list[tuple[int, float]]:
        """The next likeliest tokens after a row of the last batch, at most n, with their
        probabilities of at least p_min, the likeliest first.

        best: what ``argmax`` says. Needs logits; some 50 microseconds for 50,000 tokens of
            vocabulary.
        """
        token, p = best
        over_best = self.logits(row)
        over_best -= over_best[token]
        near = np.flatnonzero(over_best >= math.log(p_min / p))
        near = near[near != token]
        near = near[np.argsort(-over_best[near], kind="stable")[:n]]
        return [(int(i), p * math.exp(over_best[i])) for i in near]

    def best(self, row: int) -> int:
        """The most likely token after token ``row`` of the last batch, of equally likely ones the
        lowest, without its probability: reads the logits only once."""
        with self.alone:
            return _lib.best(self.session, row)

    def _forget_lost(self) -> None:
        """After a pass that failed: nothing is known of what the sequences no longer hold."""
        if self.has_memory:
            for seq_id in range(self.n_seq_max):
                self.ledger.cut(seq_id, self.sequence(seq_id).n_past)

    def _require_positions(self, rows: Rows) -> None:
        for _, seq_id, pos in rows.places():
            if not 0 <= seq_id < self.n_seq_max:
                raise ArgumentError(
                    f"sequence id {seq_id} is not allowed, the context has 0 to "
                    f"{self.n_seq_max - 1}"
                )
            if not -INT32_MAX <= pos <= INT32_MAX:
                raise ArgumentError(
                    f"position {pos} is not allowed, the next batch of sequence {seq_id} "
                    f"starts at {self.sequence(seq_id).n_past}"
                )

    def _require_states(self, hidden: Hidden, n_rows: int) -> None:
        shape = hidden.numpy().shape
        if shape[1] != self.model.n_embd:
            raise ArgumentError(
                f"hidden states have shape [n_tokens, {self.model.n_embd}], got {list(shape)}"
            )
        if len(hidden) != n_rows:
            raise ArgumentError(f"{n_rows} tokens do not go with {len(hidden)} hidden states")
