"""A Model and a Context of this package on the handles of a ``llama_cpp.Llama``."""

from __future__ import annotations

from pathlib import Path

from ..errors import SelfSpecError, UnsupportedError
from ..runtime.context import Context
from ..runtime.context_handle import ContextHandle
from ..runtime.context_options import ContextOptions
from ..runtime.ffi import load
from ..runtime.kv_types import CACHE_TYPES
from ..runtime.lora import require_lora
from ..runtime.model import SPLIT_MODES, Model
from ._upstream import Llama

N_ROWS_MIN = 2  # rows of a pass; fewer cannot verify a draft


def unsupported_reason(llama: Llama) -> str | None:
    """Return why this Llama cannot draft, None if it can. Call it between the loading of the model
    and the creation of the context."""
    if llama.model_params.vocab_only:
        return "vocab_only=True loads no weights"
    if llama.context_params.embeddings:
        return "embedding=True computes embeddings"
    if llama.context_params.attention_type == load.llama.LLAMA_ATTENTION_TYPE_NON_CAUSAL:
        return "tokens see those after them, so draft tokens would change results"
    if llama.lora_path is not None:
        try:
            require_lora(Path(llama.lora_path))
        except SelfSpecError as error:
            return str(error)
    return None


def adopt_context(llama: Llama) -> Context:
    """Return a Context, with its Model, on the handles of llama_cpp. Both are closed just before
    llama_cpp frees them.

    Raises UnsupportedError for parameters that drafts do not support, and ModelFileError.
    """
    model, params = llama.model_params, llama.context_params
    made = Model(
        llama.model_path,
        handle=llama.model,
        n_gpu_layers=model.n_gpu_layers if model.n_gpu_layers >= 0 else None,
        split_mode=_name("split_mode", SPLIT_MODES, model.split_mode),
        main_gpu=model.main_gpu,
    )
    llama._ctx._exit_stack.callback(made.close)
    n_batch = min(params.n_batch, params.n_ubatch)
    if n_batch < N_ROWS_MIN:
        raise UnsupportedError(
            f"drafts need n_batch and n_ubatch of at least {N_ROWS_MIN}, got {n_batch}"
        )
    context = Context(
        made,
        ContextHandle(llama.ctx, is_owned=False),
        ContextOptions(
            n_batch=n_batch,
            n_threads=params.n_threads,
            n_seq_max=params.n_seq_max,
            flash_attn=bool(params.flash_attn_type),
            type_k=_name("type_k", CACHE_TYPES, params.type_k),
            type_v=_name("type_v", CACHE_TYPES, params.type_v),
        ),
    )
    if not context.abilities.can_rollback:
        raise UnsupportedError(
            f"architecture {made.file.architecture}: no tokens can be removed from its KV cache or "
            "recurrent states"
        )
    return context


def _name(option: str, numbers: dict[str, int], number: int) -> str:
    """Return the name of an enum value of llama.cpp. Raises UnsupportedError for an unknown one."""
    for name, value in numbers.items():
        if value == number:
            return name
    raise UnsupportedError(
        f"drafts do not support {option}={number}; use {', '.join(map(str, numbers.values()))}"
    )
