"""A trained head as a GGUF file: EAGLE-3 as llama.cpp's converter writes it, quantized by
llama.cpp's own quantizer, with a card in the metadata.

The head has no embeddings of its own; the model lends its. The tokenizer is the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, Keys, LlamaFileType
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

from ..convert.quantize import run_quantizer
from ..convert.stream import Copy, Source, Tensor
from ..errors import ModelFileError
from ..gguf.header import read_header
from ..gguf.heads import ARCHITECTURE, OUTPUT, OWN_TOKENS
from ..util.files import replacing, require_no_model, require_target
from .card import Card
from .head import Head

F32, I64 = GGMLQuantizationType.F32, GGMLQuantizationType.I64
OUTSIDE = ("fc", "output_norm", "output")  # of the block
N_CTX = 2**17  # more than any text that a head sees


def require_out(path: Path) -> None:
    """Raise ArgumentError for a target that cannot be one, such as a model."""
    require_target(path)
    if not _is_head(path):
        require_no_model(path)


def _is_head(path: Path) -> bool:
    """One that an earlier run has made, which this one may replace."""
    with suppress(ModelFileError, OSError):
        return read_header(path).metadata.get(Keys.General.ARCHITECTURE) == ARCHITECTURE
    return False


def tensors(head: Head, own: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """By name in the file, outputs first. own: the model's ids of the head's tokens."""
    found: dict[str, NDArray[Any]] = {OWN_TOKENS: own}
    for name, values in head.named_parameters():
        part = name.removesuffix(".weight")
        weights = values.detach().float().cpu().numpy()
        if part == "fc":
            weights = weights * head.scale.cpu().numpy()
        found[f"{part}.weight" if part in OUTSIDE else f"blk.0.{part}.weight"] = weights
    assert OUTPUT in found
    return found


def write(
    path: Path,
    head: Head,
    own: NDArray[np.int64],
    source: Source,
    blocks: Sequence[int],
    card: Card,
    type_name: str,
) -> None:
    """Write the head of a model. blocks: whose entering states it reads. type_name: as ``convert``
    takes it.

    Raises ArgumentError for a target that cannot be one, OSError when it cannot be written.
    """
    found = tuple(
        Tensor(name, I64 if name == OWN_TOKENS else F32, data.shape, (data,))
        for name, data in tensors(head, own).items()
    )
    with replacing(path) as unfinished:
        wide = unfinished.with_name("f32.gguf")
        Copy(source, _metadata(head, source, blocks, card), found).write(wide)
        for _progress in run_quantizer(
            wide, unfinished, type_name, None, pure=True, origin=path, target=path
        ):
            pass


def _metadata(
    head: Head, source: Source, blocks: Sequence[int], card: Card
) -> dict[str, GGUFValue]:
    shape = head.shape
    kept = {key: value for key, value in source.metadata.items() if key.startswith("tokenizer.")}
    numbers: Mapping[str, int] = {
        "context_length": N_CTX,
        "embedding_length": shape.n_embd,
        "block_count": 1,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "rope.dimension_count": shape.head_size,
        "target_hidden_size": shape.n_embd,
    }
    own = {
        Keys.General.ARCHITECTURE: _string(ARCHITECTURE),
        Keys.General.TYPE: _string("model"),
        Keys.General.NAME: _string(f"draft head for {source.file.path.stem}"),
        Keys.General.FILE_TYPE: GGUFValue(int(LlamaFileType.ALL_F32), GGUFValueType.UINT32),
        f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon": _float(shape.eps),
        f"{ARCHITECTURE}.rope.freq_base": _float(shape.rope_base),
        f"{ARCHITECTURE}.target_layers": GGUFValue(
            list(blocks), GGUFValueType.ARRAY, GGUFValueType.INT32
        ),
    }
    for name, number in numbers.items():
        own[f"{ARCHITECTURE}.{name}"] = GGUFValue(number, GGUFValueType.UINT32)
    for key, text in card.metadata().items():
        own[key] = _string(text)
    return kept | own


def _string(text: str) -> GGUFValue:
    return GGUFValue(text.encode(), GGUFValueType.STRING)


def _float(number: float) -> GGUFValue:
    return GGUFValue(number, GGUFValueType.FLOAT32)
