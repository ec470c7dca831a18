"""pyselfspec info: what a model is, where its bytes are, and which masks it can take."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click
import cloup

from ..gguf.file import GgufFile
from ..runtime.context import Context
from ..runtime.model import Model
from ..runtime.processor import cpu_backend, variant
from ..runtime.widths import exact_types, same_at_widths
from ._options import (
    common_options,
    context_params,
    device_options,
    model_argument,
    model_params,
    open_model,
)

# By what was tried on this machine.
SAME_TEXT = {
    True: "identical; logits were the same bits at every width of a pass that was tried",
    False: "the full model's, but a near-tie may fall otherwise; logits depend on a pass's width",
    None: "there are no drafts",
}


@cloup.command(name="info")
@model_argument
@device_options
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Describe a model: sizes, bytes per block, masks it can take.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".
    """
    with (
        open_model(model, **model_params(options)) as loaded,
        loaded.context(n_ctx=256, n_batch=64, **context_params(options)) as context,
    ):
        facts = _facts(loaded, context) | {"model": model}
    click.echo(json.dumps(facts) if as_json else _text(facts))


def _facts(model: Model, context: Context) -> dict[str, Any]:
    file, support = model.file, context.mask_support
    return {
        "architecture": file.architecture,
        "n_layer": model.n_layer,
        "n_embd": model.n_embd,
        "n_vocab": model.n_vocab,
        "n_ctx_train": model.n_ctx_train,
        "n_params": file.n_params,
        "file_type": file.file_type,
        "n_bytes": file.n_bytes,
        "attn_bytes": sum(block.attn for block in file.blocks),
        "ffn_bytes": sum(block.ffn for block in file.blocks),
        "head_bytes": file.head_bytes,
        "token_embd_bytes": file.token_embd_bytes,
        "blocks": [{"attn": b.attn, "ffn": b.ffn, "other": b.other} for b in file.blocks],
        "can_skip_attn": sorted(support.attn),
        "can_skip_ffn": sorted(support.ffn),
        "can_rollback": context.can_rollback,
        "weights": _weights(file, bool(context.exact_width)),
        "cpu_code": variant(cpu_backend()),
        "exact_width": context.exact_width,
        "same_at_widths": same_at_widths(context),
        "has_tokenizer": model.has_vocab,
        "own_head": model.own_head is not None,
        "draft_mask": None if model.draft_mask is None else model.draft_mask.to_dict(),
    }


def _weights(file: GgufFile, on_cpu: bool) -> list[dict[str, Any]]:
    """Types of the matrices, most bytes first, and whether products with several tokens are exact
    and fast on this CPU."""
    n_bytes: Counter[str] = Counter()
    for tensor in file.tensors:
        if len(tensor.shape) > 1:
            n_bytes[tensor.type] += tensor.n_bytes
    exact, fast = (exact_types(fast=only) if on_cpu else () for only in (False, True))
    return [
        {"type": name, "n_bytes": n, "exact": name in exact, "fast": name in fast}
        for name, n in n_bytes.most_common()
    ]


def _text(facts: dict[str, Any]) -> str:
    attn, ffn, head = facts["attn_bytes"], facts["ffn_bytes"], facts["head_bytes"]
    read = (attn + ffn + head + sum(b["other"] for b in facts["blocks"])) or 1
    lines = [
        f"{facts['architecture']} · {facts['n_layer']} blocks · "
        f"{_count(facts['n_params'])} parameters · {facts['file_type']} · "
        f"{_bytes(facts['n_bytes'])} · context {facts['n_ctx_train']}",
        f"bytes read per token: attention {attn / read:.0%}, feed-forward {ffn / read:.0%}, "
        f"head {head / read:.0%}",
        f"weights: {_types(facts)}",
        f"masks: {_skippable(facts, 'attention', 'can_skip_attn')}; "
        f"{_skippable(facts, 'feed-forward', 'can_skip_ffn')}",
        f"drafting: {_drafting(facts)}",
        f"text with drafts: {SAME_TEXT[facts['same_at_widths']]}",
        f"CPU code: {facts['cpu_code']}, {_kernels(facts)}",
        "",
        "block  attention  feed-forward",
    ]
    lines += [
        f"{il:5}  {_bytes(block['attn']):>9}  {_bytes(block['ffn']):>12}"
        for il, block in enumerate(facts["blocks"])
    ]
    lines.append(f" head  {_bytes(head):>9}")
    return "\n".join(lines)


def _skippable(facts: dict[str, Any], part: str, key: str) -> str:
    n, n_layer = len(facts[key]), facts["n_layer"]
    if n == n_layer:
        return f"{part} of every block"
    return f"{part} of blocks {_ranges(facts[key])}" if n else f"no {part}"


def _types(facts: dict[str, Any]) -> str:
    weights = facts["weights"]
    total = sum(each["n_bytes"] for each in weights) or 1
    shares = ", ".join(f"{each['type']} {each['n_bytes'] / total:.0%}" for each in weights)
    if not facts["exact_width"]:
        return shares
    slow = [each["type"] for each in weights if not each["fast"]]
    if slow:
        return f"{shares}; a pass multiplies {', '.join(slow)} token by token, so checks cost more"
    return f"{shares}; a pass over several tokens reads all of them once"


def _drafting(facts: dict[str, Any]) -> str:
    if not facts["can_rollback"]:
        return "no, its memory cannot take tokens back; texts are decoded plainly"
    if facts["own_head"]:
        return "ngram, copies of what the text has had; head, a block that the file brings for it"
    if facts["draft_mask"] is None:
        return "ngram, copies of what the text has had; layer-skip with a mask you give"
    mask = facts["draft_mask"]
    return (
        "ngram, copies of what the text has had; layer-skip with the mask that the model brings: "
        f"attention {_ranges(mask['skip_attn']) or 'none'} and "
        f"feed-forward {_ranges(mask['skip_ffn']) or 'none'} skipped"
    )


def _kernels(facts: dict[str, Any]) -> str:
    width = facts["exact_width"]
    if not width:
        return "which promises nothing about the bits of wider passes"
    return f"which promises the same bits in passes over up to {width} tokens"


def _ranges(blocks: list[int]) -> str:
    """[3, 5, 8, 9, 10] -> "3,5,8-10"."""
    runs: list[list[int]] = []
    for il in blocks:
        if runs and il == runs[-1][-1] + 1:
            runs[-1].append(il)
        else:
            runs.append([il])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _count(n: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return str(n)


def _bytes(n: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"
