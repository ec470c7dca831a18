"""Options for the device and the context of a model, and the opening of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click

from ..errors import ArgumentError
from ..runtime import rpc
from ..runtime.checkpoints import N_CHECKPOINTS
from ..runtime.context import Context
from ..runtime.context_options import N_CTX, N_CTX_MAX, N_THREADS_MAX
from ..runtime.kv_types import CACHE_TYPE, CACHE_TYPES
from ..runtime.loading import AUTO, LOADS
from ..runtime.lora import AdapterFile
from ..runtime.model import ALL_LAYERS, MAIN_GPU, SPLIT_MODE, SPLIT_MODES, Model
from ..runtime.offload import ContextSize
from ..util.machine import usable_cores
from ..util.sizes import INT32_MAX
from ._types import FILE, Integer, IntegerOrAuto, of_value, option, rare

FLASH_ATTN = {"on": True, "off": False, "auto": None}


def _servers(text: str) -> tuple[str, ...]:
    """Read the value of --rpc."""
    servers = tuple(filter(None, text.split(",")))
    try:
        for server in servers:
            rpc.parse(server)
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from None
    return servers


def _scaled_files(given: tuple[str, ...]) -> tuple[tuple[Path, float], ...]:
    """Read the values of --lora-scaled."""
    found = []
    for each in given:
        file, _, scale = each.rpartition(":")
        try:
            found.append((Path(file), float(scale)))
        except ValueError:
            raise click.BadParameter(f"{each!r} is not FILE:SCALE, like tone.gguf:0.5") from None
        if not Path(file).is_file():
            raise click.BadParameter(f"there is no file {file!r}")
    return tuple(found)


def threads_settings(help: str) -> dict[str, Any]:
    """Return the settings of -t, --threads."""
    return {
        "type": Integer(1, N_THREADS_MAX),
        "callback": of_value(_n_threads),
        "help": f"{help}  [default: all cores]",
    }


def _n_threads(n: int) -> int:
    if n > usable_cores():
        click.echo(
            f"Warning: -t {n} is more than the {usable_cores()} cores that this program may use, "
            "which is slow; leave it out",
            err=True,
        )
    return n


def _cache_type(part: str) -> Any:
    return rare(
        f"-ct{part}",
        f"--cache-type-{part}",
        type=click.Choice(list(CACHE_TYPES)),
        default=CACHE_TYPE,
        help=f"Type of the {part.upper()} cache; smaller types save memory.",
    )


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The devices that compute passes, and how they do it. Names as in llama.cpp."""

    title: ClassVar[str] = "Machine"
    threads: int | None = option(
        "-t",
        "--threads",
        **threads_settings(
            "Most CPU threads to use; passes take fewer while other programs want the cores."
        ),
    )
    n_gpu_layers: int | str | None = option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=IntegerOrAuto(ALL_LAYERS),
        help="Number of blocks to keep on GPUs, -1 for all, auto for as many as fit.  "
        "[default: all]",
    )
    split_mode: str = rare(
        "-sm",
        "--split-mode",
        type=click.Choice(list(SPLIT_MODES)),
        default=SPLIT_MODE,
        help="How to distribute the model over GPUs: none (one GPU holds all of it), layer (by "
        "blocks) or row (by rows of the weights). No effect without GPUs.",
    )
    main_gpu: int = rare(
        "-mg",
        "--main-gpu",
        type=Integer(0, INT32_MAX),
        default=MAIN_GPU,
        help="Index of the GPU that holds the model (--split-mode none) or its small tensors "
        "(--split-mode row). No effect without GPUs.",
    )
    load_mode: str = rare(
        "--load-mode",
        type=click.Choice(list(LOADS)),
        default=AUTO,
        help="How to load weights for the CPU: copy them into memory (faster passes), map the file "
        "(loads faster, shared between processes), or auto: copy what is faster so, if twice the "
        "file's size is free. Unless map is given, IQ1 to IQ3 may take up to 2.9 times as much "
        "memory, in which they are faster.",
    )
    rpc: tuple[str, ...] = rare(
        "--rpc",
        metavar="HOST:PORT,...",
        callback=of_value(_servers, ()),
        help="Keep the model on these machines, which run pyselfspec rpc-serve; -ngl limits the "
        "number of blocks there.",
    )
    flash_attn: str = rare(
        "-fa",
        "--flash-attn",
        type=click.Choice(list(FLASH_ATTN)),
        default="auto",
        help="Flash attention; auto: on where the device supports it.",
    )
    cache_type_k: str = _cache_type("k")
    cache_type_v: str = _cache_type("v")

    def open_model(
        self, name: str | Path, n_ctx: int = N_CTX, lora: Sequence[AdapterFile] = ()
    ) -> Model:
        """Open a model by path or name.

        n_ctx: tokens of its contexts, 0 for as many as it was trained with.
        """
        return Model(
            name,
            n_gpu_layers=self.n_gpu_layers,
            split_mode=self.split_mode,
            main_gpu=self.main_gpu,
            rpc=self.rpc,
            load=self.load_mode,
            context_size=ContextSize(n_ctx, self.cache_type_k, self.cache_type_v),
            lora=lora,
        )

    @contextmanager
    def open(self, name: str | Path) -> Iterator[tuple[Model, Context]]:
        """Yield a model, opened by path or name, and a context."""
        with self.model(name) as model, self.context(model) as context:
            yield model, context

    def model(self, name: str | Path) -> Model:
        """Open a model, for a context of the default size."""
        return self.open_model(name)

    def context(self, model: Model) -> Context:
        return model.context(**self.context_params())

    def context_params(self) -> dict[str, Any]:
        """Return the parameters of a Context."""
        return {
            "n_threads": self.threads,
            "flash_attn": FLASH_ATTN[self.flash_attn],
            "type_k": self.cache_type_k,
            "type_v": self.cache_type_v,
        }


@dataclass(frozen=True, slots=True)
class MachineOptions(DeviceOptions):
    """The device, the size of the context, and adapters: for commands that generate or measure."""

    ctx_size: int | None = option(
        "-c",
        "--ctx-size",
        type=Integer(0),
        help="Context size in tokens, 0 for as many as the model was trained with.  "
        f"[default: the same, at most {N_CTX}]",
    )
    ctx_checkpoints: int = rare(
        "--ctx-checkpoints",
        type=Integer(1),
        default=N_CHECKPOINTS,
        help="For recurrent and hybrid models: number of checkpoints of the state to keep in "
        "memory, so that an edited or continued conversation is not read again from its beginning.",
    )
    lora: tuple[Path, ...] = rare(
        "--lora", type=FILE, multiple=True, help="File of a LoRA adapter to use; repeatable."
    )
    lora_scaled: tuple[tuple[Path, float], ...] = rare(
        "--lora-scaled",
        metavar="FILE:SCALE",
        multiple=True,
        callback=of_value(_scaled_files),
        help="File of a LoRA adapter to use with this scale; repeatable.",
    )

    def model(self, name: str | Path, n_slots: int = 1) -> Model:
        """Open a model, for a context that n_slots slots share."""
        n_ctx = N_CTX * n_slots if self.ctx_size is None else self.ctx_size
        return self.open_model(name, n_ctx, (*self.lora, *self.lora_scaled))

    def context(self, model: Model) -> Context:
        return model.context(n_ctx=self.n_ctx(model), **self.context_params())

    def context_params(self) -> dict[str, Any]:
        params = DeviceOptions.context_params(self)
        return params | {"n_checkpoints": self.ctx_checkpoints}

    def n_ctx(self, model: Model, n_slots: int = 1) -> int | None:
        """Return the size of the context in tokens, None for the default. Warns of more than the
        model was trained with; slots of a server share the context."""
        given, n_trained = self.ctx_size, model.n_ctx_train
        if not given:
            return None if given is None else n_trained
        if 0 < n_trained * n_slots < given <= N_CTX_MAX:  # a larger one is an error
            beyond = "text beyond them may be nonsense, give a smaller -c"
            if model.n_positions is not None:
                beyond = f"it has no positions for more, so texts end after {model.n_positions}"
            click.echo(
                f"Warning: -c {given} is more than the {n_trained} tokens of context that the "
                f"model was trained with; {beyond}",
                err=True,
            )
        return given
