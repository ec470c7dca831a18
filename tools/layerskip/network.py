"""A transformers Llama whose blocks can be dropped per row and read at an exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tools.layerskip.config import Shape

N_CHUNK = 2048  # tokens whose logits are in memory at a time
STACKED = 0.5  # of what a block adds, in its copies


def make(shape: Shape, device: str, seed: int) -> LlamaForCausalLM:
    """float32 weights. Output matrices of the sublayers start at zero, so every block starts as
    the identity."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.n_vocab,
        hidden_size=shape.n_embd,
        intermediate_size=shape.n_ff,
        num_hidden_layers=shape.n_layer,
        num_attention_heads=shape.n_head,
        num_key_value_heads=shape.n_head_kv,
        head_dim=shape.n_embd // shape.n_head,
        max_position_embeddings=shape.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        # plain products are faster on the CPU, the fused kernel elsewhere
        attn_implementation="eager" if device == "cpu" else "sdpa",
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model.to(device)


def stack(model: LlamaForCausalLM, n_from: int) -> None:
    """Makes the blocks from n_from on copies of those before, again and again.

    G_stack of Du et al., "Stacking Your Transformers" (2024), https://arxiv.org/abs/2405.15319, but
    that copies add STACKED of what they copy, which disturbs the model half as much. Blocks added
    as the identity learn nothing more: they all get the same small gradients.
    """
    layers = model.model.layers
    for i in range(n_from, len(layers)):
        layers[i].load_state_dict(layers[i % n_from].state_dict())
        with torch.no_grad():
            layers[i].self_attn.o_proj.weight *= STACKED
            layers[i].mlp.down_proj.weight *= STACKED


@torch.compile(dynamic=False)
def _block(layer: nn.Module, hidden: Tensor, keep: Tensor, rope: Any, mask: Tensor) -> Tensor:
    out = layer(hidden, attention_mask=mask, position_embeddings=rope)
    return hidden + keep * (out - hidden)


@torch.compile(dynamic=False)
def _plain_block(layer: nn.Module, hidden: Tensor, rope: Any, mask: Tensor) -> Tensor:
    return layer(hidden, attention_mask=mask, position_embeddings=rope)


def run_blocks(
    model: LlamaForCausalLM, ids: Tensor, n_layer: int, exits: Sequence[int], keep: Tensor | None
) -> list[Tensor]:
    """Hidden states after each number of blocks in `exits`, before the last norm.

    ids int64 [rows, sequence]; keep float [blocks, rows], 1 runs a block for a row, 0 skips it,
    None runs all; each result [rows, sequence, n_embd].
    """
    body = model.model
    hidden = body.embed_tokens(ids)
    n = ids.shape[1]
    rope = body.rotary_emb(hidden, torch.arange(n, device=ids.device)[None])
    mask = torch.full((n, n), float("-inf"), device=ids.device).triu(1)[None, None]
    found = {}
    for i, layer in enumerate(body.layers[:n_layer]):
        if keep is None:
            hidden = _plain_block(layer, hidden, rope, mask)
        else:
            hidden = _block(layer, hidden, keep[i, :, None, None], rope, mask)
        if i + 1 in exits:
            found[i + 1] = hidden
    return [found[e] for e in exits]


@dataclass(frozen=True)
class Losses:
    """Means over tokens, in nats; scalars with gradients."""

    last: Tensor
    early: Tensor
    divergence: Tensor  # KL(last || early)


@torch.compile(dynamic=False)
def _chunk(
    norm: nn.Module, head: nn.Module, last: Tensor, early: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    log_p = head(norm(last)).float().log_softmax(-1)
    log_q = head(norm(early)).float().log_softmax(-1)
    at = target[:, None]
    divergence = (log_p.exp() * (log_p - log_q)).sum()
    return -log_p.gather(1, at).sum(), -log_q.gather(1, at).sum(), divergence


@torch.compile(dynamic=False)
def _last_chunk(norm: nn.Module, head: nn.Module, last: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(head(norm(last)).float(), target, reduction="sum")


def losses(model: LlamaForCausalLM, last: Tensor, early: Tensor | None, target: Tensor) -> Losses:
    """Cross entropy of the last block and of one early exit through the same norm and head."""
    norm, head = model.model.norm, model.lm_head
    width = last.shape[-1]
    targets = target.reshape(-1).split(N_CHUNK)
    lasts = last.reshape(-1, width).split(N_CHUNK)
    zero = last.new_zeros((), dtype=torch.float32)
    if early is None:
        parts = [_last_chunk(norm, head, h, t) for h, t in zip(lasts, targets, strict=True)]
        return Losses(torch.stack(parts).sum() / target.numel(), zero, zero)
    earlies = early.reshape(-1, width).split(N_CHUNK)
    triples = [_chunk(norm, head, h, e, t) for h, e, t in zip(lasts, earlies, targets, strict=True)]
    sums = [torch.stack(part).sum() / target.numel() for part in zip(*triples, strict=True)]
    return Losses(*sums)
