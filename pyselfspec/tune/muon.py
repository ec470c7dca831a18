"""Muon, an optimizer for matrices: its steps are orthogonalized, so that all directions change
alike.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon/; the step size as in Liu et al.,
https://arxiv.org/abs/2502.16982. torch.optim.Muon exists from torch 2.9 only and computes in
bfloat16 even without hardware support.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton-Schulz iteration, from Jordan et al.
N_ITERATIONS = 5
STEP_RMS = 0.2  # typical of AdamW, so that its step sizes fit


class Muon(torch.optim.Optimizer):
    """Muon optimizer. dtype: in which it orthogonalizes steps."""

    def __init__(self, matrices: Iterable[nn.Parameter], rate: float, dtype: torch.dtype) -> None:
        super().__init__(matrices, {"lr": rate})
        self._dtype = dtype

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for matrix in group["params"]:
                    if matrix.grad is None:  # it took no part in the loss
                        continue
                    state, gradient = self.state[matrix], matrix.grad
                    mean = state.setdefault("mean", torch.zeros_like(gradient))
                    mean.lerp_(gradient, 1 - MOMENTUM)
                    direction = _orthogonalize(gradient.lerp(mean, MOMENTUM).to(self._dtype))
                    rate = group["lr"] * STEP_RMS * math.sqrt(max(matrix.shape))
                    matrix.add_(direction, alpha=-rate)


def _orthogonalize(x: Tensor) -> Tensor:
    """Return approximately the nearest matrix with orthonormal rows or columns."""
    a, b, c = COEFFICIENTS
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(N_ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x
