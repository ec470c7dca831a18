"""Embeddings: one vector for a text, or the score of a query and a document, from models made for
it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, DecodeError, UnsupportedError
from ..gguf import file as gguf_file
from ..gguf.file import GgufFile
from ..gguf.header import read_header
from ..util import memory as system_memory
from ..util.closable import Closing
from ..util.machine import usable_cores
from ..util.sizes import size_text
from . import memory
from .context_handle import ContextHandle
from .context_options import N_CTX_MAX, N_THREADS_MAX, require_range
from .ffi import calls, load
from .ffi.load import llama
from .lora import set_adapters
from .model import Model
from .thread_guards import SingleThread

# Numbers of enum llama_pooling_type: how the rows of a text become one.
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
RANK = "rank"
N_CTX = 4096  # tokens of a text, or the model's training context when that is shorter
MASK_BYTES = 4  # of each pair of tokens, in a pass over the longest text
FROM_FILE = -1
PAIR_TEMPLATE = b"rerank"  # name of the chat template for pairs


def pooling_of(file: GgufFile) -> str | None:
    """Return the pooling of a model that was made for embeddings: by its architecture, or by the
    pooling that its file names. None for a model that generates text."""
    number = read_header(file.path).metadata.get(f"{file.architecture}.pooling_type")
    named = next((name for name, n in POOLING.items() if n == number), "none")
    return named if named != "none" or gguf_file.embedder(file.architecture) else None


def _require_one_state(model: Model) -> None:
    """Raise UnsupportedError for a model with several states per token, of which llama.cpp would
    read all from a result that holds one."""
    file = model.file
    key = f"{file.architecture}.hyper_connection.count"
    n_states = read_header(file.path).metadata.get(key, 1)
    if n_states != 1 and llama.llama_model_n_embd_out(model.handle) != model.n_embd:
        raise UnsupportedError(
            f"architecture {file.architecture} has {n_states} states per token, which give no "
            "embedding; give a model made for embeddings"
        )


class EmbeddingContext(Closing):
    """A context that evaluates one text at a time, so that the bits of a text do not depend on
    others. For one thread at a time.

    n_ctx: most tokens of a text, at most the positions that the model has. pooling: one of POOLING;
        None: as the model's file says.

    Texts are evaluated with the LoRA adapters of Model(lora=).

    Raises ArgumentError for options outside their range and a pooling that the model cannot do,
    UnsupportedError for a model with several states per token, DecodeError where memory is short.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        pooling: str | None = None,
    ) -> None:
        if pooling is not None and pooling not in POOLING:
            raise ArgumentError(f"pooling is one of {', '.join(POOLING)}, got {pooling!r}")
        if pooling == RANK and not any(t.name.startswith("cls") for t in model.file.tensors):
            raise ArgumentError(
                f"{model.path.name} has no head that scores texts, which rank needs"
            )
        _require_one_state(model)
        if n_ctx is not None:
            require_range("n_ctx (-c)", n_ctx, 1, N_CTX_MAX)
        n_threads = min(usable_cores(), N_THREADS_MAX) if n_threads is None else n_threads
        require_range("n_threads", n_threads, 1, N_THREADS_MAX)
        self.model = model
        self._lock = SingleThread("the context of embeddings")
        n_ctx = model.within_positions(n_ctx or min(N_CTX, model.n_ctx_train or N_CTX))
        params = llama.llama_context_default_params()
        # a text is one pass: its tokens may all see each other
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = n_threads
        params.embeddings = True
        params.pooling_type = FROM_FILE if pooling is None else POOLING[pooling]
        params.op_offload = model.n_gpu_layers > 0
        what = f"a context for texts of {n_ctx} tokens"
        mask_bytes, free = MASK_BYTES * n_ctx**2, system_memory.available()
        if free is not None and mask_bytes > free:
            raise DecodeError(
                f"{what} takes {size_text(mask_bytes)} of memory, and {size_text(free)} are free; "
                "give a smaller n_ctx (-c)"
            )
        memory.require_room(model.file, what, mask_bytes, n_threads=n_threads)
        load.clear_log_error()
        with model.in_use():
            handle = llama.llama_init_from_model(model.handle, params)
        if not handle:
            raise load.failure(DecodeError, what)
        self._handle = ContextHandle(handle, is_owned=True)
        set_adapters(handle, model.default_adapters)
        self.n_ctx = n_ctx
        kind = int(llama.llama_pooling_type(handle))
        self.pooling = next((name for name, n in POOLING.items() if n == kind), "none")
        model.contexts.add(self)  # closed before the model is freed

    def close(self) -> None:
        with self._lock():
            self.model.contexts.discard(self)
            self._handle.close()

    @property
    def width(self) -> int:
        """The number of values of a result."""
        if self.pooling == RANK:
            return int(llama.llama_model_n_cls_out(self.model.handle))
        return int(llama.llama_model_n_embd_out(self.model.handle))

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the pooled result of a text, float32 [width], as the model computes it: vectors
        are not normalised. Without pooling, the rows of all tokens, float32 [n_tokens, width].

        Raises ArgumentError for a text that is empty or too long, DecodeError if the pass fails.
        """
        if not 1 <= len(tokens) <= self.n_ctx:
            raise ArgumentError(f"a text has 1 to {self.n_ctx} tokens here, got {len(tokens)}")
        self.model.require_tokens(tokens)
        with self._lock(), self.model.in_use():
            calls.embed(self._handle.session, tokens)
            return self._result(len(tokens))

    def _result(self, n_tokens: int) -> NDArray[np.float32]:
        if self.pooling == "none":
            rows = llama.llama_get_embeddings(self._handle.context)
            found = np.ctypeslib.as_array(rows, (n_tokens, self.width))
        else:
            row = llama.llama_get_embeddings_seq(self._handle.context, 0)
            if not row:
                raise DecodeError("the model left no embedding; give a model made for embeddings")
            found = np.ctypeslib.as_array(row, (self.width,))
        return np.array(found, np.float32)


def pair_tokens(model: Model, query: str, document: str) -> list[int]:
    """Return the tokens of a pair: by the template for pairs in the model's file, else the query
    and the document between the special tokens that the file asks for."""
    template = _pair_template(model)
    if template is not None:
        before, mark, behind = template.partition("{document}")
        text = before.replace("{query}", query) + (document if mark else "")
        return model.tokenize(text + behind.replace("{query}", query))
    with model.in_use():
        vocab = model.vocab
        none = llama.LLAMA_TOKEN_NULL
        bos, eos, sep = (
            int(getattr(llama, f"llama_vocab_{name}")(vocab)) for name in ("bos", "eos", "sep")
        )
        adds_bos, adds_eos, adds_sep = (
            bool(getattr(llama, f"llama_vocab_get_add_{name}")(vocab))
            for name in ("bos", "eos", "sep")
        )
    end = [sep if eos == none else eos] if adds_eos else []
    return [
        *([bos] if adds_bos else []),
        *model.tokenize(query, add_special=False, parse_special=False),
        *end,
        *([sep] if adds_sep else []),
        *model.tokenize(document, add_special=False, parse_special=False),
        *(end or ([sep] if adds_sep else [])),  # BERT was trained with [SEP] after both
    ]


def _pair_template(model: Model) -> str | None:
    with model.in_use():
        found = llama.llama_model_chat_template(model.handle, PAIR_TEMPLATE)
    return None if found is None else bytes(found).decode(errors="replace")
