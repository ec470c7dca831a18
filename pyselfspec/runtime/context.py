"""A context: K/V cache, compute buffers, and the one primitive ``run``, a pass with a layer mask.

A context belongs to one thread at a time; in a second thread its methods raise ArgumentError.
Several contexts, also of one model, may run in several threads.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, prompt_too_long
from ..masks.layer_mask import SKIP_ATTN, SKIP_FFN, LayerMask
from ..masks.space import MaskSupport
from ..util.closable import Closing
from .checkpoints import Checkpoints
from .context_handle import ContextHandle
from .context_options import ContextOptions
from .ffi import calls, devices
from .ffi.load import llama, native
from .kv import KVSequence
from .lora import Adapters, require_owner, set_adapters
from .pass_checks import require_picture, require_positions, require_states, states_width
from .pass_result import PassResult
from .passes import FULL, OUTPUTS, Head, Hidden, Outputs, Pass, PictureRows, Rows
from .sequence_table import SequenceTable
from .thread_guards import SingleThread

if TYPE_CHECKING:
    from .model import Model


class Context(Closing):
    """A context of a model, made by ``model.context()``. Use in a ``with`` block. Closing twice is
    fine; closing the model closes its contexts first.

    handle: of llama.cpp's context, closed with this object. If another program part owns that
        context, it may evaluate tokens in sequence 0 by other means and then call
        ``replace_tokens``; no branches are drafted in such a context, since the cells that they
        leave empty would disturb the owner.
    n_batch: most tokens of a pass.
    n_cells: tokens of K/V cache over all sequences. n_ctx: most tokens of a text: as many, or those
        for which the model has positions.
    options: how the context was made. abilities: the operations that it supports.
    """

    def __init__(self, model: Model, handle: ContextHandle, options: ContextOptions) -> None:
        assert options.n_threads is not None and options.n_seq_max is not None
        self.model: Model = model
        self.options = options
        self.n_cells: int = llama.llama_n_ctx(handle.context)
        self.n_ctx: int = model.within_positions(self.n_cells)
        self.n_batch: int = min(options.n_batch, llama.llama_n_batch(handle.context))
        self.n_threads = options.n_threads
        self.n_seq_max = options.n_seq_max
        try:
            self.abilities = handle.abilities(model.file.architecture, self.n_batch)
        except BaseException:
            handle.close()
            raise
        self.n_decodes = 0
        self.lock = SingleThread("the context")
        self.sequence_table = SequenceTable(self.n_seq_max)
        self.checkpoints = Checkpoints(options.n_checkpoints)
        self.extension: Closing | None = None  # state of the generations in this context
        self.adapters: Adapters = model.default_adapters  # of passes that name none
        self._adapters: Adapters = ()  # that llama.cpp's context has now
        self._handle = handle
        self._stack = ExitStack()
        self._stack.callback(handle.close)
        with model.in_use():
            model.contexts.add(self)

    def close(self) -> None:
        with self.lock():
            self.model.contexts.discard(self)
            self._stack.close()
            self.extension = None  # it refers to this context, and may hold much memory

    def closes(self, other: Closing) -> None:
        """Close another object first whenever this context is closed. Raises ArgumentError when
        closed."""
        if self.closed:
            raise ArgumentError("the context is closed")
        self._stack.callback(other.close)

    @property
    def closed(self) -> bool:
        return self._handle.closed

    @property
    def handle(self) -> int:
        """The address of llama.cpp's context. Raises ArgumentError when closed."""
        return self._handle.context

    @property
    def session(self) -> int:
        """The address of this package's session. Raises ArgumentError when closed."""
        return self._handle.session

    @cached_property
    def mask_support(self) -> MaskSupport:
        """The sublayers that masks may skip in this model, found by building each graph once."""
        with self.lock():
            bits = calls.mask_support(self.session, self.model.n_layer)
        return MaskSupport(
            self.model.n_layer,
            frozenset(il for il, b in enumerate(bits) if b & SKIP_ATTN),
            frozenset(il for il, b in enumerate(bits) if b & SKIP_FFN),
        )

    def can_enter(self, block: int) -> bool:
        """Return whether hidden states entering a block can be read and given back, with K/V
        rewritten in place; verification of a draft from that block on needs it."""
        with self.lock():
            return calls.can_enter(self.session, block)

    @property
    def can_shorten(self) -> bool:
        """Whether passes can compute the logits of a short list of tokens only; needs all weights
        on a CPU that has a kernel for the head's type, and no adapter that changes the head in the
        last pass."""
        with self.lock():
            return calls.can_shorten(self.session)

    @property
    def n_moves(self) -> int:
        """The number of moves of K/V cells so far, which keep those of a sequence in order."""
        with self.lock():
            return calls.n_moves(self.session)

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graphs kept for narrow batches, over all devices. Tests read it."""
        with self.lock():
            return int(native.selfspec_graph_bytes(self.session))

    def sequence(self, seq_id: int = 0) -> KVSequence:
        return KVSequence(self, seq_id)

    def require_spare(self) -> None:
        """Raise ArgumentError if the context has no sequence id for drafts."""
        if self.n_seq_max < 2:
            raise ArgumentError("drafting needs a context with n_seq_max of at least 2")

    @contextmanager
    def spare_sequence(self) -> Iterator[KVSequence]:
        """Yield an empty sequence for a draft, emptied again afterwards: the free one with the
        highest id.

        Raises ArgumentError when none is free.
        """
        with self.lock():
            seq = self._spare()
            if seq is None:
                raise ArgumentError(
                    f"all {self.n_seq_max} sequences of the context are in use; give it a larger "
                    "n_seq_max"
                )
            self.sequence_table.borrow(seq.seq_id)
        try:
            yield seq
        finally:
            self.sequence_table.release(seq.seq_id)
            seq.rollback_if_open(0)

    @property
    def has_spare(self) -> bool:
        """Whether a sequence is free for a draft."""
        return self._spare() is not None

    @property
    def n_branches(self) -> int:
        """The number of branches that one pass can verify now, each in a sequence. 1 (no branching)
        if the other sequences are in use, without the ability, and in a context of another
        owner."""
        if not self._handle.is_owned or not self.abilities.can_branch:
            return 1
        return min(self.n_seq_max, 1 + sum(1 for _ in self._spares()))

    def _spare(self) -> KVSequence | None:
        return next(self._spares(), None)

    def _spares(self) -> Iterator[KVSequence]:
        free = (i for i in reversed(range(self.n_seq_max)) if self.sequence_table.is_free(i))
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
    ) -> PassResult:
        """Run one pass over tokens of one sequence, and return its result.

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
            pos = seq.n_past if self.abilities.has_memory else 0
        ids = [0] * len(hidden or ()) if tokens is None else tokens
        rows = Rows.of(seq.seq_id, pos, ids, outputs)
        what = Pass(mask, hidden, hidden_at, head, in_place)
        return self._run(rows, what, has_tokens=tokens is not None)

    def run(self, rows: Rows, what: Pass = FULL) -> PassResult:
        """Run one pass over rows of any sequences, and return its result. All decoding, drafting
        and verification uses this primitive.

        The rows of a sequence continue it, in order; with ``what.in_place`` they are at positions
        that it holds. If the computation fails or is stopped, its rows are removed; in place,
        those positions are lost; and where the memory cannot remove tokens, the whole sequence is
        lost. Ctrl-C stops a pass in the main thread; see ``stopped`` for other threads.

        Raises MaskError, ArgumentError, UnsupportedError, ContextFullError or DecodeError; the
        first three before anything has changed. LibraryError in a process that was forked after the
        library was loaded.
        """
        return self._run(rows, what, has_tokens=True)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """End passes early with DecodeError inside the ``with`` block: the one that runs in another
        thread, and every new one. Any number of threads may enter it. Operations that run on a GPU
        are completed first."""
        self._handle.stop_passes(True)
        try:
            yield
        finally:
            self._handle.stop_passes(False)

    def _run(self, rows: Rows, what: Pass, *, has_tokens: bool) -> PassResult:
        rows.require_whole()
        if what.embedded is not None:
            return self._run_embedded(rows, what, what.embedded)
        if what.mask is not None:
            what.mask.require(self.model.n_layer)
        tokens = [operator.index(token) for token in rows.tokens]
        self.model.require_tokens(tokens)
        if what.enter is not None:
            require_states(self.model, what.enter, len(rows))
        states = None
        blocks = what.blocks_left
        if blocks:
            states = np.empty((len(rows), states_width(self.model, blocks)), np.float32)
        with self.lock():
            require_positions(self, rows)
            adapters = self._begin_pass(rows, what)
            if what.among is not None and any(each.changes_head for each, _ in adapters):
                # the head is a sum of products then, of which no rows can be left out
                what = replace(what, among=None, head="logits")
            try:
                calls.decode(
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
                    n_best=what.n_best,
                    in_place=what.in_place,
                    shared=rows.shared,
                    weights=what.weights,
                )
            except BaseException:  # also by Ctrl-C
                self.forget_lost()
                raise
            if has_tokens and what.is_whole:
                self.sequence_table.record(rows)
        outputs = rows.outputs if what.head == "logits" else (False,) * len(rows)
        return PassResult(self, outputs, None if states is None else Hidden(states))

    def _run_embedded(self, rows: Rows, what: Pass, picture: PictureRows) -> PassResult:
        """Run a pass over rows of a picture."""
        require_picture(self, picture, len(rows))
        seq_id, pos = rows.seq_ids[0], rows.pos[0]
        with self.lock():
            require_positions(self, rows)
            if rows != Rows.of(seq_id, self.sequence(seq_id).n_past, rows.tokens, "none"):
                raise ArgumentError("rows of a picture continue one sequence, without outputs")
            self._begin_pass(rows, what)
            try:
                calls.decode_picture(
                    self.session,
                    picture.states.numpy(),
                    seq_id,
                    pos,
                    grid=picture.grid,
                    n_before=picture.n_before,
                    is_causal=picture.is_causal,
                )
            except BaseException:
                self.forget_lost()
                raise
            self.sequence_table.record(rows)
        return PassResult(self, rows.outputs, None)

    def _begin_pass(self, rows: Rows, what: Pass) -> Adapters:
        """Prepare a pass: forget the tokens that it writes over. Returns its adapters."""
        adapters = self.adapters if what.adapters is None else what.adapters
        self._adapt(adapters)
        self.sequence_table.invalidate(rows, adapters, in_place=what.in_place)
        self.n_decodes += 1
        return adapters

    def _adapt(self, adapters: Adapters) -> None:
        """Let the next passes use these adapters. A change makes every prepared graph void."""
        if adapters != self._adapters:
            require_owner(adapters, self.model)
            set_adapters(self.handle, adapters)
            self._adapters = adapters

    @property
    def n_preparing(self) -> int:
        """How many of the first passes of a kind take longer than all later ones: the first builds
        its graph, and the second records it for CUDA."""
        return 2 if self.model.n_gpu_layers else 1

    def wait(self) -> None:
        """Wait until GPUs have computed all passes so far; reading a result waits, too. On the
        CPU a pass is computed when it returns. Timings of passes end with this."""
        if self.model.n_gpu_layers:
            with self.lock():
                calls.wait(self.session)

    def prefill(self, tokens: Sequence[int], seq: KVSequence | None = None) -> None:
        """Decode a prompt of any length with the full model, without outputs."""
        seq = self.sequence() if seq is None else seq
        n_past = seq.n_past
        if n_past + len(tokens) > self.n_ctx:
            raise prompt_too_long(n_past + len(tokens), self.n_ctx, self.model.n_positions)
        for i in range(0, len(tokens), self.n_batch):
            self.decode(tokens[i : i + self.n_batch], seq=seq, outputs="none")

    @property
    def best_head(self) -> Head:
        """The head to use where only argmax() is needed: "best" on a GPU. On the CPU it would save
        nothing, since argmax() reads the logits there; with Vulkan it takes longer than copying
        them (by 5 to 12 % of a pass, on an H200)."""
        is_on_gpu = self.model.n_gpu_layers > self.model.n_layer
        return "best" if is_on_gpu and not devices.has_vulkan() else "logits"

    def logits(self, row: int) -> NDArray[np.float32]:
        """Return a copy of the logits after token ``row`` of the last batch, float32 [n_vocab].
        After a pass with ``among``, those of other tokens are -inf. After one with ``n_best``, as
        texts make where the sampler draws one of the most likely tokens, the logits that were not
        computed are -inf."""
        with self.lock():
            return calls.logits(self.session, row, self.model.n_vocab)

    def argmax(self, row: int) -> tuple[int, float]:
        """Return the most likely token after token ``row`` of the last batch, and its probability
        among those whose logits were computed, 0 to 1."""
        with self.lock():
            return calls.argmax(self.session, row)

    def best(self, row: int) -> int:
        """Return the most likely token after token ``row`` of the last batch, the lowest of equally
        likely ones. Without its probability the logits are read only once."""
        with self.lock():
            return calls.best(self.session, row)

    def forget_lost(self) -> None:
        """Forget the tokens that sequences lost in a failed pass or removal."""
        if self.abilities.has_memory:
            for seq_id in range(self.n_seq_max):
                n_past = self.sequence(seq_id).n_past
                self.sequence_table.truncate(seq_id, n_past)
                self.checkpoints.truncate(seq_id, n_past)
