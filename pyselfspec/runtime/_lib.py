"""The only file that talks to C: loads the patched library on first use, binds our functions, turns
statuses into errors.

Stock functions and structs come from llama-cpp-python's ``llama_cpp.llama_cpp``, which is made to
load our library.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import signal
import sys
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # signal's own takes 5 us
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    ArgumentError,
    ContextFullError,
    DecodeError,
    LibraryError,
    SelfSpecError,
    UnsupportedError,
)
from ..util import build
from ..util.paths import on_one_line
from .processor import cpu_backend

SPIN_COUNT = "1000"  # rounds of a loop, some ten microseconds: what it takes to wake a thread

LIB_DIR = build.LIB_DIR
BUILD_ID = build.BUILD_ID


def _import_llama_cpp() -> Any:
    """``llama_cpp.llama_cpp`` on top of our library; LibraryError when another one is loaded
    already."""
    cpu_backend()  # or an error; a library for another processor would end the process
    if "llama_cpp.llama_cpp" not in sys.modules:
        before = os.environ.get("LLAMA_CPP_LIB_PATH")
        os.environ["LLAMA_CPP_LIB_PATH"] = str(LIB_DIR)
        try:
            importlib.import_module("llama_cpp.llama_cpp")
        except (OSError, RuntimeError) as error:
            raise LibraryError(
                f"the patched llama.cpp library in {LIB_DIR} cannot be loaded ({error}); "
                "install what is missing, or pyselfspec again on this machine"
            ) from None
        finally:
            if before is None:
                del os.environ["LLAMA_CPP_LIB_PATH"]
            else:
                os.environ["LLAMA_CPP_LIB_PATH"] = before

    module = sys.modules["llama_cpp.llama_cpp"]
    loaded = Path(module._lib._name)
    if loaded.resolve().parent != LIB_DIR.resolve():
        raise LibraryError(
            f"llama_cpp was imported before with another library ({loaded}); "
            "import pyselfspec first"
        )
    return module


_loading = threading.Lock()
_is_forked = False  # since the library was loaded


def _loaded() -> Any:
    """``llama_cpp.llama_cpp`` with our library behind it, loaded and started on first use."""
    with _loading:
        return _load()


@cache
def _load() -> Any:
    # Read by GCC's OpenMP when it is loaded. By default threads spin at barriers for about a
    # millisecond, which stalls them all wherever another program wants the cores.
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # a hundred lines of gdb, on stdout
    module = _import_llama_cpp()
    function = getattr(module._lib, "selfspec_build_id", None)
    if function is None:
        raise LibraryError(
            f"the library in {LIB_DIR} is not pyselfspec's; install pyselfspec again"
        )
    function.restype = ctypes.c_char_p
    found = function().decode()
    if found != BUILD_ID:
        raise LibraryError(
            f"the library in {LIB_DIR} is build {found}, this package needs {BUILD_ID}; "
            "install pyselfspec again"
        )
    module._lib.selfspec_log_take()
    module._lib.selfspec_log_show(ctypes.c_bool(_verbose))
    if build.DYNAMIC:
        _load_backends(module)
    module.llama_backend_init()
    return module


def _load_backends(module: Any) -> None:
    """Load every backend, and of those for CPUs the one for this processor.

    llama.cpp would search the folders of the interpreter and the working directory.
    """
    load = module._lib.ggml_backend_load
    load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    others = [name for name in build.BACKENDS if name not in build.CPU_BACKENDS]
    for name in [*others, cpu_backend()]:  # GPUs first, as llama.cpp does
        [file] = LIB_DIR.glob(f"*{name}.*")
        if not load(os.fsencode(file)) and name in build.CPU_BACKENDS:
            raise LibraryError(f"{file} cannot be loaded: {log_error()}")


def load() -> None:
    """Load the library now, before somebody else imports llama_cpp, who then gets it too."""
    _loaded()


def _after_fork() -> None:
    """Runs in the child, which has only the thread that forked."""
    global _loading, _is_forked
    _loading = threading.Lock()
    _is_forked = bool(_load.cache_info().currsize)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def require_not_forked() -> None:
    """Raise LibraryError in a process that was forked after the library was loaded: a computation
    would wait forever for threads that only the parent has."""
    if _is_forked:
        raise LibraryError(
            "this process was forked after its parent had loaded the library, whose threads it "
            "does not have; load models in the child only, or start it with the method 'spawn'"
        )


class _OnFirstUse:
    """Attributes of ``llama_cpp.llama_cpp``, which is loaded when the first one is asked for."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(_loaded(), name)
        setattr(self, name, value)  # not asked for here again
        return value


llama: Any = _OnFirstUse()


def _bind(name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    """A function of our library, looked up when it is called first."""
    function: Any = None

    def call(*args: Any) -> Any:
        nonlocal function
        if function is None:
            function = _lookup(name, restype, argtypes)
        return function(*args)

    return call


def _lookup(name: str, restype: Any, argtypes: Sequence[Any]) -> Any:
    try:
        function = getattr(_loaded()._lib, name)
    except AttributeError:
        raise LibraryError(
            f"the library in {LIB_DIR} has no {name}: it is not pyselfspec's; "
            "install pyselfspec again"
        ) from None
    function.restype = restype
    function.argtypes = argtypes
    return function


INT32_MAX = 2**31 - 1
_i32, _u8_p, _f32_p, _ptr = ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p

# struct selfspec_session * selfspec_init(struct llama_context * ctx);
session_init = _bind("selfspec_init", _ptr, _ptr)
# void selfspec_free(struct selfspec_session * session);
session_free = _bind("selfspec_free", None, _ptr)
# const char * selfspec_error(const struct selfspec_session * session);
_error = _bind("selfspec_error", ctypes.c_char_p, _ptr)
# int32_t selfspec_mask_support(struct selfspec_session * session, uint8_t * out, int32_t n_layer);
_mask_support = _bind("selfspec_mask_support", _i32, _ptr, _u8_p, _i32)
# int32_t selfspec_can_enter(struct selfspec_session * session, int32_t il);
_can_enter = _bind("selfspec_can_enter", _i32, _ptr, _i32)
# int32_t selfspec_memory(struct selfspec_session * session);
_session_memory = _bind("selfspec_memory", _i32, _ptr)
# size_t selfspec_graph_bytes(const struct selfspec_session * session);
graph_bytes = _bind("selfspec_graph_bytes", ctypes.c_size_t, _ptr)
# int32_t selfspec_can_keep(struct selfspec_session * session, int32_t seq_id, int32_t n);
_can_keep = _bind("selfspec_can_keep", _i32, _ptr, _i32, _i32)
# int32_t selfspec_can_shorten(struct selfspec_session * session);
_can_shorten = _bind("selfspec_can_shorten", _i32, _ptr)
# int32_t selfspec_reserve(struct selfspec_session * session, int32_t seq_id, int32_t n);
_reserve = _bind("selfspec_reserve", _i32, _ptr, _i32, _i32)
# int32_t selfspec_in_order(struct selfspec_session * session, int32_t seq_id);
_in_order = _bind("selfspec_in_order", _i32, _ptr, _i32)
# int64_t selfspec_n_moves(struct selfspec_session * session);
_n_moves = _bind("selfspec_n_moves", ctypes.c_int64, _ptr)
# int32_t selfspec_exact_width(struct selfspec_session * session);
_exact_width = _bind("selfspec_exact_width", _i32, _ptr)
# int32_t selfspec_exact_prompts(struct selfspec_session * session);
_exact_prompts = _bind("selfspec_exact_prompts", _i32, _ptr)
# int32_t selfspec_type_width(int32_t type, bool fast);
type_width = _bind("selfspec_type_width", _i32, _i32, ctypes.c_bool)
# void selfspec_stop_passes(struct selfspec_session * session, bool stopped);
stop_passes = _bind("selfspec_stop_passes", None, _ptr, ctypes.c_bool)
# void selfspec_heed_interrupts(struct selfspec_session * session, bool heed);
_heed_interrupts = _bind("selfspec_heed_interrupts", None, _ptr, ctypes.c_bool)
# int64_t selfspec_n_graph_checks(const struct selfspec_session * session);
n_graph_checks = _bind("selfspec_n_graph_checks", ctypes.c_int64, _ptr)
# int32_t selfspec_decode(session, n_tokens, tokens, seq_ids, n_seq_ids, pos, outputs, hidden, mask,
# n_layer, hidden_at, n_hidden_at, hidden_out, head, among, n_among, in_place);
_decode = _bind(
    "selfspec_decode",
    _i32,
    *(_ptr, _i32, _ptr, _ptr, _ptr, _ptr, ctypes.c_char_p, _f32_p, ctypes.c_char_p, _i32),
    *(_ptr, _i32, _f32_p, _i32, _ptr, _i32, ctypes.c_bool),
)
# int32_t selfspec_draft_fuse(session, n_rows, features, states);
_draft_fuse = _bind("selfspec_draft_fuse", _i32, _ptr, _i32, _f32_p, _f32_p)
# int32_t selfspec_draft_decode(session, n_tokens, tokens, seq_ids, pos, outputs, head, among,
# n_among, states, states_out);
_draft_decode = _bind(
    "selfspec_draft_decode",
    _i32,
    *(_ptr, _i32, _ptr, _ptr, _ptr, ctypes.c_char_p, _i32, _ptr, _i32, _f32_p, _f32_p),
)
# int32_t selfspec_argmax(struct selfspec_session * session, int32_t row, float * p);
_argmax = _bind("selfspec_argmax", _i32, _ptr, _i32, ctypes.POINTER(ctypes.c_float))

# void selfspec_log_show(bool shown);
_log_show = _bind("selfspec_log_show", None, ctypes.c_bool)
# const char * selfspec_log_error(void);
_log_error = _bind("selfspec_log_error", ctypes.c_char_p)
# void selfspec_log_forget(void);
clear_log_error = _bind("selfspec_log_forget", None)

# int32_t selfspec_sample(session, struct llama_sampler * chain, int32_t row);
_sample = _bind("selfspec_sample", _i32, _ptr, _ptr, _i32)
# int32_t selfspec_sample_logits(struct llama_sampler * chain, const float * logits, n_vocab);
_sample_logits = _bind("selfspec_sample_logits", _i32, _ptr, _f32_p, _i32)

# int32_t selfspec_accept(struct llama_sampler * chain, int32_t token);
_accept = _bind("selfspec_accept", _i32, _ptr, _i32)
# int32_t selfspec_apply(struct llama_sampler * sampler, struct llama_token_data_array *);
_apply = _bind("selfspec_apply", _i32, _ptr, _ptr)

# struct llama_sampler * selfspec_sampler_init_grammar(vocab, const char * text, n_wanted, gap);
_init_grammar = _bind(
    "selfspec_sampler_init_grammar", _ptr, _ptr, ctypes.c_char_p, _i32, ctypes.c_float
)

# ggml's own, which the stock bindings leave out.
_device_count = _bind("ggml_backend_dev_count", ctypes.c_size_t)
_device_get = _bind("ggml_backend_dev_get", _ptr, ctypes.c_size_t)
_device_type = _bind("ggml_backend_dev_type", ctypes.c_int, _ptr)
_device_description = _bind("ggml_backend_dev_description", ctypes.c_char_p, _ptr)
_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_CPU_TYPE = 0  # GGML_BACKEND_DEVICE_TYPE_CPU
_reg_by_name = _bind("ggml_backend_reg_by_name", _ptr, ctypes.c_char_p)
_reg_function = _bind("ggml_backend_reg_get_proc_address", _ptr, _ptr, ctypes.c_char_p)
_reg_device_count = _bind("ggml_backend_reg_dev_count", ctypes.c_size_t, _ptr)
_reg_device = _bind("ggml_backend_reg_dev_get", _ptr, _ptr, ctypes.c_size_t)

MEMORY_ROLLBACK = 1
MEMORY_IN_PLACE = 2
MEMORY_SCATTER = 4
HEADS = {"logits": 0, "best": 1}

_BAD_ARGUMENT = -1
_NO_TOKEN = -4
_LIMIT = -5
_STATUS_ERRORS: dict[int, type[SelfSpecError]] = {
    1: ContextFullError,
    _BAD_ARGUMENT: ArgumentError,
    _NO_TOKEN: ArgumentError,
    -10: UnsupportedError,
}


def _check(session: int, status: int) -> int:
    if status == 0:
        return 0
    raise _STATUS_ERRORS.get(status, DecodeError)(_error(session).decode(errors="replace"))


def numbers_of(values: Sequence[int]) -> Any:
    """An array of int32."""
    return (_i32 * len(values))(*values)


def _address_of(numbers: array[int] | None) -> tuple[int | None, int]:
    """Where they are, and how many."""
    return (None, 0) if numbers is None else numbers.buffer_info()


def decode(
    session: int,
    *,
    tokens: Sequence[int] | None,
    seq_ids: Sequence[int],
    pos: Sequence[int],
    outputs: bytes,
    hidden: NDArray[np.float32] | None,
    mask: bytes | None,
    hidden_at: Sequence[int],
    hidden_out: NDArray[np.float32] | None,
    head: str,
    among: array[int] | None = None,
    in_place: bool,
    shared: Sequence[Sequence[int]] = (),
) -> None:
    """``selfspec_decode``; arrays must be C-contiguous. Raises what the status says.

    among: ids in rising order, of type "i"; None: all tokens.
    shared: other sequences of each row, or nothing.
    """
    _begin_pass(session)
    n = len(seq_ids)
    n_seq_ids = None
    if shared:
        n_seq_ids = numbers_of([1 + len(others) for others in shared])
        seq_ids = [i for one, more in zip(seq_ids, shared, strict=True) for i in (one, *more)]
    status = _decode(
        session,
        n,
        None if tokens is None else numbers_of(tokens),
        numbers_of(seq_ids),
        n_seq_ids,
        numbers_of(pos),
        outputs,
        None if hidden is None else hidden.ctypes.data,
        mask,
        0 if mask is None else len(mask),
        numbers_of(hidden_at),
        len(hidden_at),
        None if hidden_out is None else hidden_out.ctypes.data,
        HEADS[head],
        *_address_of(among),
        in_place,
    )
    if status:
        _check(session, status)


def _begin_pass(session: int) -> None:
    """Prepare a pass: refuse after a fork, and let Ctrl-C stop it if that raises
    KeyboardInterrupt."""
    require_not_forked()
    is_main = threading.current_thread() is threading.main_thread()
    raises = is_main and getsignal(signal.SIGINT) is signal.default_int_handler
    _heed_interrupts(session, raises)


def draft_fuse(session: int, features: NDArray[np.float32], states: NDArray[np.float32]) -> None:
    """``selfspec_draft_fuse``; arrays must be C-contiguous. Raises what the status says."""
    _begin_pass(session)
    n = len(features)
    _check(session, _draft_fuse(session, n, features.ctypes.data, states.ctypes.data))


def draft_decode(
    session: int,
    *,
    tokens: Sequence[int],
    seq_ids: Sequence[int],
    pos: Sequence[int],
    outputs: bytes,
    head: str,
    among: array[int] | None = None,
    states: NDArray[np.float32],
    states_out: NDArray[np.float32],
) -> None:
    """``selfspec_draft_decode``; arrays must be C-contiguous. Raises what the status says."""
    _begin_pass(session)
    status = _draft_decode(
        session,
        len(seq_ids),
        numbers_of(tokens),
        numbers_of(seq_ids),
        numbers_of(pos),
        outputs,
        HEADS[head],
        *_address_of(among),
        states.ctypes.data,
        states_out.ctypes.data,
    )
    _check(session, status)


def argmax(session: int, row: int) -> tuple[int, float]:
    """The most likely token after a row with an output and its probability, 0..1."""
    p = ctypes.c_float()
    token = int(_argmax(session, row, p))
    if token < 0:
        _check(session, token)
    return token, p.value


def mask_support(session: int, n_layer: int) -> bytes:
    """For each block, which parts a mask may skip: 1 attention, 2 feed-forward."""
    out = ctypes.create_string_buffer(n_layer)
    _check(session, _mask_support(session, out, n_layer))
    return out.raw


def _answer(session: int, answer: int) -> int:
    """An answer that is not a status. Raises what a negative one says."""
    if answer < 0:
        _check(session, answer)
    return answer


def session_memory(session: int) -> int:
    """What the memory can take back: MEMORY_ROLLBACK and so on, as bits."""
    return _answer(session, _session_memory(session))


def n_moves(session: int) -> int:
    """How often K/V cells have been moved."""
    return _answer(session, _n_moves(session))


def exact_width(session: int) -> int:
    """Most rows whose results do not depend on the others in a pass; 0: no promise."""
    return _answer(session, _exact_width(session))


def exact_prompts(session: int) -> bool:
    """Whether a prompt has the same bits however it is split."""
    return bool(_answer(session, _exact_prompts(session)))


def can_enter(session: int, block: int) -> bool:
    """Whether states entering a block can be copied out and put in again, rewriting K/V."""
    return bool(_answer(session, _can_enter(session, block)))


def can_shorten(session: int) -> bool:
    """Whether the best token can be looked for among some tokens only."""
    return bool(_answer(session, _can_shorten(session)))


def can_keep(session: int, seq_id: int, n: int) -> int:
    """How many tokens, at most n, a sequence can be rolled back to."""
    return _answer(session, _can_keep(session, seq_id, n))


def reserve(session: int, seq_id: int, n: int) -> None:
    """Reserve room for n tokens of a sequence; n < 0: the number is unknown."""
    _check(session, _reserve(session, seq_id, n))


def in_order(session: int, seq_id: int) -> bool:
    """Whether the cells of a sequence ascend with its positions."""
    return bool(_answer(session, _in_order(session, seq_id)))


def logits_row(context: int, row: int, n_vocab: int) -> NDArray[np.float32]:
    """A copy of one row of logits, float32 [n_vocab]."""
    pointer = llama.llama_get_logits_ith(context, row)
    if not pointer:
        raise ArgumentError(f"there are no logits in row {row}")
    return np.ctypeslib.as_array(pointer, shape=(n_vocab,)).copy()


def best(session: int, row: int) -> int:
    """The most likely token after a row with an output, without its probability: reads the logits
    only once."""
    token = int(_argmax(session, row, None))
    if token < 0:
        _check(session, token)
    return token


def require_logits(context: int, row: int) -> None:
    """Raise ArgumentError when a row has no logits; sampling from it would end the process."""
    if row < 0 or not llama.llama_get_logits_ith(context, row):
        raise ArgumentError(f"there are no logits in row {row}")


def sample(session: int, sampler: int, row: int) -> int:
    """Draw a token id with a sampler chain from a row, and let the chain accept it."""
    token = int(_sample(session, sampler, row))
    if token == _LIMIT:
        raise _too_slow()
    if token < 0:
        _check(session, token)
    return token


def sample_logits(sampler: int, logits: NDArray[np.float32]) -> int:
    """Draw a token id with a sampler chain from logits, float32 [n_vocab], and let the chain accept
    it."""
    logits = np.ascontiguousarray(logits, np.float32)
    token = int(_sample_logits(sampler, logits.ctypes.data, len(logits)))
    if token == _NO_TOKEN:
        raise _no_token()
    if token == _LIMIT:
        raise _too_slow()
    if token < 0:
        raise _no_numbers()
    return token


def accept(chain: int, token: int) -> None:
    """Tell a sampler chain that this token was drawn. Raises ArgumentError, and changes nothing,
    where its grammar does not let the token follow."""
    _require_grammar_step(_accept(chain, token), f"the grammar does not let token {token} follow")


def _require_grammar_step(status: int, refused: str = "") -> None:
    if status == _BAD_ARGUMENT:
        raise ArgumentError(refused)
    if status == _LIMIT:
        raise _too_slow()
    if status:
        raise DecodeError("the sampler failed; there may not be enough memory")


def _too_slow() -> ArgumentError:
    return ArgumentError(
        "the grammar is too ambiguous to follow: it allows too many parses of the text; write it "
        "with fewer repetitions inside repetitions"
    )


def _no_token() -> ArgumentError:
    return ArgumentError("no token is left to draw: the grammar and filters rule out all")


def _no_numbers() -> DecodeError:
    return DecodeError("these logits are not numbers, no token can be drawn from them")


def init_grammar(vocab: int, text: str, n_wanted: int, gap: float) -> Any:
    """A sampler that rules out what a grammar does not let follow, and keeps the n_wanted likeliest
    of the others, or all with 0, whose logits are at most so far from the best one's. None where
    the log says what is wrong with the grammar."""
    made = _init_grammar(vocab, text.encode(), n_wanted, gap)
    return made and ctypes.cast(made, llama.llama_sampler_p_ctypes)  # as stock bindings pass them


def sampler_name(sampler: int) -> str:
    """The name that llama.cpp gives a kind of sampler."""
    return str(llama.llama_sampler_name(sampler).decode())


_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def law(samplers: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """What samplers that draw nothing make of logits: the probability of every token, float64
    [n_vocab]. They are not told of any token."""
    candidates = np.zeros(len(logits), _CANDIDATE)
    candidates["id"], candidates["logit"] = np.arange(len(logits)), logits
    data = candidates.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
    array = llama.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    for sampler in samplers:
        _require_grammar_step(_apply(sampler, ctypes.addressof(array)))
    left = candidates[: array.size]
    largest = left["logit"].max(initial=-np.inf)
    if not largest > -np.inf:
        raise _no_token() if np.max(logits) > -np.inf else _no_numbers()
    found = np.zeros(len(logits))
    found[left["id"]] = np.exp(left["logit"].astype(np.float64) - largest)
    found /= found.sum()
    return found


def tokenize(vocab: int, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
    """Token ids of UTF-8 text."""
    n_max = len(text) + 8
    while True:
        ids = (_i32 * n_max)()
        n = llama.llama_tokenize(vocab, text, len(text), ids, n_max, add_special, parse_special)
        if n >= 0:
            return ids[:n]
        if -n <= n_max:
            raise ArgumentError("the model's vocabulary cannot tokenize this text")
        n_max = -n


def token_to_piece(vocab: int, token: int) -> bytes:
    """The bytes of one token; not always whole UTF-8 characters."""
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = llama.llama_token_to_piece(vocab, token, buffer, size, 0, False)
        if n >= 0:
            return buffer.raw[:n]
        size = -n


def pieces(vocab: int, n: int) -> list[bytes]:
    """The same of the first n tokens, in a quarter of the time that asking for each takes."""
    size = 64
    buffer = ctypes.create_string_buffer(size)
    piece, found = llama.llama_token_to_piece, []
    for token in range(n):
        n_bytes = piece(vocab, token, buffer, size, 0, False)
        found.append(token_to_piece(vocab, token) if n_bytes < 0 else buffer.raw[:n_bytes])
    return found


def model_meta(model: int, key: str) -> str | None:
    """A metadata value of the model as text, None when it has no such key."""
    size = 4096
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = llama.llama_model_meta_val_str(model, key.encode(), buffer, size)
        if n < size:
            return None if n < 0 else buffer.value.decode(errors="replace")
        size = n + 1


def quantize(
    source: bytes, target: bytes, file_type: int, n_threads: int, pure: bool = False
) -> int:
    """``llama_model_quantize`` with its defaults but these; status 0 is success, the log says why
    not."""
    require_not_forked()
    params = llama.llama_model_quantize_default_params()
    params.ftype = file_type
    params.nthread = n_threads
    params.pure = pure
    return int(llama.llama_model_quantize(source, target, ctypes.byref(params)))


def _devices(*types: int) -> list[int]:
    devices = [_device_get(i) for i in range(_device_count())]
    return [device for device in devices if _device_type(device) in types]


def _descriptions(devices: Sequence[int]) -> tuple[str, ...]:
    return tuple(_device_description(device).decode(errors="replace") for device in devices)


def gpus() -> tuple[str, ...]:
    """Names of the GPUs that this library can use, in llama.cpp's order."""
    return _descriptions(_devices(*_GPU_TYPES))


def _rpc_function(name: str, restype: Any, *argtypes: Any) -> Any:
    """A function of ggml's RPC backend. Raises UnsupportedError where it was not built."""
    backend = _reg_by_name(b"RPC")
    if not backend:
        raise UnsupportedError("this library was built without RPC (GGML_RPC=OFF)")
    return ctypes.CFUNCTYPE(restype, *argtypes)(_reg_function(backend, name.encode()))


# void (*ggml_abort_callback_t)(const char * error_message);
_AbortCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_set_abort_callback = _bind("ggml_set_abort_callback", _ptr, _AbortCallback)


def _end_without_server(message: bytes) -> None:
    """ggml cannot go on without a server and aborts; end with one line and status 1 instead."""
    lost = b"RPC server" in message
    text = b"a server that lends devices is gone, or answers what none would" if lost else message
    os.write(2, b"Error: " + text.strip() + b"\n")
    if lost:
        os._exit(1)


_on_abort = _AbortCallback(_end_without_server)


def rpc_devices(server: str) -> list[int]:
    """Devices that a server lends, which must answer: the process ends otherwise, and whenever the
    server goes away."""
    _set_abort_callback(_on_abort)
    # ggml_backend_reg_t ggml_backend_rpc_add_server(const char * endpoint);
    add = _rpc_function("ggml_backend_rpc_add_server", _ptr, ctypes.c_char_p)
    lender = add(server.encode())
    return [_reg_device(lender, i) for i in range(_reg_device_count(lender))] if lender else []


def set_devices(params: Any, lent: Sequence[int]) -> object:
    """Let a model have these devices before the GPUs here. Returns what has to live as long as
    params."""
    devices = [*lent, *_devices(*_GPU_TYPES)]
    listed = (_ptr * (len(devices) + 1))(*devices, None)
    params.devices = ctypes.addressof(listed)
    return listed


def _to_lend() -> list[int]:
    return _devices(*_GPU_TYPES) or _devices(_CPU_TYPE)


def lent_devices() -> tuple[str, ...]:
    """What rpc_serve lends: the GPUs, or the CPU where there are none."""
    return _descriptions(_to_lend())


def rpc_serve(endpoint: str, n_threads: int, cache: str | None) -> None:
    """Lends devices to whoever connects; returns only when the port cannot be listened on."""
    # void ggml_backend_rpc_start_server(const char * endpoint, const char * cache_dir,
    #                                    size_t n_threads, size_t n_devices, devices);
    size = ctypes.c_size_t
    start = _rpc_function(
        "ggml_backend_rpc_start_server", None, ctypes.c_char_p, ctypes.c_char_p, size, size, _ptr
    )
    devices = _to_lend()
    folder = None if cache is None else os.fsencode(cache)
    listed = (_ptr * len(devices))(*devices)
    start(endpoint.encode(), folder, n_threads, len(devices), ctypes.addressof(listed))


def has_cuda() -> bool:
    """Whether this library was built with CUDA, on whatever machine it runs now."""
    return any(LIB_DIR.glob("*ggml-cuda*"))


def system_info() -> str:
    """What the backends of this library make use of."""
    return str(llama.llama_print_system_info().decode(errors="replace")).strip()


def release_memory() -> None:
    """Give freed memory back to the system. glibc keeps it, in ever more pieces where many graphs
    of different sizes come and go."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library
        return None


#
# logging
#

_verbose = False


def set_verbose(verbose: bool) -> None:
    """Show llama.cpp's log on stderr, or keep it silent (the default)."""
    global _verbose
    _verbose = verbose
    if _load.cache_info().currsize:
        _log_show(verbose)


def is_verbose() -> bool:
    return _verbose


def log_error() -> str:
    """The first error that llama.cpp logged in this thread since clear_log_error(), without
    function names."""
    text = re.sub(r"^(\w+: )+", "", _log_error().decode(errors="replace").strip())
    return on_one_line(text) or "it gives no reason; see its log"


def json_schema_to_gbnf(schema: str) -> str:
    """A grammar for the values that a JSON schema allows; name and arguments of functions come in
    this order. Raises anything for a schema that is wrong."""
    from llama_cpp.llama_grammar import json_schema_to_gbnf as convert

    return str(convert(schema, prop_order=["name", "arguments"]))
