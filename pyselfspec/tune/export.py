"""Writes a trained head as a GGUF file, in the format of llama.cpp's converter for EAGLE-3, with a
card in the metadata; llama.cpp's quantizer quantizes it.

The file has the model's tokenizer and no embeddings: the head uses the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gguf import GGMLQuantizationType, GGUFValueType, Keys, LlamaFileType
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

from ..convert.quantize import run_quantizer
from ..convert.stream import Copy, Source, Tensor
from ..errors import ModelFileError
from ..gguf.header import read_header
from ..gguf.heads.eagle3 import ARCHITECTURE
from ..gguf.heads.head_file import OUTPUT, OWN_TOKENS
from ..util import records
from ..util.files import replacing, require_no_model, require_target
from .head import Head

F32, I64 = GGMLQuantizationType.F32, GGMLQuantizationType.I64
OUTSIDE_BLOCK = ("fc", "output_norm", "output")
N_CTX = 2**17  # longer than any text a head drafts for
CARD_KEY = "pyselfspec.head_card"  # metadata key of the card, JSON


@dataclass(frozen=True, slots=True)
class Card:
    """How a head was trained.

    model, fingerprint: of the model it drafts for. data: name of the prompts.
    n_data: tokens of training data. n_trained: tokens trained on, repetitions counted.
    minutes: training time. acceptance: held-out acceptance rate by draft position, each given that
        the positions before it were accepted.
    """

    FORMAT: ClassVar[int] = 1

    model: str
    fingerprint: str
    blocks: tuple[int, ...]
    data: str
    n_data: int
    n_trained: int
    minutes: float
    acceptance: tuple[float, ...]
    version: str
    date: str

    def metadata(self) -> dict[str, str]:
        """Return the entries for the file's metadata."""
        by_position = ", ".join(f"{rate:.2f}" for rate in self.acceptance)
        description = (
            f"Draft head for {self.model}, trained for {self.minutes:.0f} minutes on "
            f"{self.n_trained} tokens of {self.n_data} ({self.data}); held-out acceptance by draft "
            f"position: {by_position}"
        )
        return {"general.description": description, CARD_KEY: records.encode(self).decode()}


def require_head_target(path: Path) -> None:
    """Raise ArgumentError if a head cannot be written here, such as over a model."""
    require_target(path)
    if not _is_head(path):
        require_no_model(path)


def _is_head(path: Path) -> bool:
    """Whether the file is a head, which may be replaced."""
    with suppress(ModelFileError, OSError):
        return read_header(path).metadata.get(Keys.General.ARCHITECTURE) == ARCHITECTURE
    return False


def head_tensors(head: Head) -> dict[str, NDArray[Any]]:
    """Return the tensors of a head's file by name, the draft vocabulary first."""
    tensors: dict[str, NDArray[Any]] = {OWN_TOKENS: head.draft_vocab.cpu().numpy()}
    for name, values in head.named_parameters():
        part = name.removesuffix(".weight")
        weights = values.detach().float().cpu().numpy()
        if part == "fc":
            weights = weights * head.scale.cpu().numpy()
        tensors[f"{part}.weight" if part in OUTSIDE_BLOCK else f"blk.0.{part}.weight"] = weights
    assert OUTPUT in tensors
    return tensors


def write_head(
    path: Path, head: Head, source: Source, blocks: Sequence[int], card: Card, type_name: str
) -> None:
    """Write a head's file.

    source: the model's file. blocks: whose input states the head reads. type_name: type of the
    weights, as ``convert`` takes it.

    Raises ArgumentError for a target that is not allowed, OSError if it cannot be written.
    """
    tensors = tuple(
        Tensor(name, I64 if name == OWN_TOKENS else F32, data.shape, (data,))
        for name, data in head_tensors(head).items()
    )
    with replacing(path) as unfinished:
        wide = unfinished.with_name("f32.gguf")
        Copy(source, _metadata(head, source, blocks, card), tensors).write(wide)
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
