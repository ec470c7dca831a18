"""A loaded GGUF model: its shape, its vocabulary, and contexts made from it. Owns the model
handle."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, MaskError, ModelFileError
from ..gguf import file as gguf_file
from ..gguf import fingerprint, heads
from ..hub import model_path
from ..masks.layer_mask import LayerMask
from ..util import memory as system_memory
from ..util.closing import Closing
from . import _lib, memory
from . import rpc as servers
from ._lib import INT32_MAX, llama
from .guards import Shared

if TYPE_CHECKING:
    from .context import Context

MASK_KEY = (
    "pyselfspec.draft_mask"  # GGUF metadata: the mask a model was made to draft with, as JSON
)

# "tensor", which upstream calls experimental, is left out: nobody has tried masks with it.
SPLIT_MODES = {  # with the numbers of enum llama_split_mode
    "none": 0,
    "layer": 1,
    "row": 2,
}
SPLIT_MODE = "layer"
N_UNSURE = 64  # last tokens of a part of a text that may be others in the whole
MAIN_GPU = 0


ALL_LAYERS = -1  # as llama.cpp and llama-cpp-python write it


def _warn_without_gpu() -> None:
    """Warn, as llama.cpp does, when layers are to be kept on a GPU and there is none."""
    if _lib.gpus():
        return
    reason = (
        "CUDA finds no GPU, check the driver with nvidia-smi"
        if _lib.has_cuda()
        else "pyselfspec was built without GPU support"
    )
    warnings.warn(f"n_gpu_layers has no effect, the model runs on the CPU: {reason}", stacklevel=3)


class Model(Closing):
    """A model for use in a ``with`` block; closing it closes its contexts first. Closing twice is
    fine. Threads may share a model; closing it while another one uses it, or a context of it,
    raises ArgumentError.

    path: a GGUF file, or as a str also a name, see `hub`; nothing is fetched.
    n_gpu_layers: last blocks to keep on GPUs, the head counts as one more; None or -1 for all of
        them. Without a GPU the model runs on the CPU, with a warning if layers were asked for.
    split_mode: how several GPUs share the model, one of SPLIT_MODES as llama.cpp explains them.
    main_gpu: the GPU that split mode "none" uses, and "row" for small tensors.
    rpc: servers as "host:port" that lend devices of other machines, see docs/rpc.md; they come
    before the GPUs here, and count as GPUs.

    Raises ModelFileError when the file is missing, broken or not supported, UnsupportedError for a
    server that does not answer, LibraryError in a process that was forked after the library was
    loaded.
    """

    _handle: int | None

    def __init__(
        self,
        path: str | Path,
        *,
        n_gpu_layers: int | None = None,
        split_mode: str = SPLIT_MODE,
        main_gpu: int = MAIN_GPU,
        rpc: Sequence[str] = (),
    ) -> None:
        if split_mode not in SPLIT_MODES:
            raise ArgumentError(
                f"split_mode is one of {', '.join(SPLIT_MODES)}, got {split_mode!r}"
            )
        if not 0 <= main_gpu <= INT32_MAX:
            raise ArgumentError(f"main_gpu is 0 to {INT32_MAX}, got {main_gpu}")
        if n_gpu_layers is not None and n_gpu_layers < ALL_LAYERS:
            raise ArgumentError(f"n_gpu_layers is at least {ALL_LAYERS}, got {n_gpu_layers}")
        if n_gpu_layers and not rpc:
            _warn_without_gpu()
        _lib.require_not_forked()
        if n_gpu_layers == ALL_LAYERS:
            n_gpu_layers = None
        self._open(model_path(path), rpc)
        self.free_bytes = (
            system_memory.available()
        )  # of memory before the model is loaded, None where unknown
        if not rpc and (n_gpu_layers == 0 or not _lib.gpus()):
            memory.require_for_model(self.file)

        params = llama.llama_model_default_params()
        params.split_mode = SPLIT_MODES[split_mode]
        params.main_gpu = main_gpu
        self.own_head = heads.own(self.file)
        params.load_mtp = self.own_head is not None
        if n_gpu_layers is not None:
            params.n_gpu_layers = min(n_gpu_layers, INT32_MAX)

        with ExitStack() as stack:
            if self.rpc:
                lent = stack.enter_context(servers.borrowed(self.rpc))
                self._devices = _lib.set_devices(params, lent)
            _lib.clear_log_error()
            handle = llama.llama_model_load_from_file(os.fsencode(self.path), params)
            if not handle:
                reason = f"llama.cpp cannot load this model: {_lib.log_error()}"
                embeds = gguf_file.embedder(self.file.architecture)
                raise ModelFileError(f"{self.path}: {embeds or reason}")
            self._handle = handle  # first: Ctrl-C may free it from here on
            stack.callback(self._free)
            self._stack = stack.pop_all()
        self._read(handle, n_gpu_layers, split_mode, main_gpu)

    @classmethod
    def lent(
        cls,
        path: str | Path,
        handle: int,
        *,
        n_gpu_layers: int | None,
        split_mode: str,
        main_gpu: int,
    ) -> Model:
        """A model that somebody else has loaded from this file, and frees. Close this one before;
        the arguments say how it was loaded. A head of its own is left aside.

        Raises ModelFileError for a file that cannot be read.
        """
        model = cls.__new__(cls)
        model._open(Path(path))
        model.own_head = None
        model._stack.callback(model._forget)
        model._read(handle, n_gpu_layers, split_mode, main_gpu)
        return model

    def _open(self, path: Path, rpc: Sequence[str] = ()) -> None:
        self.path = path
        self.file = gguf_file.check(self.path)
        self.rpc = tuple(rpc)
        self.contexts: set[Context] = set()  # open ones; they enter and leave by themselves
        self.users = Shared(f"the model {self.path.name}")
        self._handle = None
        self._stack = ExitStack()

    def _read(self, handle: int, n_gpu_layers: int | None, split_mode: str, main_gpu: int) -> None:
        self._handle = handle
        self.n_layer: int = llama.llama_model_n_layer(handle)
        self.n_gpu_layers = self._offloaded(n_gpu_layers)
        self.split_mode = split_mode
        self.main_gpu = main_gpu
        self.n_embd: int = llama.llama_model_n_embd(handle)
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(handle)
        self._vocab = llama.llama_model_get_vocab(handle)
        self.n_vocab: int = llama.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[int, bytes] = {}

    def _offloaded(self, asked: int | None) -> int:
        """Layers that are on GPUs, 0..n_layer + 1, the last one being the head."""
        n_all = self.n_layer + 1 if self.rpc or _lib.gpus() else 0
        return n_all if asked is None else min(asked, n_all)

    def _free(self) -> None:
        llama.llama_model_free(self._handle)
        self._forget()

    def _forget(self) -> None:
        self._handle = None

    def close(self) -> None:
        with self.users.freeing():
            # The native contexts must be freed before their model.
            for context in tuple(self.contexts):
                context.close()
            self._stack.close()

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ArgumentError(f"the model {self.path.name} is closed")
        return self._handle

    def context(self, **options: Any) -> Context:
        """A Context on this model; options as for Context. The model closes it at the latest."""
        from .context import Context

        return Context(self, **options)

    # vocabulary

    @cached_property
    def has_vocab(self) -> bool:
        """Whether text can be turned into tokens (some research models have ids only)."""
        with self.users:
            return bool(llama.llama_vocab_type(self.vocab) != llama.LLAMA_VOCAB_TYPE_NONE)

    @property
    def vocab(self) -> int:
        _ = self.handle  # it belongs to the model
        return int(self._vocab)

    def require_tokenizer(self, advice: str = "give token ids instead of text") -> int:
        """The vocabulary, or ArgumentError for a model that has ids only."""
        vocab = self.vocab
        if not self.has_vocab:
            raise ArgumentError(f"{self.path.name} has no tokenizer; {advice}")
        return vocab

    @property
    def start_token(self) -> int | None:
        """The token that the model puts before every text (BOS), None when it has no such habit."""
        with self.users:
            vocab = self.vocab
            adds_bos = llama.llama_vocab_get_add_bos(vocab)
            return int(llama.llama_vocab_bos(vocab)) if adds_bos else None

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of text. add_special: with the model's own first and last tokens."""
        self.require_tokenizer()
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(
                f"the text is not valid Unicode at character {error.start}"
            ) from None
        with self.users:
            vocab = self.require_tokenizer()
            return _lib.tokenize(vocab, data, add_special=add_special, parse_special=parse_special)

    def first_tokens(
        self, text: str, n: int, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The first n token ids of a text, or all that it has, without a look at all of it."""
        n_chars = 8 * (n + N_UNSURE)
        while n_chars < len(text):
            tokens = self.tokenize(
                text[:n_chars], add_special=add_special, parse_special=parse_special
            )
            if len(tokens) >= n + N_UNSURE:
                return tokens[:n]
            n_chars *= 4
        return self.tokenize(text, add_special=add_special, parse_special=parse_special)[:n]

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the text; special tokens add none."""
        self.require_tokenizer()
        piece = self._pieces.get(token)
        if piece is None:
            self.require_tokens([token])
            with self.users:
                piece = _lib.token_to_piece(self.require_tokenizer(), token)
            self._pieces[token] = piece
        return piece

    def pieces(self) -> list[bytes]:
        """The same for all tokens."""
        with self.users:
            return _lib.pieces(self.require_tokenizer(), self.n_vocab)

    def require_tokens(self, tokens: Sequence[int]) -> None:
        """Raise ArgumentError for ids outside the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.n_vocab:
                raise ArgumentError(
                    f"token id {token} is not in the vocabulary, allowed is 0 to {self.n_vocab - 1}"
                )

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def is_eog(self, token: int) -> bool:
        """Whether generation ends with this token."""
        with self.users:
            return bool(llama.llama_vocab_is_eog(self.vocab, token))

    # what it is

    @cached_property
    def head_size_k(self) -> int:
        """Values of K in one attention head."""
        key = f"{self.file.architecture}.attention.key_length"
        with self.users:
            length = _lib.model_meta(self.handle, key)
        return int(length) if length else self.n_embd // max(1, self.file.n_head)

    @cached_property
    def fingerprint(self) -> str:
        """Names the model in files of results, 64 hexadecimal digits."""
        return fingerprint.of_model(self.file)

    @cached_property
    def vocabulary(self) -> str:
        """Names its tokens in files of token ids, 64 hexadecimal digits."""
        return fingerprint.of_vocabulary(self.file)

    @cached_property
    def draft_mask(self) -> LayerMask | None:
        """The mask this model was made to draft with, if its metadata names one."""
        with self.users:
            text = _lib.model_meta(self.handle, MASK_KEY)
        if text is None:
            return None
        try:
            return LayerMask.from_json(text).require(self.n_layer)
        except MaskError as error:
            raise MaskError(f"{self.path}, key {MASK_KEY}: {error}") from None
