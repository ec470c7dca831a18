"""Prototypes of the C functions that the stock bindings lack, as data; nothing is loaded here.

``tests/pure/test_prototypes.py`` compares the selfspec_ ones with ``native/abi/selfspec.h``.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ...errors import LibraryError

ADDRESS = ctypes.c_void_p  # of arrays and of structs, which stay opaque
TEXT = ctypes.c_char_p  # const char *, or bytes given as const uint8_t *
INT32, INT64, SIZE = ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
FLOAT, DOUBLE, BOOL = ctypes.c_float, ctypes.c_double, ctypes.c_bool

# void (*ggml_abort_callback_t)(const char * error_message);
AbortCallback = ctypes.CFUNCTYPE(None, TEXT)

INT32S = ctypes.POINTER(INT32)


class DecodeArgs(ctypes.Structure):
    """The arguments of a pass, ``struct selfspec_decode_args``: what each field means is there."""

    _fields_ = (
        ("n_tokens", INT32),
        ("tokens", INT32S),
        ("seq_ids", INT32S),
        ("n_seq_ids", INT32S),
        ("pos", INT32S),
        ("outputs", TEXT),
        ("hidden", ADDRESS),
        ("mask", TEXT),
        ("n_layer", INT32),
        ("hidden_at", INT32S),
        ("n_hidden_at", INT32),
        ("hidden_out", ADDRESS),
        ("head", INT32),
        ("among", ADDRESS),
        ("n_among", INT32),
        ("n_best", INT32),
        ("in_place", BOOL),
        ("weights", ADDRESS),
        ("nextn", INT32),
    )


class PictureRowsArgs(ctypes.Structure):
    """Adjacent rows of one picture, ``struct selfspec_picture_rows``: what each field means is
    there."""

    _fields_ = (
        ("n", INT32),
        ("states", ADDRESS),
        ("grid", ADDRESS),
        ("n_before", INT32),
        ("seq_id", INT32),
        ("pos", INT32),
        ("is_causal", BOOL),
    )


# By name: the type of the result, then those of the parameters.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "selfspec_build_id": (TEXT,),
    # log
    "selfspec_log_take": (None,),
    "selfspec_log_show": (None, BOOL),
    "selfspec_log_error": (TEXT,),
    "selfspec_log_forget": (None,),
    # a session: ADDRESS first
    "selfspec_init": (ADDRESS, ADDRESS),
    "selfspec_free": (None, ADDRESS),
    "selfspec_error": (TEXT, ADDRESS),
    "selfspec_mask_support": (INT32, ADDRESS, ADDRESS, INT32),
    "selfspec_can_enter": (INT32, ADDRESS, INT32),
    "selfspec_can_shorten": (INT32, ADDRESS),
    "selfspec_memory": (INT32, ADDRESS),
    "selfspec_can_keep": (INT32, ADDRESS, INT32, INT32),
    "selfspec_keep": (INT32, ADDRESS, INT32, INT32),
    "selfspec_max_rollback": (INT32, ADDRESS),
    "selfspec_replay_for": (INT32, ADDRESS, INT32),
    "selfspec_fork": (INT32, ADDRESS, INT32, INT32),
    "selfspec_state_size": (INT64, ADDRESS, INT32),
    "selfspec_save_state": (INT32, ADDRESS, INT32, ADDRESS, INT64),
    "selfspec_load_state": (INT32, ADDRESS, INT32, ADDRESS, INT64, INT32),
    "selfspec_reserve": (INT32, ADDRESS, INT32, INT32),
    "selfspec_in_order": (INT32, ADDRESS, INT32),
    "selfspec_n_moves": (INT64, ADDRESS),
    "selfspec_exact_width": (INT32, ADDRESS),
    "selfspec_exact_prompts": (INT32, ADDRESS),
    "selfspec_graph_bytes": (SIZE, ADDRESS),
    "selfspec_stop_passes": (None, ADDRESS, BOOL),
    "selfspec_heed_interrupts": (None, ADDRESS, BOOL),
    "selfspec_n_graph_checks": (INT64, ADDRESS),
    "selfspec_decode": (INT32, ADDRESS, ctypes.POINTER(DecodeArgs)),
    "selfspec_decode_states": (INT32, ADDRESS, ctypes.POINTER(PictureRowsArgs)),
    "selfspec_embed": (INT32, ADDRESS, INT32, ADDRESS),
    # session, n_rows, features, states
    "selfspec_draft_fuse": (INT32, ADDRESS, INT32, ADDRESS, ADDRESS),
    "selfspec_draft_decode": (INT32, ADDRESS, ctypes.POINTER(DecodeArgs)),
    "selfspec_draft_score": (INT32, ADDRESS, INT32, INT32),
    "selfspec_logits": (INT32, ADDRESS, INT32, ADDRESS),
    "selfspec_argmax": (INT32, ADDRESS, INT32, ctypes.POINTER(FLOAT)),
    # samplers
    "selfspec_sample": (INT32, ADDRESS, ADDRESS, INT32, INT32),
    "selfspec_sample_logits": (INT32, ADDRESS, ADDRESS, INT32, INT32),
    "selfspec_accept": (INT32, ADDRESS, INT32),
    "selfspec_apply": (INT32, ADDRESS, ADDRESS),
    "selfspec_sampler_init_grammar": (ADDRESS, ADDRESS, TEXT, INT32, FLOAT),
    # indexes of n-grams
    "selfspec_ngrams_init": (ADDRESS, ADDRESS, INT32, INT32, INT32),
    "selfspec_ngrams_free": (None, ADDRESS),
    "selfspec_ngrams_extend": (INT32, ADDRESS, ADDRESS, INT32),
    # own, earlier, others, end, n_end, n_new; counts, other_counts, forget, chance_min, n_max,
    # tokens, chances
    "selfspec_ngrams_chain": (
        *(INT32, ADDRESS, ADDRESS, ADDRESS, ADDRESS, INT32, INT32),
        *(ADDRESS, ADDRESS, DOUBLE, DOUBLE, INT32, ADDRESS, ADDRESS),
    ),
    # ngrams, end, n_end, token, n_max, found
    "selfspec_ngrams_others": (INT32, ADDRESS, ADDRESS, INT32, INT32, INT32, ADDRESS),
    # no session
    "selfspec_interleaved_bytes": (INT32, INT32),
    "selfspec_let_weights_grow": (None, BOOL),
    "selfspec_model_state_bytes": (INT64, ADDRESS),
    "selfspec_model_replays": (INT32, ADDRESS),
    # ggml's own, which the stock bindings leave out
    "ggml_backend_load": (ADDRESS, TEXT),
    "ggml_backend_dev_count": (SIZE,),
    "ggml_backend_dev_get": (ADDRESS, SIZE),
    "ggml_backend_dev_type": (ctypes.c_int, ADDRESS),
    "ggml_backend_dev_description": (TEXT, ADDRESS),
    "ggml_backend_dev_memory": (None, ADDRESS, ADDRESS, ADDRESS),  # device, free, total
    "ggml_backend_reg_by_name": (ADDRESS, TEXT),
    "ggml_backend_reg_get_proc_address": (ADDRESS, ADDRESS, TEXT),
    "ggml_backend_reg_dev_count": (SIZE, ADDRESS),
    "ggml_backend_reg_dev_get": (ADDRESS, ADDRESS, SIZE),
    "ggml_set_abort_callback": (ADDRESS, AbortCallback),
}


def declared(library: ctypes.CDLL, name: str) -> Any:
    """Return a function of the library with the types of its prototype.

    Raises LibraryError for a library that lacks the function, AttributeError for a name without a
    prototype.
    """
    if name not in PROTOTYPES:
        raise AttributeError(f"{name} has no prototype")
    try:
        function = getattr(library, name)
    except AttributeError:
        raise LibraryError(
            f"the library {library._name} has no {name}: it is not pyselfspec's; "
            "install pyselfspec again"
        ) from None
    function.restype, *function.argtypes = PROTOTYPES[name]
    return function
