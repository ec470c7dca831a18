"""An optimizer for matrices: steps that turn all directions alike.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon/; the step size as in Liu et al.,
https://arxiv.org/abs/2502.16982. torch has one too, which computes in bfloat16 also where no
hardware is there for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan's iteration
N_ITERATIONS = 5
SIZE = 0.2  # of a step's values, as AdamW's usually are


class Muon(torch.optim.Optimizer):
    """dtype: to compute directions in."""

    def __init__(self, matrices: Iterable[nn.Parameter], rate: float, dtype: torch.dtype) -> None:
        super().__init__(matrices, {"lr": rate})
        self._dtype = dtype

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for matrix in group["params"]:
                    if matrix.grad is None:  # no part of what was computed
                        continue
                    state, slope = self.state[matrix], matrix.grad
                    mean = state.setdefault("mean", torch.zeros_like(slope))
                    mean.lerp_(slope, 1 - MOMENTUM)
                    way = _turned_alike(slope.lerp(mean, MOMENTUM).to(self._dtype))
                    rate = group["lr"] * SIZE * math.sqrt(max(matrix.shape))
                    matrix.add_(way, alpha=-rate)


def _turned_alike(x: Tensor) -> Tensor:
    """About the nearest matrix with orthogonal rows or columns."""
    a, b, c = COEFFICIENTS
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(N_ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x
