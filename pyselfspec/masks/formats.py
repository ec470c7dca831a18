"""Read and write masks in the formats of published masks. Pure: text in, text out.

mask          {"n_layer": 12, "skip_attn": [4], "skip_ffn": [4, 5]}, this package's own
skip-layers   {"llama-2-13b": {"attention": [3, 5], "mlp": [6]}}, Draft & Verify's and SWIFT's
              skip_layers.json, https://github.com/dilab-zju/self-speculative-decoding
attn-mlp      {"attn": [3, 5], "mlp": [6]}, https://github.com/ccs96307/fast-llm-inference
numbers       0 1 3 2 -1, one number per block: 1 skips attention, 2 feed-forward, 3 both; -1 ends.
              llama.cpp's pull request 3565, whose name for it, run_layers, is misleading
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import MaskError
from ..util import records
from .layer_mask import SKIP_ATTN, SKIP_FFN, LayerMask

FORMATS = ("mask", "skip-layers", "attn-mlp", "numbers")
NUMBERS = re.compile(r"[\s,]*-?\d+([\s,]+-?\d+)*[\s,]*")


def read(text: str, n_layer: int, entry: str | None = None) -> LayerMask:
    """Return a mask from text in any of the formats.

    entry: name of the mask in a file that holds several.

    Raises MaskError for text in no known format, and for a mask that does not fit n_layer blocks.
    """
    if NUMBERS.fullmatch(text):
        return _from_numbers([int(number) for number in re.findall(r"-?\d+", text)], n_layer)
    try:
        data = records.parse(text)
    except records.RecordError as error:
        why = f"neither JSON nor a list of numbers ({error})"
        raise MaskError(f"this is no mask: {why}") from None
    if isinstance(data, list):
        return _from_numbers(data, n_layer)
    if not isinstance(data, dict):
        raise MaskError(f"a mask is an object or a list, got {_shown(data)}")
    if isinstance(data.get("mask"), dict):  # a profile
        data = data["mask"]
    if "n_layer" in data:
        return LayerMask.from_dict(data).require(n_layer)
    if not {"attn", "attention", "mlp"} & set(data):
        data = _entry(data, entry)
    attn = data.get("attn", data.get("attention", []))
    return LayerMask.from_dict(
        {"n_layer": n_layer, "skip_attn": attn, "skip_ffn": data.get("mlp", [])}
    )


def write(mask: LayerMask, form: str, model: str) -> str:
    """Return the mask in a format. model: the model's name, where the format has one."""
    attn, ffn = sorted(mask.skip_attn), sorted(mask.skip_ffn)
    if form == "numbers":
        return " ".join(map(str, [*mask.to_bytes(), -1]))
    forms: dict[str, Mapping[str, Any]] = {
        "mask": mask.to_dict(),
        "skip-layers": {model: {"attention": attn, "mlp": ffn}},
        "attn-mlp": {"attn": attn, "mlp": ffn},
    }
    return json.dumps(forms[form])


def _shown(data: Any) -> str:
    """Return data as JSON, shortened to 40 characters."""
    text = json.dumps(data)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _entry(data: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    sets = [key for key, value in data.items() if isinstance(value, dict)]
    if not sets:
        raise MaskError("this is no mask: it has neither skip_attn, nor attn, nor sets by model")
    if name is None and len(sets) == 1:
        name = sets[0]
    if name not in sets:
        listed = f"; the file has {', '.join(sets)}"
        if name is None:
            raise MaskError(f"choose one with entry=NAME (--entry NAME){listed}")
        raise MaskError(f"there is no set {name!r}{listed}")
    found: Mapping[str, Any] = data[name]
    unknown = set(found) - {"attn", "attention", "mlp"}
    if unknown:
        raise MaskError(f"the set {name!r} has attention and mlp, not {sorted(unknown)[0]!r}")
    return found


def _from_numbers(numbers: list[Any], n_layer: int) -> LayerMask:
    if -1 in numbers:
        numbers = numbers[: numbers.index(-1)]
    for number in numbers:
        if isinstance(number, bool) or number not in (0, 1, 2, 3):
            raise MaskError(f"a mask in numbers has 0 to 3 for each block, got {_shown(number)}")
    if len(numbers) != n_layer:
        raise MaskError(
            f"the mask is for {len(numbers)} blocks, not for {n_layer}; use one made for this model"
        )
    return LayerMask.skipping(
        n_layer,
        attn=[il for il, bits in enumerate(numbers) if bits & SKIP_ATTN],
        ffn=[il for il, bits in enumerate(numbers) if bits & SKIP_FFN],
    )
