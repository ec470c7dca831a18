"""Contexts made for a model, with limits, defaults and validation of their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, DecodeError
from ..gguf import heads
from ..util.machine import usable_cores
from ..util.pass_width import MAX_DRAFT
from . import kv_types, memory
from .checkpoints import N_CHECKPOINTS
from .context import Context
from .context_handle import ContextHandle
from .ffi import calls, load
from .ffi.calls import INT32_MAX
from .ffi.load import llama
from .kv_types import CACHE_TYPE
from .offload import ContextSize

if TYPE_CHECKING:
    from .model import Model

N_CTX = 4096  # tokens, or the model's training context when that is shorter
N_SEQ = 4
N_SNAPSHOTS_MIN = 2  # a draft of two tokens
TINY_STATES = 64  # snapshots for the longest draft cost little in this part of the weights' bytes
N_SEQ_MAX = 256  # llama.cpp's LLAMA_MAX_SEQ
N_THREADS_MAX = 512  # ggml's GGML_MAX_N_THREADS
N_CTX_UNIT = 256  # llama.cpp rounds up to it, but derives other sizes before it does
N_CTX_MAX = 2**26


def open_context(
    model: Model,
    *,
    n_ctx: int | None = None,
    n_batch: int = 512,
    n_threads: int | None = None,
    n_seq_max: int | None = None,
    flash_attn: bool | None = None,
    type_k: str = CACHE_TYPE,
    type_v: str = CACHE_TYPE,
    n_snapshots: int | None = None,
    n_checkpoints: int = N_CHECKPOINTS,
    target: Context | None = None,
    is_causal: bool | None = None,
) -> Context:
    """Return a new context on a model.

    n_ctx: tokens of K/V cache over all sequences, drafts included; rounded up to a multiple of 256.
        Default: 4096, or the model's training context when that is shorter. A text of a model with
        a table of positions (GPT-2, StarCoder, MPT) ends with the table: see Context.n_ctx.
    n_batch: most tokens in one pass.
    n_threads: CPU threads, default: the cores this process may use.
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
    target: for draft heads, the context that they draft for, whose model provides what the head's
        file leaves out; on the same model, the context is one for the model's own head. The target
        must outlive the new context.
    is_causal: whether tokens of a pass see those before them only. None: as the model's file says.

    Raises ArgumentError for options outside their range, DecodeError where memory is short.
    """
    n_ctx = min(N_CTX, model.n_ctx_train) if n_ctx is None else n_ctx
    n_threads = min(usable_cores(), N_THREADS_MAX) if n_threads is None else n_threads
    if n_seq_max is None:
        n_seq_max = 1 if model.state_bytes else N_SEQ
    require_range("n_seq_max", n_seq_max, 1, N_SEQ_MAX)
    require_range("n_threads", n_threads, 1, N_THREADS_MAX)
    require_range("n_ctx (-c)", n_ctx, 1, N_CTX_MAX)
    require_range("n_batch", n_batch, n_seq_max, INT32_MAX)  # a row of outputs per sequence
    require_range("n_checkpoints", n_checkpoints, 1, INT32_MAX)
    if n_snapshots is not None:
        require_range("n_snapshots", n_snapshots, 0, min(MAX_DRAFT, _most_snapshots(n_batch)))
    if target is None and heads.is_head(model.file.architecture):
        raise ArgumentError(
            f"{model.path.name} is a draft head, which cannot generate text alone; give its model, "
            'and the head with draft="head:FILE" (--draft head:FILE)'
        )
    params = llama.llama_context_default_params()
    params.type_k = kv_types.number("type_k", type_k)
    params.type_v = kv_types.number("type_v", type_v)
    kv_types.require_kernels(model, flash_attn, type_k, type_v)
    params.n_ctx = -(-n_ctx // N_CTX_UNIT) * N_CTX_UNIT
    params.n_batch = params.n_ubatch = n_batch
    params.n_threads = params.n_threads_batch = n_threads
    params.n_seq_max = n_seq_max
    replays = _set_rollback(params, model, n_snapshots, is_head=target is not None)
    params.kv_unified = True  # forks share cells only in a unified cache
    params.swa_full = True  # a window-sized cache cannot roll back
    # with all weights on the CPU, a GPU must not compute: its results differ
    params.op_offload = model.n_gpu_layers > 0
    _set_target(params, model, target, is_causal)
    if flash_attn is not None:
        params.flash_attn_type = int(flash_attn)
    if target is None and not model.n_gpu_layers:
        memory.require_for_context(
            model.file,
            params.n_ctx,
            type_k,
            type_v,
            n_threads=n_threads,
            free=model.free_bytes,
            n_state_bytes=model.state_bytes * params.n_seq_max * (1 + params.n_rs_seq),
        )
    size = ContextSize(params.n_ctx, type_k, type_v)
    with model.in_use:
        return Context(
            model,
            _open_handle(model, params, n_ctx, size, n_replayed=n_seq_max if replays else 0),
            n_threads=n_threads,
            n_seq_max=n_seq_max,
            flash_attn=flash_attn,
            type_k=type_k,
            type_v=type_v,
            n_checkpoints=n_checkpoints,
        )


def _set_target(params: Any, model: Model, target: Context | None, is_causal: bool | None) -> None:
    """Make the context one of a draft head."""
    if is_causal is not None:
        kinds = llama.LLAMA_ATTENTION_TYPE_NON_CAUSAL, llama.LLAMA_ATTENTION_TYPE_CAUSAL
        params.attention_type = int(kinds[is_causal])
    if target is not None:
        params.ctx_other = target.handle
        if target.model is model:
            params.ctx_type = llama.LLAMA_CONTEXT_TYPE_MTP


def _set_rollback(params: Any, model: Model, n_snapshots: int | None, *, is_head: bool) -> bool:
    """Choose how rejected tokens leave recurrent states; return whether by replay."""
    n_seq_max = params.n_seq_max
    if n_snapshots is None and not is_head and replays_states(model, n_seq_max, params.n_batch):
        params.n_seq_max *= 2  # the upper half holds the states before a pass
        params.n_rs_seq = 0
        return True
    if n_snapshots is None:
        n_snapshots = 0 if is_head else _default_snapshots(model, n_seq_max)
        n_snapshots = min(n_snapshots, _most_snapshots(params.n_batch))
    params.n_rs_seq = n_snapshots
    return False


def replays_states(model: Model, n_seq_max: int, n_batch: int) -> bool:
    """Return whether contexts replay rows to remove tokens: where states are not tiny beside the
    weights, and all weights are on the CPU."""
    if not model.replays_states or model.n_gpu_layers or 2 * n_seq_max > min(n_batch, N_SEQ_MAX):
        return False
    return MAX_DRAFT * model.state_bytes * TINY_STATES > model.file.n_bytes


def _most_snapshots(n_batch: int) -> int:
    """Return how many snapshots fit: llama.cpp keeps the rows that they belong to in one pass, and
    ends the process where these do not leave room for another row."""
    return max(0, n_batch - 2)


def _default_snapshots(model: Model, n_seq_max: int) -> int:
    """Return as many snapshots as the longest draft needs, as long as those of all sequences take
    at most a quarter of the bytes of the weights."""
    states = model.state_bytes * n_seq_max
    n_fit = model.file.n_bytes // (4 * states) if states else MAX_DRAFT
    return max(N_SNAPSHOTS_MIN, min(MAX_DRAFT, n_fit))


def _open_handle(
    model: Model, params: Any, n_ctx: int, size: ContextSize, *, n_replayed: int
) -> ContextHandle:
    """Return the handle of a new context of n_ctx tokens.

    size: for the error. n_replayed: sequences whose removed tokens are replayed.
    """
    load.clear_log_error()
    context = llama.llama_init_from_model(model.handle, params)
    what = f"a context of {n_ctx} tokens"
    if not context:
        advice = model.shortage(model.n_gpu_layers, size)
        raise load.failure(DecodeError, f"llama.cpp cannot make {what}", advice)
    handle = ContextHandle(context, is_owned=True)
    try:
        memory.require_room(model.file, f"a pass in {what}", n_threads=params.n_threads)
        if n_replayed:
            calls.replay_for(handle.session, n_replayed)
    except DecodeError:
        handle.close()
        raise
    return handle


def require_range(parameter: str, value: int, low: int, high: int) -> None:
    """Raise ArgumentError for a parameter's value outside its range."""
    if value < low:
        raise ArgumentError(f"{parameter} is at least {low}, got {value}")
    if value > high:
        raise ArgumentError(f"{parameter} is at most {high}, got {value}")
