"""Check the file of a projector before libmtmd reads it: with heads or blocks of other shapes than
its header says, the first picture would end the process."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import ModelFileError
from .header import BROKEN, Header, read_header, short

ARCHITECTURE = "clip"
_VISION = "clip.vision."
# Encoders of other forms number their blocks twice or have no attention here.
_LINEAR = re.compile(r"(v\.blk\.\d+)\.(attn_[qkv]|attn_out|ffn_up|ffn_down)\.weight")


def check(path: Path) -> None:
    """Raise ModelFileError for a file that is not a projector, or whose encoder of pictures does
    not fit its header."""
    header = read_header(path)
    kind = header.metadata.get("general.architecture")
    if kind != ARCHITECTURE:
        raise ModelFileError(
            f"{path} is no projector (its architecture is {short(kind)}); give the mmproj file of "
            "the model"
        )
    shapes = {each.name: each.shape for each in header.tensors}
    found = [match for name in shapes if (match := _LINEAR.fullmatch(name))]
    if not found:
        return
    try:
        n_embd = _size(header, "embedding_length")
        n_head = _size(header, "attention.head_count")
        _require_heads(header, n_embd, n_head)
        for match in found:
            _require_linear(shapes, match[1], match[2], n_embd)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}; {BROKEN}") from None


def _size(header: Header, name: str) -> int:
    size = header.metadata.get(_VISION + name)
    if not isinstance(size, int) or size < 1:
        raise ModelFileError(f"{_VISION}{name} is {short(size)}, not 1 or more")
    return size


def _require_heads(header: Header, n_embd: int, n_head: int) -> None:
    if f"{_VISION}attention.head_dim" not in header.metadata and n_embd % n_head:
        raise ModelFileError(
            f"{_VISION}attention.head_count is {n_head}, which does not divide {n_embd} values"
        )


def _require_linear(shapes: dict[str, tuple[int, ...]], block: str, name: str, n_embd: int) -> None:
    """Require that a product of a block takes what the one before it leaves."""
    weight = f"{block}.{name}.weight"
    n_in, n_out = shapes[weight][0], shapes[weight][-1]
    before = {"attn_out": f"{block}.attn_q.weight"}.get(name)
    if name in ("ffn_up", "ffn_down"):  # some files have them the other way round
        other = shapes.get(f"{block}.{'ffn_down' if name == 'ffn_up' else 'ffn_up'}.weight")
        fits = n_embd in (n_in, n_out) and other in (None, (n_out, n_in))
    elif before is not None:
        fits = n_in == shapes.get(before, (0, n_in))[-1] and n_out == n_embd
    else:
        fits = n_in == n_embd
    if not fits:
        raise ModelFileError(
            f"tensor {weight!r} has the shape {list(shapes[weight])}, which does not fit the "
            f"blocks of {n_embd} values"
        )
    n_bias = shapes.get(f"{block}.{name}.bias", (n_out,))[0]
    if n_bias != n_out:
        raise ModelFileError(f"tensor {block}.{name}.bias has {n_bias} values, not {n_out}")
