"""All errors of the package. The command line prints the message as one line and exits with
status 2 for UnknownModelError, else 1."""

from __future__ import annotations


class SelfSpecError(Exception):
    """Base of all errors of this package; the message says what was given, what is allowed, and
    what to do."""


class SelfSpecWarning(UserWarning):
    """A problem that does not stop the operation."""


class ModelFileError(SelfSpecError):
    """The model file is missing, broken, or not something the pinned llama.cpp can run."""


class UnknownModelError(ModelFileError):
    """The name of a model is unknown, and no file has it."""


class PullError(SelfSpecError):
    """A model cannot be fetched, or the fetched data is not that model."""


class MaskError(SelfSpecError, ValueError):
    """A layer mask that contradicts itself or does not fit the model."""


class UnsupportedError(SelfSpecError):
    """This architecture, block or memory does not support the request."""


class ContextFullError(SelfSpecError):
    """The K/V cache has no room for the batch."""


class DecodeError(SelfSpecError, RuntimeError):
    """llama.cpp could not compute a batch."""


class ArgumentError(SelfSpecError, ValueError):
    """A value outside its range."""


class LibraryError(SelfSpecError, ImportError):
    """The native library is missing, foreign, or does not belong to this version of the package."""


def prompt_too_long(
    n_tokens: int | str, n_ctx: int, n_positions: int | None = None
) -> ContextFullError:
    """Return the error for a prompt of n_tokens in a context of n_ctx tokens. n_positions: those of
    a model that has no more, see Model."""
    if n_ctx == n_positions:
        return ContextFullError(
            f"the prompt has {n_tokens} tokens, the model takes {n_positions} at most; give a "
            "shorter prompt"
        )
    return ContextFullError(
        f"the prompt has {n_tokens} tokens, the context {n_ctx}; give a larger n_ctx (-c) or a "
        "shorter prompt"
    )


def device_lost(reason: str) -> DecodeError:
    """Return the error for a device that no longer computes. reason: the backend's word for it."""
    return DecodeError(
        f"the GPU is lost ({reason}): its driver has reset it, or it was removed; start the "
        "program again, on the CPU with n_gpu_layers=0 (-ngl 0) if it happens often"
    )


def device_full() -> DecodeError:
    """Return the error for memory of a GPU that ran out during a pass."""
    return DecodeError(
        "the GPU has no memory left for this pass; give a smaller n_ctx (-c), or fewer layers for "
        'the GPU: n_gpu_layers (-ngl), "auto" for as many as fit'
    )


def out_of_memory() -> DecodeError:
    """Return the error for memory that ran out inside llama.cpp."""
    return DecodeError(
        "out of memory; give a smaller n_ctx (-c), smaller types of K and V (--cache-type-k, "
        "--cache-type-v), or a smaller model"
    )
