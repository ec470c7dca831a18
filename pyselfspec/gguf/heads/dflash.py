"""Heads that draft a block of tokens in one pass: DFlash; and DSpark and DFlash2, which let each
token of a block depend on the one before it; as llama.cpp's converter writes them.

They turn the states of the model's tokens into K and V. The pass is over the text's last token and
mask tokens, which see each other. llama.cpp would end the process for files of other shapes.
"""

from __future__ import annotations

import math

from ...errors import ModelFileError, UnsupportedError
from ..file import GgufFile
from ..header import BROKEN, Header, short
from .head_file import (
    OUTPUT,
    OWN_TOKENS,
    HeadFile,
    HeadFormat,
    bytes_read,
    require_blocks,
    require_own_tokens,
    require_states,
    require_types,
    require_vocabulary,
    require_width,
    value,
)

ARCHITECTURE = "dflash"
MASK = "tokenizer.ggml.mask_token_id"
MARKOV, CONFIDENCE = "markov_w1.weight", "conf_proj.weight"  # of DSpark
SELECTOR = "selector_hidden.weight"  # of DFlash2
PREDECESSOR, SUCCESSOR = "selector_predecessor.weight", "selector_successor.weight"
N_BLOCK_MAX = 32  # rows
N_MARKOV_MAX = 16  # as many, where the graph grows with each
N_KERNEL_MAX = 64  # rows that a convolution of DFlash2 sees
HEAD_SIZES = ("key_length", "value_length", "key_length_swa", "value_length_swa")


def read(header: Header, file: GgufFile, target: GgufFile) -> HeadFile:
    """Return the checked head. Raises what ``heads.check`` does."""
    _require_known(header)
    names = {tensor.name for tensor in file.tensors}
    kind = _kind(header, names, file.n_vocab)
    _require_shapes(header, file)
    _require_selector(header, file)
    require_width(header, file)
    require_types(file, OWN_TOKENS)
    require_own_tokens(header, file)
    require_states(file.n_embd, target)
    blocks = require_blocks(header, target)
    require_vocabulary(header, file, target)
    if OWN_TOKENS in names and OUTPUT not in names:
        raise ModelFileError(f"has tokens of its own ({OWN_TOKENS}) but no {OUTPUT}; {BROKEN}")
    return HeadFile(
        file,
        kind,
        blocks,
        n_features=len(blocks) * target.n_embd,
        n_state=0,
        n_bytes_read=bytes_read(file, target, MARKOV, PREDECESSOR, SUCCESSOR)
        // (kind.n_block - kind.first_row),
    )


def _require_known(header: Header) -> None:
    """Refuse heads that cannot draft yet."""
    if value(header, "hyper_connection.count"):
        raise UnsupportedError(
            "is a DSpark head with hyper-connections, for DeepSeek V4, which cannot be used yet: "
            "give another drafter"
        )


def _require_selector(header: Header, file: GgufFile) -> None:
    """Require what llama.cpp needs to score candidates, where a head does that.

    The graph returns the candidates of a row and their scores in the place of its states.
    """
    tensors = {tensor.name: tensor for tensor in file.tensors}
    rank = value(header, "selector_rank")
    if (SELECTOR in tensors) != bool(rank):
        raise ModelFileError(
            f"{ARCHITECTURE}.selector_rank is {short(rank)}, but there is "
            f"{'a' if SELECTOR in tensors else 'no'} {SELECTOR}; {BROKEN}"
        )
    if SELECTOR not in tensors:
        return
    if MARKOV in tensors:
        raise ModelFileError(f"has both {MARKOV} and {SELECTOR}; {BROKEN}")
    n_own = tensors[OWN_TOKENS].n_elements if OWN_TOKENS in tensors else file.n_vocab
    n_fit = (math.isqrt(4 * file.n_embd + 1) - 1) // 2  # n * (n + 1) values fit into n_embd
    _require_whole(header, "selector_top_k", min(n_fit, n_own))
    _require_whole(header, "conv_kernel_size", N_KERNEL_MAX)
    n_group = _require_whole(header, "conv_group_size", file.n_embd)
    if file.n_embd % n_group:
        raise ModelFileError(
            f"{ARCHITECTURE}.conv_group_size is {n_group}, which does not divide {file.n_embd}; "
            f"{BROKEN}"
        )
    for name, tensor in tensors.items():
        if name.endswith("conv_base") and tensor.type != "F32":
            raise ModelFileError(f"tensor {name!r} is {tensor.type}, but must be F32")


def _require_whole(header: Header, name: str, n_most: int) -> int:
    """Return the value of a key that must be a whole number from 1 to n_most."""
    found = value(header, name)
    if not isinstance(found, int) or not 1 <= found <= n_most:
        raise ModelFileError(
            f"{ARCHITECTURE}.{name} is {short(found)}, allowed is 1 to {n_most}; {BROKEN}"
        )
    return found


def _kind(header: Header, names: set[str], n_vocab: int) -> HeadFormat:
    n_block, mask = value(header, "block_size"), header.metadata.get(MASK)
    has_markov = MARKOV in names
    n_most = N_MARKOV_MAX if has_markov else N_BLOCK_MAX
    if not isinstance(n_block, int) or not 2 <= n_block <= n_most:
        raise ModelFileError(
            f"{ARCHITECTURE}.block_size is {short(n_block)}, allowed is 2 to {n_most}; {BROKEN}"
        )
    if not isinstance(mask, int) or not 0 <= mask < n_vocab:
        raise ModelFileError(f"{MASK} is {short(mask)}, which is none of its tokens; {BROKEN}")
    from_first = has_markov and value(header, "sample_from_anchor") is not False
    return HeadFormat(
        n_block=n_block,
        first_row=0 if from_first else 1,
        mask_token=mask,
        is_causal=value(header, "attention.causal") is True,
        scores_candidates=SELECTOR in names,
        has_confidence=has_markov and CONFIDENCE in names,
    )


def _require_shapes(header: Header, file: GgufFile) -> None:
    """Require that the heads of all blocks are alike: the graph does not tell them apart."""
    usual = file.n_embd // max(1, file.n_head)
    first = [value(header, f"attention.{name}", usual) for name in HEAD_SIZES[:2]]
    sizes = first + [value(header, f"attention.{name}", first[0]) for name in HEAD_SIZES[2:]]
    if len(set(sizes)) > 1:
        listed = ", ".join(f"{n} {short(size)}" for n, size in zip(HEAD_SIZES, sizes, strict=True))
        raise ModelFileError(f"its heads differ in size ({listed}); {BROKEN}")
    for name in ("head_count", "head_count_kv"):
        counts = value(header, f"attention.{name}")
        if isinstance(counts, tuple) and len(set(counts)) > 1:
            raise ModelFileError(f"its blocks differ in attention.{name}; {BROKEN}")
    if value(header, "rope.dimension_count_swa") not in (
        None,
        value(header, "rope.dimension_count"),
    ):
        raise ModelFileError(
            f"its blocks with and without a window differ in rope.dimension_count; {BROKEN}"
        )
