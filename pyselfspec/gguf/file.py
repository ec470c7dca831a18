"""Check a GGUF model file before llama.cpp reads it, and compute the sizes of its parts.

Some broken files abort the process inside ggml, where no Python error is possible, so they are
refused here and in hparams.py with one line. Only headers are read, no tensor data, and nothing
native is needed. Assertions of rare architectures are not covered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

from ..errors import ModelFileError
from . import chat_template, hparams
from .header import BROKEN, Header, TensorInfo, Value, read_header, short, tensor_types
from .hparams import BLOCK_NAME

OTHER_KINDS = {
    "adapter": "a LoRA adapter",
    "mmproj": "a multimodal projector",
    "imatrix": "an importance matrix",
}
EMBEDDERS = frozenset(
    {"bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert",
     "neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder"}
)  # fmt: skip
SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
TOKEN_EMBEDDING = "token_embd.weight"
POSITION_EMBEDDING = "position_embd.weight"
OUTPUT_HEAD = re.compile(r"output(_norm)?\.")
# The first part of a tensor's name inside its block says which sublayer it belongs to.
FFN_NAME = re.compile(r"(ffn|exp|shexp|post_ffw|post_mlp|channel_mix|layer_output_norm)")
ATTN_NAME = re.compile(r"(attn|ssm|post_attention|time_mix|shortconv|inner_norm|indexer|k_|v_|q_)")
WEIGHT_NAME = re.compile(r"^(token_embd|output|blk\.\d+\.(attn|ffn)_(?!\w*tid2eid)\w+)\.weight$")
NORM_OR_BIAS = re.compile(r"(norm(_\w+)?\.weight|\.bias|\.scale)$")
# ggml can store these, but has no matrix product for them.
NOT_FOR_WEIGHTS = frozenset({"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"})
ROUTED_EXPERTS = re.compile(r"_exps\b")


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Weight bytes of one block that one token reads; routed experts count by the share used."""

    attn: int  # attention, or the recurrent part that takes its place
    ffn: int
    other: int  # read with every mask

    @property
    def total(self) -> int:
        return self.attn + self.ffn + self.other


@dataclass(frozen=True)
class GgufFile:
    """A checked model file. Sizes in bytes; counts of tokens, blocks and heads as in llama.cpp.

    n_layer counts the blocks a token runs through, without next-token-prediction blocks after
    them. n_head is the largest of any block, 0 without attention. Of a split file, `path` is the
    first part and the sizes cover all parts.
    """

    path: Path
    architecture: str
    n_layer: int
    n_embd: int
    n_head: int
    n_vocab: int
    context_length: int
    n_expert: int
    n_expert_used: int
    file_type: str
    name: str  # as the file states it, "" when it does not, as for the licence
    licence: str
    is_chat_model: bool  # by its chat template
    n_kv_layer: int  # the first blocks, which have K and V of their own
    n_bytes: int
    tensors: tuple[TensorInfo, ...]
    n_ctx_short_rope: int = 0  # see has_long_rope

    @cached_property
    def n_params(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def bytes_per_weight(self) -> float:
        return sum(tensor.n_bytes for tensor in self.tensors) / self.n_params

    @cached_property
    def blocks(self) -> tuple[BlockBytes, ...]:
        """The bytes that one token reads in each of the n_layer blocks."""
        sums = [{"attn": 0, "ffn": 0, "other": 0} for _ in range(self.n_layer)]
        for tensor in self.tensors:
            match = BLOCK_NAME.match(tensor.name)
            if match and int(match[1]) < self.n_layer:
                sums[int(match[1])][sublayer(match[2])] += self.bytes_read(tensor)
        return tuple(BlockBytes(**parts) for parts in sums)

    @cached_property
    def n_positions(self) -> int | None:
        """The number of positions in a table that the model looks them up in; None for a model
        without one, whose positions have no end."""
        rows = (t.shape[-1] for t in self.tensors if t.name == POSITION_EMBEDDING)
        return next(rows, None)

    @cached_property
    def has_long_rope(self) -> bool:
        """Whether K is rotated by other factors in contexts larger than n_ctx_short_rope."""
        return any(t.name.endswith("rope_factors_long.weight") for t in self.tensors)

    @cached_property
    def token_embd_bytes(self) -> int:
        return sum(t.n_bytes for t in self.tensors if t.name == TOKEN_EMBEDDING)

    @cached_property
    def tied_embeddings(self) -> bool:
        """Whether the head reads the token embedding."""
        return not any(t.name == "output.weight" for t in self.tensors)

    @cached_property
    def head_bytes(self) -> int:
        """The bytes that one token reads in the output head and the norm before it."""
        own = sum(t.n_bytes for t in self.tensors if OUTPUT_HEAD.match(t.name))
        return own + (self.token_embd_bytes if self.tied_embeddings else 0)

    @cached_property
    def kv_values(self) -> tuple[int, int]:
        """The number of values of K, and of V, that one token adds in all blocks together."""
        blocks: dict[int, dict[str, tuple[int, ...]]] = {}
        for tensor in self.tensors:
            match = BLOCK_NAME.match(tensor.name)
            if match and int(match[1]) < self.n_kv_layer:
                blocks.setdefault(int(match[1]), {})[match[2]] = tensor.shape
        widths = [_kv_widths(shapes) for shapes in blocks.values()]
        return sum(k for k, _ in widths), sum(v for _, v in widths)

    def kv_bytes(self, n_tokens: int, type_k: str, type_v: str) -> int:
        """Return the bytes of K and V of n_tokens tokens, stored as these types, named as in
        llama.cpp's options, such as q8_0."""
        n_k, n_v = (n * n_tokens for n in self.kv_values)
        return _stored_bytes(n_k, type_k) + _stored_bytes(n_v, type_v)

    def weight_bytes(self, skip_attn: Collection[int] = (), skip_ffn: Collection[int] = ()) -> int:
        """Weight bytes that decoding one token reads when these blocks' sublayers are skipped.

        Blocks and output head. The token embedding is one row, so it counts only when tied.
        """
        return self.head_bytes + sum(
            block.other
            + (0 if i in skip_attn else block.attn)
            + (0 if i in skip_ffn else block.ffn)
            for i, block in enumerate(self.blocks)
        )

    def bytes_read(self, tensor: TensorInfo) -> int:
        """Return the bytes of a tensor that one token reads; routed experts count by the share
        used."""
        if self.n_expert and ROUTED_EXPERTS.search(tensor.name):
            return tensor.n_bytes * self.n_expert_used // self.n_expert
        return tensor.n_bytes


def _kv_widths(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Return the number of values of K and of V in one block, from the shapes of its tensors."""
    if "attn_k.weight" in shapes:
        n_k = shapes["attn_k.weight"][1]
        return n_k, shapes.get("attn_v.weight", (0, n_k))[1]
    if "attn_kv_a_mqa.weight" in shapes:  # latent attention, whose V is a part of K
        return shapes["attn_kv_a_mqa.weight"][1], 0
    if "attn_qkv.weight" in shapes and "attn_output.weight" in shapes:
        n = (shapes["attn_qkv.weight"][1] - shapes["attn_output.weight"][0]) // 2
        return n, n
    return 0, 0  # a recurrent block, whose state does not grow with the text


def _stored_bytes(n_values: int, type_name: str) -> int:
    sizes = {name: sizes for name, *sizes in tensor_types().values()}
    block_size, block_bytes = sizes[type_name.upper()]
    return n_values * block_bytes // block_size


def sublayer(name: str) -> str:
    """Return "attn", "ffn" or "other" for a tensor name without its "blk.N." part."""
    if FFN_NAME.match(name):
        return "ffn"
    return "attn" if ATTN_NAME.match(name) else "other"


def check(path: str | PathLike[str]) -> GgufFile:
    """Check a model file and return its properties.

    Raises ModelFileError with one line: the file, the fault, and what to do.
    """
    first = read_header(Path(path))
    try:
        parts = [first, *_other_parts(first)]
        architecture = _architecture(first.metadata)
        tensors = tuple(tensor for part in parts for tensor in part.tensors)
        _check_duplicates(tensors)
        _check_types(tensors)
        values = hparams.Hparams(architecture, first.metadata)
        n_layer = hparams.check_blocks(values, tensors)
        hparams.check_hparams(values, tensors)
        hparams.check_recurrent(architecture, tensors, n_layer)
        n_vocab = hparams.check_vocabulary(values)
    except ModelFileError as error:
        message = embedder(first.metadata.get("general.architecture")) or str(error)
        raise ModelFileError(_with_path(message, first.path)) from None
    return GgufFile(
        path=first.path,
        architecture=architecture,
        n_layer=n_layer,
        n_embd=values.number("embedding_length"),
        n_head=max(values.per_block("attention.head_count"), default=0),
        n_vocab=n_vocab,
        context_length=values.number("context_length"),
        n_expert=values.number("expert_count", 0),
        n_expert_used=max(values.per_block("expert_used_count"), default=0),
        file_type=_file_type(first.metadata, tensors),
        name=_stated(first.metadata, "general.name"),
        licence=_stated(first.metadata, "general.license"),
        is_chat_model=chat_template.tells_speakers_apart(first.metadata.get(chat_template.KEY)),
        n_kv_layer=max(0, n_layer - values.number("attention.shared_kv_layers", 0)),
        n_bytes=sum(part.n_bytes for part in parts),
        tensors=tensors,
        n_ctx_short_rope=values.number(
            "rope.scaling.original_context_length", values.number("context_length")
        ),
    )


def embedder(architecture: object) -> str:
    """Return why a model of this architecture cannot generate text; "" for one that can."""
    if architecture not in EMBEDDERS:
        return ""
    return f"is an embedding model ({architecture}), which writes no text: give a model that does"


def _with_path(message: str, path: Path) -> str:
    """Return a message with the path of its file, unless it begins with that of another part."""
    return message if message.startswith(str(path.parent / "")) else f"{path}: {message}"


def _architecture(metadata: Mapping[str, Value]) -> str:
    kind = metadata.get("general.type")
    if isinstance(kind, str) and kind in OTHER_KINDS:
        raise ModelFileError(f"is {OTHER_KINDS[kind]}, not a language model")
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelFileError(f"has no general.architecture; {BROKEN}")
    if not re.fullmatch(r"[\w.-]{1,63}", architecture, re.ASCII):
        raise ModelFileError(
            f"general.architecture is {short(architecture)}, which is no name; {BROKEN}"
        )
    if architecture == "clip":
        raise ModelFileError("is a multimodal projector, not a language model")
    return architecture


# --- split files -----------------------------------------------------------------------------


def _other_parts(first: Header) -> list[Header]:
    count, number = first.metadata.get("split.count", 0), first.metadata.get("split.no", 0)
    if not isinstance(count, int) or count <= 1:
        return []
    name = SPLIT_NAME.fullmatch(first.path.name)
    if name is None or int(name["count"]) != count:
        raise ModelFileError(
            f"is one of {count} parts, so it must be called NAME-00001-of-{count:05}.gguf"
        )
    if number != 0 or int(name["number"]) != 1:
        raise ModelFileError(
            f"is not the first of {count} parts: give {name['prefix']}-00001-of-{count:05}.gguf"
        )
    paths = [
        first.path.with_name(f"{name['prefix']}-{i:05}-of-{count:05}.gguf")
        for i in range(2, count + 1)
    ]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {count} parts are missing, the first is {missing[0]}: put all "
            "parts into one folder"
        )
    parts = [read_header(path) for path in paths]
    for i, part in enumerate(parts, start=1):
        if part.metadata.get("split.no") != i:
            raise ModelFileError(f"{part.path}: is not part {i + 1} of {count}; {BROKEN}")
    return parts


def _check_duplicates(tensors: tuple[TensorInfo, ...]) -> None:
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise ModelFileError(f"tensor {tensor.name!r} is in two parts; {BROKEN}")
        names.add(tensor.name)


def _check_types(tensors: tuple[TensorInfo, ...]) -> None:
    """Refuse types for which ggml aborts, or reads outside the tensor, in a graph."""
    for tensor in tensors:
        vector = len(tensor.shape) == 1 and NORM_OR_BIAS.search(tensor.name)
        if vector and tensor.type != "F32":
            raise ModelFileError(
                f"tensor {tensor.name!r} is {tensor.type}, but norms, biases, scales must be F32: "
                "convert the model again"
            )
        if tensor.type in NOT_FOR_WEIGHTS and WEIGHT_NAME.search(tensor.name):
            raise ModelFileError(
                f"tensor {tensor.name!r} is {tensor.type}, which is no type for weights: "
                "convert the model again"
            )


def _file_type(metadata: Mapping[str, Value], tensors: tuple[TensorInfo, ...]) -> str:
    """Return the name of the file type, such as Q4_K_M; without one, the type of most bytes."""
    from gguf.constants import LlamaFileType

    number = metadata.get("general.file_type")
    if isinstance(number, int) and number in {int(known) for known in LlamaFileType}:
        return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    n_bytes: dict[str, int] = {}
    for tensor in tensors:
        n_bytes[tensor.type] = n_bytes.get(tensor.type, 0) + tensor.n_bytes
    return max(n_bytes, key=n_bytes.__getitem__)


def _stated(metadata: Mapping[str, Value], key: str) -> str:
    text = metadata.get(key)
    return text if isinstance(text, str) else ""
