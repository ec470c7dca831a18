"""Check the hyperparameters of a GGUF model file: values for which llama.cpp would end the process.

``tests/tools/test_gguf_pin.py`` compares the lists below with the pinned llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import ModelFileError
from .header import BROKEN, TensorInfo, Value, short

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
BLOCK_NAME = re.compile(r"blk\.(\d+)\.(.+)")
RECURRENT_NAME = re.compile(r"ssm_|shortconv\.")
ATTENTION_NAME = re.compile(r"attn_(q|k|qkv|kv|q_a|kv_a_mqa|kv_a)\.weight$")
ATTENTION_INPUT = re.compile(r"\.attn_(q|qkv)\.weight$")


class Hparams:
    """Typed access to the keys of one architecture."""

    def __init__(self, architecture: str, metadata: Mapping[str, Value]) -> None:
        self.architecture = architecture
        self.metadata = metadata

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def fault(self, name: str, text: str) -> ModelFileError:
        """Return the error for a key. text: what is wrong with its value."""
        return ModelFileError(f"{self.key(name)} {text}; {BROKEN}")

    def number(self, name: str, default: int | None = None) -> int:
        value = self.metadata.get(self.key(name), default)
        if value is None:
            raise ModelFileError(f"has no {self.key(name)!r}; {BROKEN}")
        if not isinstance(value, int) or not 0 <= value <= MAX_U32:
            raise self.fault(name, f"is {short(value)}, not a count")
        return value

    def per_block(self, name: str) -> tuple[int, ...]:
        """Return one number for all blocks or one per block; empty when the key is missing."""
        value = self.metadata.get(self.key(name), ())
        if not isinstance(value, tuple):
            return (self.number(name),)
        n_block = self.number("block_count")
        counts = tuple(v for v in value if isinstance(v, int) and 0 <= v <= MAX_U32)
        if len(counts) != len(value) or (value and len(counts) != n_block):
            raise self.fault(
                name, f"must be one count per block ({n_block}), but is {short(value)}"
            )
        return counts


def check_blocks(values: Hparams, tensors: tuple[TensorInfo, ...]) -> int:
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
        raise values.fault("nextn_predict_layers", f"is {n_extra} of {n_block} blocks")
    n_run = n_block if has_extra_only else n_block - n_extra
    needed = set(range(n_run)) - _blocks_without_sublayers(values)
    if n_run < n_block and min(present) >= n_run:
        raise ModelFileError(
            f"holds a draft head only, block {n_run} of a {values.architecture} model, which "
            "cannot be used without the others: give a file of the whole model"
        )
    shared = values.architecture in ARCHITECTURES_SHARING_BLOCKS
    if max(present) >= n_block or (needed - present and not shared):
        raise values.fault(
            "block_count",
            f"is {n_block}, but the tensors are those of {len(present)} blocks, "
            f"{min(present)} to {max(present)}",
        )
    return n_run


def _blocks_without_sublayers(values: Hparams) -> set[int]:
    """Return the blocks of a pruned model that have neither attention nor feed-forward."""
    heads = values.per_block("attention.head_count")
    ffn = values.per_block("feed_forward_length")
    if len(heads) != len(ffn) or len(heads) == 1:
        return set()
    return {i for i, counts in enumerate(zip(heads, ffn, strict=True)) if not any(counts)}


def check_hparams(values: Hparams, tensors: tuple[TensorInfo, ...]) -> None:
    for name in ("embedding_length", "context_length"):
        if values.number(name) == 0:
            raise values.fault(name, "is 0")
    if values.number("context_length") >= 2**31:
        raise values.fault("context_length", "is too large")
    _check_heads(values, any(ATTENTION_INPUT.search(t.name) for t in tensors))
    _check_window(values)
    _check_window_heads(values, tensors)
    _check_rope(values)
    _check_window_rope(values)
    _check_rope_sections(values)
    _check_experts(values)
    _check_index(values)
    _check_streams(values)


def check_recurrent(architecture: str, tensors: tuple[TensorInfo, ...], n_layer: int) -> None:
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


def _check_index(values: Hparams) -> None:
    if values.architecture not in ROTATED_INDEX:
        return
    size = values.number("attention.indexer.key_length", 0)
    if size % INDEX_UNIT or not size:
        raise values.fault(
            "attention.indexer.key_length", f"is {size}, not a multiple of {INDEX_UNIT}"
        )


def _check_streams(values: Hparams) -> None:
    """Refuse another number of hyper-connections: llama.cpp would end the process."""
    if values.architecture != "deepseek4":
        return
    n = values.number("hyper_connection.count", N_STREAMS)
    if n != N_STREAMS:
        raise values.fault("hyper_connection.count", f"is {n}, not {N_STREAMS}")


def _check_window(values: Hparams) -> None:
    """Refuse an unused sliding window and a missing one: llama.cpp would end the process."""
    key = values.key("attention.sliding_window")
    pattern = values.metadata.get(values.key("attention.sliding_window_pattern"))
    if not values.number("attention.sliding_window", 0):
        if values.architecture in ALWAYS_WINDOWED:
            raise ModelFileError(f"{key} is 0 or missing; {BROKEN}")
        return
    if isinstance(pattern, tuple) and pattern and not any(pattern):
        raise values.fault("attention.sliding_window_pattern", "names no block")


def _check_window_heads(values: Hparams, tensors: tuple[TensorInfo, ...]) -> None:
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


def _check_heads(values: Hparams, has_attention: bool) -> None:
    heads = values.per_block("attention.head_count")
    n_embd = values.number("embedding_length")
    if has_attention and not any(heads):
        raise values.fault("attention.head_count", "is 0 or missing")
    if has_attention and max(heads) > n_embd:
        raise values.fault(
            "attention.head_count", f"is {max(heads)}, more than the embedding length {n_embd}"
        )
    n_block = values.number("block_count")
    heads_kv = values.per_block("attention.head_count_kv")
    for n_head, n_head_kv in zip(_spread(heads, n_block), _spread(heads_kv, n_block), strict=False):
        if n_head_kv and n_head % n_head_kv:
            raise values.fault(
                "attention.head_count_kv",
                f"is {n_head_kv}, which does not divide the {n_head} heads",
            )


def _spread(counts: tuple[int, ...], n_block: int) -> tuple[int, ...]:
    return counts * n_block if len(counts) == 1 else counts


def _check_rope(values: Hparams) -> None:
    scaling = values.metadata.get(values.key("rope.scaling.type"), "none")
    if scaling not in ROPE_SCALING_TYPES:
        raise ModelFileError(
            f"{values.key('rope.scaling.type')} is {short(scaling)}, known are "
            f"{', '.join(ROPE_SCALING_TYPES)}"
        )
    for name in ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"):
        epsilon = values.metadata.get(values.key(name), 0.0)
        if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
            raise values.fault(name, f"is {short(epsilon)}")
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


def _check_window_rope(values: Hparams) -> None:
    if values.architecture not in WINDOW_ROTARY:
        return
    for suffix in ("", "_swa"):
        keys = [f"attention.{part}_length{suffix}" for part in ("key", "value")]
        n_k, n_v = (values.number(key, 0) for key in keys)
        if n_k != n_v:
            raise values.fault(
                keys[0], f"is {n_k} and {values.key(keys[1])} is {n_v}, but they must be equal"
            )
    size = values.number("attention.key_length_swa", 0)
    n_rot = values.number("rope.dimension_count", _head_size(values))
    n_rot = values.number("rope.dimension_count_swa", n_rot)
    if not 0 < n_rot <= size or n_rot % 2:
        raise values.fault(
            "rope.dimension_count_swa",
            f"is {n_rot}: it must be even, above 0 and at most "
            f"{values.key('attention.key_length_swa')}, {size}",
        )


def _head_size(values: Hparams) -> int:
    n_head = max(values.per_block("attention.head_count"), default=0)
    return values.number(
        "attention.key_length", values.number("embedding_length") // max(1, n_head)
    )


def _check_rope_sections(values: Hparams) -> None:
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


def _check_experts(values: Hparams) -> None:
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


def check_vocabulary(values: Hparams) -> int:
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
