"""A ``llama_cpp.Llama`` lends its model and its context: one of each, used by both packages."""

from __future__ import annotations

from ..errors import UnsupportedError
from ..runtime.context import CACHE_TYPES, Context
from ..runtime.model import SPLIT_MODES, Model
from ._upstream import Llama

N_ROWS_MIN = 2  # of a pass: less cannot verify a draft


def hindrance(llama: Llama) -> str | None:
    """Why nothing can be drafted with what was asked for, None where it can; to be asked when the
    model is there and the context is not."""
    if llama.model_params.vocab_only:
        return "vocab_only=True has no weights"
    if llama.context_params.embeddings:
        return "embedding=True is for embeddings"
    if llama.lora_path is not None:
        return "with a LoRA adapter the bits of a token depend on how many others are in its pass"
    return None


def lend(llama: Llama) -> Context:
    """The context, and its model, as ours; closed just before llama_cpp frees them.

    Raises UnsupportedError for what this package does not know, and ModelFileError.
    """
    model, params = llama.model_params, llama.context_params
    made = Model.lent(
        llama.model_path,
        llama.model,
        n_gpu_layers=model.n_gpu_layers if model.n_gpu_layers >= 0 else None,
        split_mode=_name("split_mode", SPLIT_MODES, model.split_mode),
        main_gpu=model.main_gpu,
    )
    llama._ctx._exit_stack.callback(made.close)
    n_batch = min(params.n_batch, params.n_ubatch)
    if n_batch < N_ROWS_MIN:
        raise UnsupportedError(f"drafts need n_batch of at least {N_ROWS_MIN}, got {n_batch}")
    context = Context.lent(
        made,
        llama.ctx,
        n_batch=n_batch,
        n_threads=params.n_threads,
        n_seq_max=params.n_seq_max,
        flash_attn=bool(params.flash_attn_type),
        type_k=_name("type_k", CACHE_TYPES, params.type_k),
        type_v=_name("type_v", CACHE_TYPES, params.type_v),
    )
    if not context.can_rollback:
        raise UnsupportedError(
            f"architecture {made.file.architecture}: its memory cannot take tokens back"
        )
    return context


def _name(option: str, numbers: dict[str, int], number: int) -> str:
    """What we call a value that llama.cpp has a number for."""
    for name, known in numbers.items():
        if known == number:
            return name
    raise UnsupportedError(f"drafts are not known to work with {option}={number}")
