"""pyselfspec models info: describe a model's size, its need of memory, and its drafters."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from typing import Any

import click
import cloup

from ...costs.lookup import width_costs
from ...gguf.file import GgufFile
from ...runtime.context import Context
from ...runtime.context_options import N_CTX
from ...runtime.kv_types import CACHE_TYPES
from ...runtime.memory import needed_bytes
from ...runtime.model import Model
from ...runtime.processor import cpu_backend, variant
from ...runtime.width_check import same_at_widths
from ...speculate.drafters.twin import can_have_twin
from ...util.sizes import size_text
from .._help import ManyOptions
from .._machine import DeviceOptions
from .._model import model_argument
from .._options import common_options
from .._types import takes

# Keys: whether logits are the same at all widths, as tested on this machine.
SAME_TEXT = {
    True: "yes, tested on this machine: the same logits, bit for bit, at every width of a pass",
    False: "almost always: where two tokens are nearly equally likely, the other one may be chosen",
    None: "there are no drafts",
}
EXACT_PROMPTS = {True: "yes", False: "not promised"}
SHOWN_CACHE_TYPES = ("f16", "q8_0", "q4_0")
N_SHOWN = 1000  # tokens whose K/V are shown


@cloup.command(name="info", cls=ManyOptions)
@model_argument
@takes(device=DeviceOptions)
@common_options
def command(model: str, device: DeviceOptions, as_json: bool) -> None:
    """Describe a model: its parts, memory use and drafters.

    Loads the model, and tests whether drafts could change its text on this machine.
    """
    with (
        device.open_model(model) as loaded,
        loaded.context(n_ctx=256, n_batch=64, **device.context_params()) as context,
    ):
        facts = _facts(loaded, context) | {"model": model}
    click.echo(json.dumps(facts) if as_json else _text(facts))


def _facts(model: Model, context: Context) -> dict[str, Any]:
    file, support = model.file, context.mask_support
    n_ctx = min(N_CTX, model.n_ctx_train)
    of_file = "name licence is_chat_model architecture n_params file_type n_bytes"
    of_model = "n_layer n_embd n_vocab n_ctx_train free_bytes state_bytes n_grown_bytes"
    n_bytes = needed_bytes(file, n_ctx, context.options.type_k, context.options.type_v)
    return {
        **{name: getattr(file, name) for name in of_file.split()},
        **{name: getattr(model, name) for name in of_model.split()},
        "kv_bytes_per_1000_tokens": {t: file.kv_bytes(N_SHOWN, t, t) for t in CACHE_TYPES},
        "n_ctx": n_ctx,
        "needed_bytes": n_bytes + model.n_grown_bytes,
        "can_have_twin": can_have_twin(model),
        "head_bytes": file.head_bytes,
        "token_embd_bytes": file.token_embd_bytes,
        "attn_bytes": sum(block.attn for block in file.blocks),
        "ffn_bytes": sum(block.ffn for block in file.blocks),
        "blocks": [{"attn": b.attn, "ffn": b.ffn, "other": b.other} for b in file.blocks],
        "can_skip_attn": sorted(support.attn),
        "can_skip_ffn": sorted(support.ffn),
        "can_draft": context.abilities.can_draft,
        "n_snapshots": 0 if context.abilities.can_rollback else context.abilities.max_rollback,
        "weights": _weights(file),
        "cpu_code": variant(cpu_backend()),
        "exact_width": context.abilities.exact_width,
        "exact_prompts": context.abilities.exact_prompts,
        "same_at_widths": same_at_widths(context),
        "width_costs": width_costs(context),
        "has_tokenizer": model.has_vocab,
        "own_head": model.own_head is not None,
        "own_head_bytes": model.own_head.n_bytes_read if model.own_head else 0,
        "own_head_fault": model.head_fault,
        "draft_mask": None if model.draft_mask is None else model.draft_mask.to_dict(),
    }


def _weights(file: GgufFile) -> list[dict[str, Any]]:
    """Return the types of the matrices and their bytes, most bytes first."""
    n_bytes: Counter[str] = Counter()
    for tensor in file.tensors:
        if len(tensor.shape) > 1:
            n_bytes[tensor.type] += tensor.n_bytes
    return [{"type": name, "n_bytes": n} for name, n in n_bytes.most_common()]


def _text(facts: dict[str, Any]) -> str:
    attn, ffn, head = facts["attn_bytes"], facts["ffn_bytes"], facts["head_bytes"]
    read, width, costs = _bytes_read(facts) or 1, facts["exact_width"], facts["width_costs"]
    wide = "not measured yet; generate measures it"
    if costs is not None:
        shown = ", ".join(f"{costs[n - 1]:.2f} for {n}" for n in (2, 4, 8, len(costs)))
        wide = f"{shown} tokens, relative to a pass over one"
    kernels = "logits may depend on the width of a pass"
    if width:
        kernels = f"logits are identical in passes of up to {width} tokens"
    lines = [
        f"name: {facts['name'] or 'not stated'} (licence: {facts['licence'] or 'not stated'})",
        f"model: {facts['architecture']} · {facts['n_layer']} blocks · "
        f"{_count(facts['n_params'])} parameters · {facts['file_type']} · "
        f"{size_text(facts['n_bytes'])} · trained with {facts['n_ctx_train']} tokens of context",
        f"chat model: {'yes' if facts['is_chat_model'] else 'no'}",
        *_memory(facts),
        f"speed-up: {_speed_up(facts)}",
        f"same text with drafts: {SAME_TEXT[facts['same_at_widths']]}",
        f"same bits however a prompt is split: {EXACT_PROMPTS[facts['exact_prompts']]}",
        f"weights: {_types(facts)}",
        f"bytes read per token: attention {attn / read:.0%}, feed-forward {ffn / read:.0%}, "
        f"head {head / read:.0%}",
        f"masks can skip: {_skippable(facts, 'attention', 'can_skip_attn')}; "
        f"{_skippable(facts, 'feed-forward', 'can_skip_ffn')}",
        f"CPU code: {facts['cpu_code']}; {kernels}",
        f"cost of wide passes: {wide}",
        "",
    ]
    rows = [("blocks", "attention", "feed-forward")]
    for (a, f), run in groupby(enumerate(facts["blocks"]), lambda b: (b[1]["attn"], b[1]["ffn"])):
        rows.append((_ranges([il for il, _ in run]), size_text(a), size_text(f)))
    rows.append(("head", size_text(head), ""))
    return "\n".join([*lines, *(f"{a:>8}  {b:>9}  {c:>12}".rstrip() for a, b, c in rows)])


def _memory(facts: dict[str, Any]) -> tuple[str, str]:
    """Return lines about the need of memory: per token of context, and with the usual context."""
    kv, n_snapshots = facts["kv_bytes_per_1000_tokens"], facts["n_snapshots"]
    first, *others = (f"{size_text(kv[name])} as {name}" for name in SHOWN_CACHE_TYPES)
    states = ""
    if facts["state_bytes"]:  # rejected draft tokens are removed from it by copies of it
        copies = "a checkpoint for drafts"
        if n_snapshots:
            copies = f"{n_snapshots} snapshots for drafts of {n_snapshots} tokens"
        size = size_text(facts["state_bytes"])
        states = f"; {size} for the recurrent state of each text, with {copies}"
    of_file = f"{size_text(facts['n_bytes'])} for the file"
    if facts["n_grown_bytes"]:
        of_file += f", {size_text(facts['n_grown_bytes'])} more for its weights unpacked"
    needed, free = facts["needed_bytes"], facts["free_bytes"]
    fits = f"{size_text(needed)} with a context of {facts['n_ctx']} tokens"
    if free is None:
        fits = f"unknown; it needs {fits}"
    else:
        fits = f"{'yes' if needed <= free else 'no'}, {fits}; {size_text(free)} are free"
    return (
        f"memory: {of_file}, and for each 1,000 tokens of context {first} "
        f"({', '.join(others)}; see -ctk and -ctv){states}",
        f"fits: {fits}",
    )


def _skippable(facts: dict[str, Any], part: str, key: str) -> str:
    n, n_layer = len(facts[key]), facts["n_layer"]
    if n == n_layer:
        return f"{part} of every block"
    return f"{part} of blocks {_ranges(facts[key])}" if n else f"no {part}"


def _types(facts: dict[str, Any]) -> str:
    weights = facts["weights"]
    total = sum(each["n_bytes"] for each in weights) or 1
    return ", ".join(f"{each['type']} {each['n_bytes'] / total:.0%}" for each in weights)


def _bytes_read(facts: dict[str, Any]) -> int:
    """Return the weight bytes that one token reads."""
    parts = ("attn_bytes", "ffn_bytes", "head_bytes")
    other = sum(block["other"] for block in facts["blocks"])
    return int(sum(facts[part] for part in parts) + other)


def _speed_up(facts: dict[str, Any]) -> str:
    copies, mask = "copies of earlier text (ngram)", facts["draft_mask"]
    if facts["can_have_twin"]:
        copies += ", the model itself in four bits (ngram+twin, which auto uses once it is written)"
    if not facts["can_draft"]:
        return "none: the memory of this architecture cannot remove tokens"
    if facts["own_head"]:
        share = facts["own_head_bytes"] / max(1, _bytes_read(facts))
        return (
            f"{copies}, and the draft head of this file (head): a draft token reads {share:.0%} of "
            "the bytes of a token"
        )
    if facts["own_head_fault"]:
        copies += f"; not the draft head of this file: {facts['own_head_fault']}"
    if facts["state_bytes"]:
        return copies
    if mask is None:
        return f"{copies}; skipping layers with a mask that you give or search (layer-skip)"
    attn, ffn = (_ranges(mask[key]) or "none" for key in ("skip_attn", "skip_ffn"))
    return (
        f"{copies}; skipping layers with the mask of this file (layer-skip): attention {attn}, "
        f"feed-forward {ffn}"
    )


def _ranges(blocks: list[int]) -> str:
    """Return block numbers as ranges: "3,5,8-10" for [3, 5, 8, 9, 10]."""
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
