"""Check a GGUF model file before llama.cpp reads it, and compute the sizes of its parts.

Some broken files abort the process inside ggml, where no Python error is possible, so they are
refused here with one line. Only headers are read, no tensor data, and nothing native is needed.
Assertions of rare architectures are not covered. ``tests/tools/test_gguf_pin.py`` compares the
lists below with the pinned llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

from ..errors import ModelFileError
from . import chat_template
from .header import BROKEN, Header, TensorInfo, Value, read_header, short, tensor_types

# llama.cpp's compile-time limits; beyond them it aborts.
MAX_BLOCKS = 512
MAX_EXPERTS = 1024
MAX_U32 = 2**32 - 1
# The common architectures whose graphs assert that whole heads are rotated.
FULL_ROTARY = frozenset(
    {"llama", "falcon", "deci", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "olmo", "olmo2", "olmoe",
     "granite", "exaone", "exaone4", "internlm2", "mistral3", "smollm3", "starcoder2"}
)  # fmt: skip
# Common ones that may rotate a part. With 0 ggml never returns; others may need 0, so it is valid.
PART_ROTARY = frozenset(
    {"dflash", "eagle3", "gemma", "gemma2", "gemma3", "gemma4", "gemma4-assistant", "gptneox",
     "phi2", "phi3", "stablelm"}
)  # fmt: skip
# Their blocks with a sliding window have heads of another size, of which they may rotate a part.
WINDOW_ROTARY = frozenset({"gemma4", "gemma4-assistant"})
# Architectures that rotate in sections, by positions in time, height and width: always, and those
# that do where the file has sections.
SECTIONED_ROTARY = frozenset(
    {"paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "qwen4exp"}
)
# Its graph reads the window's K/V cache, which is not made without a window.
ALWAYS_WINDOWED = frozenset({"afmoe"})
# Their graphs read recurrent states and K/V, of which a model without such blocks has none.
HYBRID = frozenset(
    {"bailingmoe3", "falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear",
     "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe",
     "qwen3next", "qwen4exp"}
)  # fmt: skip
# Each of their blocks is recurrent and has attention.
BOTH_IN_EACH_BLOCK = frozenset({"falcon-h1"})
# Their graphs rotate the keys of the index that selects cells, 64 values at least.
ROTATED_INDEX = frozenset({"deepseek32", "glm-dsa"})
INDEX_UNIT = 64
# The graphs of deepseek4 assert this number of hyper-connections.
N_STREAMS = 4
MAY_BE_SECTIONED = frozenset({"bailingmoe3", "dflash", "glm4", "glm4moe", "hunyuan_vl"})
ROPE_SCALING_TYPES = ("none", "linear", "yarn", "longrope")

# One physical block serves several blocks of the model, so the counts differ.
ARCHITECTURES_SHARING_BLOCKS = frozenset({"hrm_text"})
# All of their blocks predict tokens after the next one.
EXTRA_BLOCKS_ONLY = frozenset({"gemma4-assistant"})
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
BLOCK_NAME = re.compile(r"blk\.(\d+)\.(.+)")
TOKEN_EMBEDDING = "token_embd.weight"
POSITION_EMBEDDING = "position_embd.weight"
OUTPUT_HEAD = re.compile(r"output(_norm)?\.")
# The first part of a tensor's name inside its block says which sublayer it belongs to.
FFN_NAME = re.compile(r"(ffn|exp|shexp|post_ffw|post_mlp|channel_mix|layer_output_norm)")
ATTN_NAME = re.compile(r"(attn|ssm|post_attention|time_mix|shortconv|inner_norm|indexer|k_|v_|q_)")
RECURRENT_NAME = re.compile(r"ssm_|shortconv\.")
ATTENTION_NAME = re.compile(r"attn_(q|k|qkv|kv|q_a|kv_a_mqa|kv_a)\.weight$")
ATTENTION_INPUT = re.compile(r"\.attn_(q|qkv)\.weight$")
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
        values = _Hparams(architecture, first.metadata)
        n_layer = _check_blocks(values, tensors)
        _check_hparams(values, tensors)
        _check_recurrent(architecture, tensors, n_layer)
        n_vocab = _check_vocabulary(values)
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


class _Hparams:
    """Typed access to the keys of one architecture."""

    def __init__(self, architecture: str, metadata: Mapping[str, Value]) -> None:
        self.architecture = architecture
        self.metadata = metadata

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def number(self, name: str, default: int | None = None) -> int:
        value = self.metadata.get(self.key(name), default)
        if value is None:
            raise ModelFileError(f"has no {self.key(name)!r}; {BROKEN}")
        if not isinstance(value, int) or not 0 <= value <= MAX_U32:
            raise ModelFileError(f"{self.key(name)} is {short(value)}, not a count; {BROKEN}")
        return value

    def per_block(self, name: str) -> tuple[int, ...]:
        """Return one number for all blocks or one per block; empty when the key is missing."""
        value = self.metadata.get(self.key(name), ())
        if not isinstance(value, tuple):
            return (self.number(name),)
        n_block = self.number("block_count")
        counts = tuple(v for v in value if isinstance(v, int) and 0 <= v <= MAX_U32)
        if len(counts) != len(value) or (value and len(counts) != n_block):
            raise ModelFileError(
                f"{self.key(name)} must be one count per block ({n_block}), but is "
                f"{short(value)}; {BROKEN}"
            )
        return counts


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


# --- metadata of the model ------------------------------------------------------------------------


def _check_blocks(values: _Hparams, tensors: tuple[TensorInfo, ...]) -> int:
    """Return the number of blocks a token runs through; block_count must match the tensors."""
    present = {int(match[1]) for t in tensors if (match := BLOCK_NAME.match(t.name))}
    if not tensors:
        raise ModelFileError("holds only a vocabulary, no weights: give a complete model")
    if not present:
        raise ModelFileError("has no blocks (blk.N tensors), so it is no decoder language model")
    n_block = values.number("block_count")
    if not 1 <= n_block <= MAX_BLOCKS:
        raise ModelFileError(f"{values.key('block_count')} is {n_block}, not 1 to {MAX_BLOCKS}")
    n_extra = values.number("nextn_predict_layers", 0)
    has_extra_only = values.architecture in EXTRA_BLOCKS_ONLY
    if n_extra >= n_block if not has_extra_only else n_extra != n_block:
        raise ModelFileError(
            f"{values.key('nextn_predict_layers')} is {n_extra} of {n_block} blocks; {BROKEN}"
        )
    n_run = n_block if has_extra_only else n_block - n_extra
    needed = set(range(n_run)) - _blocks_without_sublayers(values)
    if n_run < n_block and min(present) >= n_run:
        raise ModelFileError(
            f"holds a draft head only, block {n_run} of a {values.architecture} model, which "
            "cannot be used without the others: give a file of the whole model"
        )
    shared = values.architecture in ARCHITECTURES_SHARING_BLOCKS
    if max(present) >= n_block or (needed - present and not shared):
        raise ModelFileError(
            f"{values.key('block_count')} is {n_block}, but the tensors are those of "
            f"{len(present)} blocks, {min(present)} to {max(present)}; {BROKEN}"
        )
    return n_run


def _blocks_without_sublayers(values: _Hparams) -> set[int]:
    """Return the blocks of a pruned model that have neither attention nor feed-forward."""
    heads = values.per_block("attention.head_count")
    ffn = values.per_block("feed_forward_length")
    if len(heads) != len(ffn) or len(heads) == 1:
        return set()
    return {i for i, counts in enumerate(zip(heads, ffn, strict=True)) if not any(counts)}


def _check_hparams(values: _Hparams, tensors: tuple[TensorInfo, ...]) -> None:
    for name in ("embedding_length", "context_length"):
        if values.number(name) == 0:
            raise ModelFileError(f"{values.key(name)} is 0; {BROKEN}")
    if values.number("context_length") >= 2**31:
        raise ModelFileError(f"{values.key('context_length')} is too large; {BROKEN}")
    _check_heads(values, any(ATTENTION_INPUT.search(t.name) for t in tensors))
    _check_window(values)
    _check_window_heads(values, tensors)
    _check_rope(values)
    _check_window_rope(values)
    _check_rope_sections(values)
    _check_experts(values)
    _check_index(values)
    _check_streams(values)


def _check_recurrent(architecture: str, tensors: tuple[TensorInfo, ...], n_layer: int) -> None:
    """Refuse a hybrid model without recurrent blocks, or without any other: llama.cpp would end the
    process."""
    if architecture not in HYBRID:
        return
    blocks = (match for t in tensors if (match := BLOCK_NAME.match(t.name)))
    found = [(int(match[1]), match[2]) for match in blocks if int(match[1]) < n_layer]
    recurrent = {block for block, name in found if RECURRENT_NAME.match(name)}
    if not recurrent:
        raise ModelFileError(
            f"none of its {n_layer} blocks is recurrent, but {architecture} needs one; {BROKEN}"
        )
    attending = {block for block, name in found if ATTENTION_NAME.match(name)}
    if architecture not in BOTH_IN_EACH_BLOCK and not attending - recurrent:
        raise ModelFileError(
            f"none of its {n_layer} blocks has attention only, but {architecture} needs one; "
            f"{BROKEN}"
        )


def _check_index(values: _Hparams) -> None:
    if values.architecture not in ROTATED_INDEX:
        return
    size = values.number("attention.indexer.key_length", 0)
    if size % INDEX_UNIT or not size:
        raise ModelFileError(
            f"{values.key('attention.indexer.key_length')} is {size}, not a multiple of "
            f"{INDEX_UNIT}; {BROKEN}"
        )


def _check_streams(values: _Hparams) -> None:
    """Refuse another number of hyper-connections: llama.cpp would end the process."""
    if values.architecture != "deepseek4":
        return
    n = values.number("hyper_connection.count", N_STREAMS)
    if n != N_STREAMS:
        raise ModelFileError(
            f"{values.key('hyper_connection.count')} is {n}, not {N_STREAMS}; {BROKEN}"
        )


def _check_window(values: _Hparams) -> None:
    """Refuse an unused sliding window and a missing one: llama.cpp would end the process."""
    key = values.key("attention.sliding_window")
    pattern = values.metadata.get(values.key("attention.sliding_window_pattern"))
    if not values.number("attention.sliding_window", 0):
        if values.architecture in ALWAYS_WINDOWED:
            raise ModelFileError(f"{key} is 0 or missing; {BROKEN}")
        return
    if isinstance(pattern, tuple) and pattern and not any(pattern):
        raise ModelFileError(
            f"{values.key('attention.sliding_window_pattern')} names no block; {BROKEN}"
        )


def _check_window_heads(values: _Hparams, tensors: tuple[TensorInfo, ...]) -> None:
    """Refuse head sizes for blocks with a window that fit none of the blocks."""
    if values.number("attention.kv_lora_rank", 0):
        return  # the cache does not hold K and V
    heads_kv = values.per_block("attention.head_count_kv")
    for name, weight in (("key_length_swa", "attn_k"), ("value_length_swa", "attn_v")):
        key = values.key(f"attention.{name}")
        rows = {t.shape[1] for t in tensors if t.name.endswith(f".{weight}.weight")}
        if key not in values.metadata or not rows or not any(heads_kv):
            continue
        size = values.number(f"attention.{name}")
        if not rows & {size * n for n in heads_kv}:
            raise ModelFileError(
                f"{key} is {size}, which fits none of the {weight} tensors; {BROKEN}"
            )


def _check_heads(values: _Hparams, has_attention: bool) -> None:
    heads = values.per_block("attention.head_count")
    n_embd = values.number("embedding_length")
    if has_attention and not any(heads):
        raise ModelFileError(f"{values.key('attention.head_count')} is 0 or missing; {BROKEN}")
    if has_attention and max(heads) > n_embd:
        raise ModelFileError(
            f"{values.key('attention.head_count')} is {max(heads)}, more than the embedding "
            f"length {n_embd}; {BROKEN}"
        )
    n_block = values.number("block_count")
    heads_kv = values.per_block("attention.head_count_kv")
    for n_head, n_head_kv in zip(_spread(heads, n_block), _spread(heads_kv, n_block), strict=False):
        if n_head_kv and n_head % n_head_kv:
            raise ModelFileError(
                f"{values.key('attention.head_count_kv')} is {n_head_kv}, which does not divide "
                f"the {n_head} heads; {BROKEN}"
            )


def _spread(counts: tuple[int, ...], n_block: int) -> tuple[int, ...]:
    return counts * n_block if len(counts) == 1 else counts


def _check_rope(values: _Hparams) -> None:
    scaling = values.metadata.get(values.key("rope.scaling.type"), "none")
    if scaling not in ROPE_SCALING_TYPES:
        raise ModelFileError(
            f"{values.key('rope.scaling.type')} is {short(scaling)}, known are "
            f"{', '.join(ROPE_SCALING_TYPES)}"
        )
    for name in ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"):
        epsilon = values.metadata.get(values.key(name), 0.0)
        if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
            raise ModelFileError(f"{values.key(name)} is {short(epsilon)}; {BROKEN}")
    key = values.key("rope.dimension_count")
    n_head = max(values.per_block("attention.head_count"), default=0)
    if key not in values.metadata or not n_head:
        return
    n_rot = values.number("rope.dimension_count")
    head_size = _head_size(values)
    if values.architecture in FULL_ROTARY and n_rot != head_size:
        raise ModelFileError(f"{key} is {n_rot}, not the head size {head_size}; {BROKEN}")
    if n_rot % 2 or n_rot > head_size or (n_rot == 0 and values.architecture in PART_ROTARY):
        raise ModelFileError(
            f"{key} is {n_rot}: it must be even, above 0 and at most the head size {head_size}; "
            f"{BROKEN}"
        )


def _check_window_rope(values: _Hparams) -> None:
    if values.architecture not in WINDOW_ROTARY:
        return
    for suffix in ("", "_swa"):
        keys = [f"attention.{part}_length{suffix}" for part in ("key", "value")]
        n_k, n_v = (values.number(key, 0) for key in keys)
        if n_k != n_v:
            raise ModelFileError(
                f"{values.key(keys[0])} is {n_k} and {values.key(keys[1])} is {n_v}, but they must "
                f"be equal; {BROKEN}"
            )
    size = values.number("attention.key_length_swa", 0)
    n_rot = values.number("rope.dimension_count", _head_size(values))
    n_rot = values.number("rope.dimension_count_swa", n_rot)
    if not 0 < n_rot <= size or n_rot % 2:
        raise ModelFileError(
            f"{values.key('rope.dimension_count_swa')} is {n_rot}: it must be even, above 0 and at "
            f"most {values.key('attention.key_length_swa')}, {size}; {BROKEN}"
        )


def _head_size(values: _Hparams) -> int:
    n_head = max(values.per_block("attention.head_count"), default=0)
    return values.number(
        "attention.key_length", values.number("embedding_length") // max(1, n_head)
    )


def _check_rope_sections(values: _Hparams) -> None:
    key = values.key("rope.dimension_sections")
    value = values.metadata.get(key)
    always = values.architecture in SECTIONED_ROTARY
    if value is None or not (always or values.architecture in MAY_BE_SECTIONED):
        return
    sections = value if isinstance(value, tuple) else (value,) * 4
    sizes = [n for n in sections if isinstance(n, int) and n >= 0]
    n_rot = values.number("rope.dimension_count", _head_size(values))
    none = not any(sizes[:3])
    if len(sizes) < len(sections) or sum(sizes) > n_rot or (always and none):
        raise ModelFileError(
            f"{key} is {short(value)}, which are no sections of the {n_rot} values that are "
            f"rotated; {BROKEN}"
        )


def _check_experts(values: _Hparams) -> None:
    n_expert = values.number("expert_count", 0)
    n_used = max(values.per_block("expert_used_count"), default=0)
    n_group = values.number("expert_group_count", 0)
    n_group_used = values.number("expert_group_used_count", 0)
    if n_expert > MAX_EXPERTS or n_used > n_expert or (n_expert and not n_used):
        raise ModelFileError(
            f"{n_used} of {n_expert} experts are used: there can be 1 to {MAX_EXPERTS} experts, "
            f"with at least one used; {BROKEN}"
        )
    groups_fit = n_group < n_expert and n_expert % n_group == 0 if n_group else True
    if not groups_fit or (n_group > 1 and not 0 < n_group_used < n_group):
        raise ModelFileError(
            f"{n_expert} experts in {n_group} groups, of which {n_group_used} are used, do not "
            f"fit together; {BROKEN}"
        )


def _check_vocabulary(values: _Hparams) -> int:
    """Return the number of tokens. llama.cpp aborts on repeated tokens and missing bytes."""
    tokens = values.metadata.get("tokenizer.ggml.tokens")
    tokenizer = values.metadata.get("tokenizer.ggml.model")
    if not isinstance(tokenizer, str):
        raise ModelFileError(f"has no tokenizer (tokenizer.ggml.model); {BROKEN}")
    if tokenizer in ("none", "no_vocab"):
        return values.number("vocab_size", 0)
    if not isinstance(tokens, tuple) or not all(isinstance(token, bytes) for token in tokens):
        raise ModelFileError(f"has no token list (tokenizer.ggml.tokens); {BROKEN}")
    # their text as a C string
    texts = {token.partition(b"\0")[0] for token in tokens if isinstance(token, bytes)}
    if not texts:
        raise ModelFileError(f"has an empty vocabulary; {BROKEN}")
    if len(texts) < len(tokens) and tokenizer != "hybriddna":  # that one renames its tokens
        raise ModelFileError(f"has {len(tokens) - len(texts)} tokens twice; {BROKEN}")
    if tokenizer == "llama":
        missing = [b for b in range(256) if not {b"<0x%02X>" % b, bytes([b])} & texts]
        if missing:
            raise ModelFileError(
                f"has no token for byte {missing[0]} (and {len(missing) - 1} others), so some text "
                "cannot be tokenized; convert the model again"
            )
    return len(tokens)


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
