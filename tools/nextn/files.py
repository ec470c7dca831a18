"""The weights of a Network in GGUF files: taken from the bundled demo, and written with its
tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType, Keys, LlamaFileType, quants
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray
from torch import Tensor

from pyselfspec.convert.stream import Copy, Metadata, Source
from pyselfspec.convert.stream import Tensor as FileTensor
from tools.nextn.network import Network, Shape

ARCHITECTURE = "step35"
OF_HEADS = ("eh_proj", "enorm", "hnorm")  # named nextn.… in a file
TYPES = {"f32": GGMLQuantizationType.F32, "q8_0": GGMLQuantizationType.Q8_0}
FILE_TYPES = {"f32": LlamaFileType.ALL_F32, "q8_0": LlamaFileType.MOSTLY_Q8_0}
BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
NEIGHBOURS = re.compile(r"attn_[qk]\.weight")  # matrices whose rows are rotated


def shape_of(source: Source, n_layer: int, n_nextn: int) -> Shape:
    """Return the sizes of a model with n_layer blocks of a Llama's file and n_nextn heads."""

    def number(name: str) -> int:
        return int(source.value(source.key(name)))

    return Shape(
        n_layer,
        number("embedding_length"),
        number("feed_forward_length"),
        number("attention.head_count"),
        number("attention.head_count_kv"),
        source.file.n_vocab,
        number("context_length"),
        n_nextn,
        float(source.value(source.key("attention.layer_norm_rms_epsilon"))),
        float(source.value(source.key("rope.freq_base"))),
    )


def copy_weights(network: Network, source: Source) -> None:
    """Set a network's embeddings, blocks, last norm and output to the first blocks of a Llama's
    file. The heads become blocks that hand on the state that they read."""
    with torch.no_grad():
        parameters = dict(_named(network))
        for stored in source.tensors:
            if stored.name in parameters and not _is_of_head(stored.name, network.shape):
                values = quants.dequantize(stored.rows, stored.type).reshape(stored.shape)
                if NEIGHBOURS.search(stored.name):
                    values = _halves(values, network.shape.head_size)
                parameters[stored.name].copy_(torch.from_numpy(np.array(values)))
        n = network.shape.n_embd
        for head in network.heads:
            head.eh_proj.weight[:, :n] = 0
            head.eh_proj.weight[:, n:] = torch.eye(n)


def _is_of_head(name: str, shape: Shape) -> bool:
    match = BLOCK.fullmatch(name)
    return match is not None and int(match[1]) >= shape.n_layer


def _halves(rows: NDArray[Any], head_size: int) -> NDArray[Any]:
    """Reorder the rows of each attention head: rotated pairs are neighbours in a file of ``llama``
    and half a head apart here. rows: [n_head * head_size, n_embd]."""
    pairs = rows.reshape(-1, head_size // 2, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _named(network: Network) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters by their names in a file."""
    for name, values in network.named_parameters():
        part, rest = name.split(".", 1)
        if part == "blocks":
            yield f"blk.{rest}", values
        elif part == "heads":
            number, tensor = rest.split(".", 1)
            block = network.shape.n_layer + int(number)
            own = "nextn." if tensor.startswith(OF_HEADS) else ""
            yield f"blk.{block}.{own}{tensor}", values
        else:
            yield name, values


def write(
    path: Path,
    network: Network,
    source: Source,
    type_name: str = "q8_0",
    n_nextn: int | None = None,
) -> None:
    """Write a network as a model file.

    source: a file with the same tokenizer. type_name: of the matrices, a key of TYPES.
    n_nextn: number of the first heads to be written; None: all.

    Raises OSError if it cannot be written.
    """
    shape = network.shape if n_nextn is None else replace(network.shape, n_nextn=n_nextn)
    tensors = []
    for name, values in _named(network):
        match = BLOCK.fullmatch(name)
        if match and int(match[1]) >= shape.n_layer + shape.n_nextn:
            continue
        data = values.detach().float().numpy()
        kind = TYPES[type_name] if data.ndim > 1 else GGMLQuantizationType.F32
        tensors.append(FileTensor(name, kind, data.shape, (quants.quantize(data, kind),)))
    Copy(source, _metadata(shape, source, type_name), tuple(tensors)).write(path)


def _metadata(shape: Shape, source: Source, type_name: str) -> Metadata:
    n_block = shape.n_layer + shape.n_nextn
    numbers = {
        "block_count": n_block,
        "nextn_predict_layers": shape.n_nextn,
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "expert_feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "attention.sliding_window": shape.n_ctx,
        "rope.dimension_count": shape.head_size,
    }
    floats = {
        "attention.layer_norm_rms_epsilon": shape.eps,
        "rope.freq_base": shape.rope_base,
        "rope.freq_base_swa": shape.rope_base,
    }
    made = {
        Keys.General.ARCHITECTURE: GGUFValue(ARCHITECTURE.encode(), GGUFValueType.STRING),
        Keys.General.TYPE: GGUFValue(b"model", GGUFValueType.STRING),
        Keys.General.NAME: GGUFValue(b"small model with draft heads", GGUFValueType.STRING),
        Keys.General.FILE_TYPE: GGUFValue(int(FILE_TYPES[type_name]), GGUFValueType.UINT32),
        Keys.General.QUANTIZATION_VERSION: GGUFValue(2, GGUFValueType.UINT32),
        # Blocks without a window would rotate only half of each attention head.
        f"{ARCHITECTURE}.attention.sliding_window_pattern": GGUFValue(
            [True] * n_block, GGUFValueType.ARRAY, GGUFValueType.BOOL
        ),
    }
    for name, number in numbers.items():
        made[f"{ARCHITECTURE}.{name}"] = GGUFValue(number, GGUFValueType.UINT32)
    for name, value in floats.items():
        made[f"{ARCHITECTURE}.{name}"] = GGUFValue(value, GGUFValueType.FLOAT32)
    kept = {key: value for key, value in source.metadata.items() if key.startswith("tokenizer.")}
    return kept | made
