"""The training loop: one optimizer step after another, resumable at any of them.

Everything random is a function of seed and step, so a checkpoint is weights, optimizer states and
the number of the step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tools.layerskip import data, network, recipe
from tools.layerskip.config import Config


@dataclass(frozen=True)
class Progress:
    """Results of one training step."""

    step: int
    n_layer: int
    loss: float  # nats per token, last block
    exit: int | None
    exit_loss: float
    divergence: float
    tokens_per_s: float
    flops_per_s: float


def optimizers(model: LlamaForCausalLM, config: Config) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings, head and norms."""
    plan = config.plan
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    muon = torch.optim.Muon(
        matrices, lr=plan.lr, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=plan.lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def flops_per_token(config: Config, n_layer: int, n_head_run: int) -> float:
    """Multiply-adds count twice; backward is twice forward. n_head_run: uses of the head."""
    s = config.shape
    head_dim = s.n_embd // s.n_head
    block = s.n_embd * (2 * s.n_embd + 2 * s.n_head_kv * head_dim + 3 * s.n_ff)
    attention = 2 * s.n_embd * config.plan.sequence
    return 6.0 * (n_layer * (block + attention) + n_head_run * s.n_embd * s.n_vocab)


def peak_flops(device: str) -> float:
    """Measured rate of plain bfloat16 products, the ceiling for training."""
    n = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        _wait(device)
        start = time.perf_counter()
        a @ b
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2.0 * n**3 / best


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def keep_mask(config: Config, step: int, n_layer: int, n_row: int) -> Tensor:
    """float32 [blocks, rows]: 0 where a row skips a block in this step."""
    generator = torch.Generator().manual_seed(config.plan.seed * 1_000_003 + step)
    drop = torch.tensor(
        [recipe.dropout(config.layerskip, i, n_layer, step / config.n_step) for i in range(n_layer)]
    )
    return (torch.rand(n_layer, n_row, generator=generator) >= drop[:, None]).float()


@dataclass
class Run:
    """A model, its optimizers and the step it stands at."""

    config: Config
    plain: bool
    device: str
    model: LlamaForCausalLM
    optimizers: list[torch.optim.Optimizer]
    step: int = 0

    @classmethod
    def start(cls, config: Config, plain: bool, device: str) -> Run:
        model = network.make(config.shape, device, config.plan.seed)
        return cls(config, plain, device, model, optimizers(model, config))

    def train_step(self, rows: data.Tokens) -> tuple[float, int | None, float, float]:
        """One update from uint16 [rows, sequence + 1]; losses of last block, exit, divergence."""
        config, skip = self.config, self.config.layerskip
        progress = self.step / config.n_step
        n_layer = recipe.n_layer_at(config.plan, config.shape.n_layer, progress)
        if recipe.grows_at(config.plan, config.shape.n_layer, self.step, config.n_step):
            network.stack(self.model, config.plan.grow_from)
        ids = torch.from_numpy(rows.astype("int64")).to(self.device)
        exit_, keep = None, None
        if not self.plain:
            exit_ = recipe.exit_of_step(skip, n_layer, self.step, config.n_step)
            keep = keep_mask(config, self.step, n_layer, len(rows)).to(self.device)
        with torch.autocast(self.device, torch.bfloat16):
            wanted = [n_layer] if exit_ is None else [exit_, n_layer]
            hidden = network.run_blocks(self.model, ids[:, :-1], n_layer, wanted, keep)
            early = None if exit_ is None else hidden[0]
            found = network.losses(self.model, hidden[-1], early, ids[:, 1:])
        if exit_ is None:
            loss = found.last
        else:
            w_early, w_last = recipe.loss_weights(skip, exit_, n_layer)
            loss = w_last * found.last + w_early * found.early + skip.agreement * found.divergence
        for group in (g for o in self.optimizers for g in o.param_groups):
            group["lr"] = config.plan.lr * recipe.learning_rate(config.plan, progress)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return found.last.item(), exit_, found.early.item(), found.divergence.item()

    def train(self, rows: data.Tokens) -> Iterator[Progress]:
        """Steps from where the run stands to its end; rows uint16 [n, sequence + 1]."""
        config = self.config
        n_batch = config.plan.batch // config.plan.sequence
        while self.step < config.n_step:
            step = self.step
            n_layer = recipe.n_layer_at(config.plan, config.shape.n_layer, step / config.n_step)
            start = time.perf_counter()
            chosen = data.rows_of_step(len(rows), n_batch, step, config.plan.seed)
            loss, exit_, exit_loss, divergence = self.train_step(rows[chosen])
            rate = config.plan.batch / (time.perf_counter() - start)
            flops = rate * flops_per_token(config, n_layer, 1 + (exit_ is not None))
            yield Progress(step, n_layer, loss, exit_, exit_loss, divergence, rate, flops)

    def save(self, path: Path) -> None:
        """Writes a checkpoint; the old one stays until the new one is complete."""
        part = path.with_name(path.name + ".part")
        state: dict[str, Any] = {
            "step": self.step,
            "plain": self.plain,
            "shape": asdict(self.config.shape),
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
        }
        try:
            torch.save(state, part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def load(self, path: Path) -> None:
        """Continues from a checkpoint. Raises ValueError when it is of another model or recipe."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        if (state["shape"], state["plain"]) != (asdict(self.config.shape), self.plain):
            raise ValueError(f"{path}: a checkpoint of another shape or recipe; remove it to start")
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = state["step"]
