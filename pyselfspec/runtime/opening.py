"""Contexts opened with llama.cpp for a model, and how they remove rejected tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, DecodeError
from ..gguf import heads
from ..util.pass_width import MAX_DRAFT
from . import kv_types, memory
from .context import Context
from .context_handle import ContextHandle
from .context_options import N_CTX_UNIT, N_SEQ_MAX, ContextOptions
from .ffi import calls, load
from .ffi.load import llama
from .offload import ContextSize

if TYPE_CHECKING:
    from .model import Model

N_SNAPSHOTS_MIN = 2  # a draft of two tokens
TINY_STATES = 64  # snapshots for the longest draft cost little in this part of the weights' bytes


def open_context(model: Model, options: ContextOptions, target: Context | None = None) -> Context:
    """Return a new context on a model.

    target: for draft heads, the context that they draft for, whose model provides what the head's
        file leaves out; on the same model, the context is one for the model's own head. The target
        must outlive the new context.

    Raises ArgumentError for options outside their range, DecodeError where memory is short.
    """
    options = options.for_model(model)
    if target is None and heads.is_head(model.file.architecture):
        raise ArgumentError(
            f"{model.path.name} is a draft head, which cannot generate text alone; give its model, "
            'and the head with draft="head:FILE" (--draft head:FILE)'
        )
    params, n_replayed = _params(model, options, target)
    if target is None and not model.n_gpu_layers:
        memory.require_for_context(
            model.file,
            params.n_ctx,
            options.type_k,
            options.type_v,
            n_threads=params.n_threads,
            free=model.free_bytes,
            n_state_bytes=model.state_bytes * params.n_seq_max * (1 + params.n_rs_seq),
        )
    with model.in_use():
        handle = _open_handle(model, params, options)
        try:
            what = f"a pass in {_what(options)}"
            memory.require_room(model.file, what, n_threads=params.n_threads)
            if n_replayed:
                calls.replay_for(handle.session, n_replayed)
        except DecodeError:
            handle.close()
            raise
        return Context(model, handle, options)


def _params(model: Model, options: ContextOptions, target: Context | None) -> tuple[Any, int]:
    """Return llama.cpp's parameters of a context, and the number of sequences whose rejected tokens
    leave recurrent states by replay."""
    assert options.n_ctx is not None
    params = llama.llama_context_default_params()
    params.type_k = kv_types.number("type_k", options.type_k)
    params.type_v = kv_types.number("type_v", options.type_v)
    params.n_ctx = -(-options.n_ctx // N_CTX_UNIT) * N_CTX_UNIT
    params.n_batch = params.n_ubatch = options.n_batch
    params.n_threads = params.n_threads_batch = options.n_threads
    params.n_seq_max = options.n_seq_max
    params.kv_unified = True  # forks share cells only in a unified cache
    params.swa_full = True  # a window-sized cache cannot roll back
    # with all weights on the CPU, a GPU must not compute: its results differ
    params.op_offload = model.n_gpu_layers > 0
    if options.flash_attn is not None:
        params.flash_attn_type = int(options.flash_attn)
    if options.is_causal is not None:
        kinds = llama.LLAMA_ATTENTION_TYPE_NON_CAUSAL, llama.LLAMA_ATTENTION_TYPE_CAUSAL
        params.attention_type = int(kinds[options.is_causal])
    params.n_rs_seq = options.n_snapshots or 0
    if target is not None:
        params.ctx_other = target.handle
        if target.model is model:
            params.ctx_type = llama.LLAMA_CONTEXT_TYPE_MTP
    elif options.n_snapshots is None:
        n_seq_max = params.n_seq_max
        if replays_states(model, n_seq_max, options.n_batch):
            params.n_seq_max *= 2  # the upper half holds the states before a pass
            return params, n_seq_max
        params.n_rs_seq = min(_default_snapshots(model, n_seq_max), options.most_snapshots)
    return params, 0


def replays_states(model: Model, n_seq_max: int, n_batch: int) -> bool:
    """Return whether contexts replay rows to remove tokens: where states are not tiny beside the
    weights, and all weights are on the CPU."""
    if not model.replays_states or model.n_gpu_layers or 2 * n_seq_max > min(n_batch, N_SEQ_MAX):
        return False
    return MAX_DRAFT * model.state_bytes * TINY_STATES > model.file.n_bytes


def _default_snapshots(model: Model, n_seq_max: int) -> int:
    """Return as many snapshots as the longest draft needs, as long as those of all sequences take
    at most a quarter of the bytes of the weights."""
    states = model.state_bytes * n_seq_max
    n_fit = model.file.n_bytes // (4 * states) if states else MAX_DRAFT
    return max(N_SNAPSHOTS_MIN, min(MAX_DRAFT, n_fit))


def _open_handle(model: Model, params: Any, options: ContextOptions) -> ContextHandle:
    load.clear_log_error()
    context = llama.llama_init_from_model(model.handle, params)
    if not context:
        size = ContextSize(params.n_ctx, options.type_k, options.type_v)
        advice = model.shortage(model.n_gpu_layers, size)
        what = f"llama.cpp cannot make {_what(options)}"
        raise load.failure(DecodeError, what, advice)
    return ContextHandle(context, is_owned=True)


def _what(options: ContextOptions) -> str:
    return f"a context of {options.n_ctx} tokens"
