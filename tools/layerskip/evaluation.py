"""Held-out loss and agreement of every exit with the last block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM

from tools.layerskip import data, network

N_ROW = 8


@dataclass(frozen=True)
class ExitScore:
    """exit: blocks that run; loss in nats per token; agreement with the last block's argmax."""

    exit: int
    loss: float
    agreement: float


@torch.no_grad()
def score_exits(
    model: LlamaForCausalLM, rows: data.Tokens, n_layer: int, device: str
) -> list[ExitScore]:
    """One score per exit 1..n_layer over rows, uint16 [n, sequence + 1]."""
    exits = range(1, n_layer + 1)
    loss, agree, count = [0.0] * n_layer, [0] * n_layer, 0
    for start in range(0, len(rows), N_ROW):
        ids = torch.from_numpy(rows[start : start + N_ROW].astype("int64")).to(device)
        target = ids[:, 1:].reshape(-1)
        with torch.autocast(device, torch.bfloat16):
            hidden = network.run_blocks(model, ids[:, :-1], n_layer, exits, None)
            logits = [model.lm_head(model.model.norm(h)).float().flatten(0, 1) for h in hidden]
        best = logits[-1].argmax(-1)
        for i, row in enumerate(logits):
            loss[i] += float(torch.nn.functional.cross_entropy(row, target, reduction="sum"))
            agree[i] += int((row.argmax(-1) == best).sum())
        count += target.numel()
    return [
        ExitScore(e, total / count, n / count)
        for e, total, n in zip(exits, loss, agree, strict=True)
    ]
