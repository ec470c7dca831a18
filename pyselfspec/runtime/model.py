"""A loaded GGUF model: its shape, its vocabulary, and its contexts. Owns the model handle."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import (
    ArgumentError,
    MaskError,
    ModelFileError,
    SelfSpecError,
    SelfSpecWarning,
    UnsupportedError,
)
from ..gguf import file as gguf_file
from ..gguf import fingerprint, heads
from ..hub import model_path
from ..masks.layer_mask import LayerMask
from ..util import memory as system_memory
from ..util.closable import Closing
from ..util.sizes import INT32_MAX, size_text
from . import loading, memory, offload
from . import rpc as servers
from .context_options import ContextOptions
from .ffi import devices, model_calls
from .ffi import load as library
from .ffi.load import llama
from .lora import Adapter, AdapterFile, Adapters, file_and_scale, load_adapter, scaled
from .offload import ContextSize
from .thread_guards import InUse
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from .context import Context

MASK_KEY = (
    "pyselfspec.draft_mask"  # GGUF metadata: the mask a model was made to draft with, as JSON
)

# "tensor", which upstream calls experimental, is left out: masks are untested with it.
SPLIT_MODES = {  # numbers of enum llama_split_mode
    "none": 0,
    "layer": 1,
    "row": 2,
}
SPLIT_MODE = "layer"
MAIN_GPU = 0


ALL_LAYERS = -1  # as llama.cpp and llama-cpp-python write it


def _n_max(n_gpu_layers: int | str | None) -> int | None:
    """Return the most layers that may be on GPUs: a number, ALL_LAYERS, or None for no limit.
    Raises ArgumentError for anything else."""
    if n_gpu_layers == offload.AUTO:
        return ALL_LAYERS
    if isinstance(n_gpu_layers, str) or (n_gpu_layers is not None and n_gpu_layers < ALL_LAYERS):
        raise ArgumentError(
            f"n_gpu_layers (-ngl) is at least {ALL_LAYERS}, or {offload.AUTO}, got {n_gpu_layers}"
        )
    return n_gpu_layers


def _warn_without_gpu() -> None:
    """Warn, as llama.cpp does, about layers for a GPU on a machine without one."""
    if devices.gpus():
        return
    reason = "pyselfspec was built without GPU support"
    if devices.has_cuda():
        reason = "CUDA finds no GPU, check the driver with nvidia-smi"
    elif devices.has_vulkan():
        reason = (
            "Vulkan finds no GPU, check the driver with vulkaninfo --summary "
            "(a device in software must be named: GGML_VK_VISIBLE_DEVICES=0)"
        )
    warning = SelfSpecWarning(
        f"n_gpu_layers (-ngl) has no effect, the model runs on the CPU: {reason}"
    )
    warnings.warn(warning, stacklevel=3)


_CONTEXT_FIELDS = signature(ContextOptions).parameters.values()


class Model(Vocabulary):
    """A model, for use in a ``with`` block; closing it closes its contexts first. Closing twice is
    fine. Threads may share a model; closing it while another thread uses it, or a context of it,
    raises ArgumentError.

    path: a GGUF file, or a model's name as a str, see `hub`; nothing is downloaded.
    n_gpu_layers: last blocks to keep on GPUs, the head counts as one more; None or -1 for all of
        them, "auto" for as many as fit with a context of ``context_size``. Without a GPU the model
        runs on the CPU, with a warning if layers were asked for.
    context_size: the context for which "auto" leaves room on GPUs; a size of 0 tokens is that which
        the model was trained with.
    split_mode: how several GPUs share the model, one of SPLIT_MODES as llama.cpp explains them.
    main_gpu: the GPU that split mode "none" uses, and "row" for small tensors.
    load: "copy" the weights into memory, where passes are faster; "map" the file, which loads
        faster and is shared between processes; "auto" copies for the CPU what is faster so, where
        twice the file's size is free. The attribute is what was chosen. IQ1 to IQ3 may take up to
        2.9 times as much memory as in the file, unless "map" is given; see `loading`.
    rpc: servers "host:port" of devices of other machines, see docs/rpc.md; these come before the
        GPUs of this machine, and count as GPUs.
    lora: files of LoRA adapters, alone or with a scale, see ``adapters``; contexts use them with
        these scales where a text names no others.
    handle: address of a model that llama_cpp has loaded from this file and frees after this one is
        closed; the other options are those it was loaded with, and it has no head of its own.
        Default: load the file.

    Raises ModelFileError when the file is missing, broken or not supported, UnsupportedError for a
    server that does not answer, LibraryError in a process that was forked after the library was
    loaded.
    """

    _handle: int | None

    def __init__(
        self,
        path: str | Path,
        *,
        n_gpu_layers: int | str | None = None,
        split_mode: str = SPLIT_MODE,
        main_gpu: int = MAIN_GPU,
        load: str = loading.AUTO,
        rpc: Sequence[str] = (),
        lora: Sequence[AdapterFile] = (),
        handle: int | None = None,
        context_size: ContextSize = offload.DEFAULT_SIZE,
    ) -> None:
        if split_mode not in SPLIT_MODES:
            raise ArgumentError(
                f"split_mode is one of {', '.join(SPLIT_MODES)}, got {split_mode!r}"
            )
        if not 0 <= main_gpu <= INT32_MAX:
            raise ArgumentError(f"main_gpu is 0 to {INT32_MAX}, got {main_gpu}")
        loading.require(load)
        n_max = _n_max(n_gpu_layers)
        if n_max and not rpc and handle is None:
            _warn_without_gpu()
        library.require_not_forked()
        if n_max == ALL_LAYERS:
            n_max = None
        self.path = model_path(path) if handle is None else Path(path)
        self.file = gguf_file.check(self.path)
        self.rpc = tuple(rpc)
        self.split_mode = split_mode
        self.main_gpu = main_gpu
        self.load = self.load_option = load
        self.own_head: heads.HeadFile | None = None
        self.head_fault = ""  # why the head in the file cannot be used
        has_broken_head = handle is None and not self._find_own_head()
        self.contexts: set[Closing] = set()  # open ones; they add and remove themselves
        self.in_use = InUse(f"the model {self.path.name}")
        self.free_bytes = system_memory.available()  # before loading; None where unknown
        self.n_grown_bytes = 0  # of memory that weights take in addition to those of the file
        self._n_device_bytes: int | None = None  # free on devices before loading
        self._stack = ExitStack()
        self._handle = handle
        self._stack.callback(self._forget)
        if handle is None:
            size = context_size if n_gpu_layers == offload.AUTO else None
            n_max = self._load(n_max, has_broken_head, size)
        self._vocab = llama.llama_model_get_vocab(self.handle)
        self._load_adapters(lora)
        self.n_layer: int = llama.llama_model_n_layer(self.handle)
        self.n_gpu_layers = self._offloaded(n_max)
        self.n_embd: int = llama.llama_model_n_embd(self.handle)
        self.n_embd_in: int = llama.llama_model_n_embd_inp(self.handle)
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(self.handle)
        self.n_vocab: int = llama.llama_vocab_n_tokens(self._vocab)

    def _find_own_head(self) -> bool:
        """Look for the head in the file. Returns False for a broken one."""
        try:
            self.own_head = heads.own(self.file)
        except SelfSpecError as error:
            self.head_fault = str(error)
            return isinstance(error, UnsupportedError)
        return True

    @property
    def n_positions(self) -> int | None:
        """The most tokens of a text for a model that looks positions up in a table; None for other
        models."""
        return self.file.n_positions

    def within_positions(self, n_ctx: int) -> int:
        """Return n_ctx, or the model's number of positions where that is less."""
        return n_ctx if self.n_positions is None else min(n_ctx, self.n_positions)

    @property
    def last_states_width(self) -> int:
        """The number of values per token that passes can leave for a head after the last block; 0
        if they leave none."""
        return heads.last_states_width(self.file, self.own_head)

    def _load(
        self, n_gpu_layers: int | None, has_broken_head: bool, size: ContextSize | None
    ) -> int | None:
        """Load the file with at most n_gpu_layers layers on devices, or as many as fit there beside
        a context of a size. Return the number given to llama.cpp, None for all."""
        params = llama.llama_model_default_params()
        growing = loading.may_grow(self.file, self.load, self.free_bytes)
        is_on_cpu = not self.rpc and (n_gpu_layers == 0 or not devices.gpus())
        if is_on_cpu:
            memory.require_for_model(self.file)
            if self.load == loading.AUTO:
                share = loading.kept_share(self.file)
                self.load = loading.chosen(self.file.n_bytes, self.free_bytes, share)
        params.load_mode = loading.MODES[self.load]
        params.split_mode = SPLIT_MODES[self.split_mode]
        params.main_gpu = self.main_gpu
        params.load_mtp = self.own_head is not None
        with ExitStack() as stack:
            remote: Sequence[int] = ()
            if self.rpc:
                remote = stack.enter_context(servers.connected(self.rpc))
                self._devices = devices.set_devices(params, remote)
            self._n_device_bytes = devices.free_bytes(remote)
            if size is not None:
                size = replace(size, n_ctx=size.n_ctx or self.file.context_length)
                n_gpu_layers = offload.fitting(self.file, self._n_device_bytes, size)
            if n_gpu_layers is not None:
                params.n_gpu_layers = min(n_gpu_layers, INT32_MAX)
            library.clear_log_error()
            with growing as self.n_grown_bytes:
                handle = llama.llama_model_load_from_file(os.fsencode(self.path), params)
            if not handle:
                if embeds := gguf_file.embedder(self.file.architecture):
                    raise ModelFileError(f"{self.path}: {embeds}")
                what = f"{self.path}: llama.cpp cannot load this model"
                n_layers = self.file.n_layer + 1
                if n_gpu_layers is not None:
                    n_layers = min(n_gpu_layers, n_layers)
                raise library.failure(ModelFileError, what, self.shortage(n_layers))
            self._handle = handle  # first: from here on Ctrl-C may free the model
            stack.callback(self._free)
            if has_broken_head:
                what = f"{self.path}: {self.head_fault}; text is generated without it"
                warnings.warn(SelfSpecWarning(what), stacklevel=3)
            self._stack = stack.pop_all()
        return n_gpu_layers

    def _load_adapters(self, lora: Sequence[AdapterFile]) -> None:
        """Load adapters, before any context is made: llama.cpp counts their nodes then."""
        given = [file_and_scale(each) for each in lora]
        self.adapters: tuple[Adapter, ...] = ()
        try:
            for path, _ in given:
                self.adapters += (load_adapter(self, path, len(self.adapters)),)
            self.default_adapters: Adapters = scaled(
                self.adapters, [(i, scale) for i, (_, scale) in enumerate(given)]
            )
        except BaseException:
            self._stack.close()
            raise

    def shortage(self, n_layers: int, size: ContextSize = offload.DEFAULT_SIZE) -> str:
        """Return the end of a message on the memory that n_layers layers need on devices with a
        context of a size; "" where they should fit and no allocation has failed."""
        if self._n_device_bytes is None:
            return ""
        text = offload.shortage(self.file, n_layers, self._n_device_bytes, size)
        if text:
            return f'; {text}: give n_gpu_layers="auto" (-ngl auto)'
        if not n_layers or library.NOT_ALLOCATED not in library.log_error():
            return ""
        needed = size_text(offload.needed_bytes(self.file, n_layers, size))
        return (
            f"; {n_layers} layers with {size.n_ctx} tokens of context need about {needed} of "
            "device memory: give fewer, n_gpu_layers (-ngl)"
        )

    def _offloaded(self, n_max: int | None) -> int:
        """Return the number of layers on GPUs, 0 to n_layer + 1; the head counts as the last."""
        n_all = self.n_layer + 1 if self.rpc or devices.gpus() else 0
        return n_all if n_max is None else min(n_max, n_all)

    def _free(self) -> None:
        llama.llama_model_free(self._handle)
        self._forget()

    def _forget(self) -> None:
        self._handle = None

    def close(self) -> None:
        with self.in_use.freeing():
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
        """Return a new context on this model, with the fields of ``ContextOptions``. Closing the
        model closes it.

        Raises what ``open_context`` does.
        """
        from .opening import open_context

        return open_context(self, ContextOptions(**options))

    context.__signature__ = Signature(  # type: ignore[attr-defined]  # help() shows the fields
        [Parameter("self", Parameter.POSITIONAL_ONLY), *_CONTEXT_FIELDS],
        return_annotation="Context",
    )

    # what it is

    @cached_property
    def state_bytes(self) -> int:
        """The bytes of the recurrent state of one sequence; 0 for a model without one. A context
        holds one for each sequence, and as many more as it keeps snapshots."""
        with self.in_use():
            return model_calls.state_bytes(self.handle)

    @cached_property
    def replays_states(self) -> bool:
        """Whether contexts can compute a recurrent state again from the rows of the last pass, and
        then need no snapshots of it."""
        with self.in_use():
            return model_calls.replays(self.handle)

    @cached_property
    def head_size_k(self) -> int:
        """The number of values of K in one attention head."""
        key = f"{self.file.architecture}.attention.key_length"
        with self.in_use():
            length = model_calls.meta(self.handle, key)
        return int(length) if length else self.n_embd // max(1, self.file.n_head)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that identifies the model in result files, 64 hexadecimal digits."""
        return fingerprint.of_model(self.file)

    @cached_property
    def vocabulary(self) -> str:
        """A hash that identifies the vocabulary in files of token ids, 64 hexadecimal digits."""
        return fingerprint.of_vocabulary(self.file)

    @cached_property
    def draft_mask(self) -> LayerMask | None:
        """The mask that the model's metadata recommends for drafting, None without one."""
        with self.in_use():
            text = model_calls.meta(self.handle, MASK_KEY)
        if text is None:
            return None
        try:
            return LayerMask.from_json(text).require(self.n_layer)
        except MaskError as error:
            raise MaskError(f"{self.path}, key {MASK_KEY}: {error}") from None


def open_beside(target: Model, path: Path, n_ctx: int) -> Model:
    """Return a model that drafts for another one. If the target uses GPUs, it keeps as many layers
    there as fit into the memory that is left, beside a context of n_ctx tokens. Its other layers
    are on the CPU.

    Raises what Model does.
    """
    return Model(
        path,
        n_gpu_layers=offload.AUTO if target.n_gpu_layers and devices.gpus() else 0,
        context_size=ContextSize(n_ctx),
        split_mode=target.split_mode,
        main_gpu=target.main_gpu,
        load=target.load_option,
    )
