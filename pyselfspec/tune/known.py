"""What a model's file gives a head to start from: sizes, embeddings, the output and its norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import quants
from numpy.typing import NDArray

from ..convert.stream import Source, StoredTensor, read_model
from ..errors import UnsupportedError
from .head import Head, Shape

EMBEDDING, OUTPUT, OUTPUT_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
SMALL = 0.1  # of what the block adds in the beginning


@dataclass(frozen=True)
class Known:
    """A model's file, for the head of it. Raises UnsupportedError for one without what it takes."""

    source: Source

    @classmethod
    def of(cls, path: Path) -> Known:
        return cls(read_model(path))

    @cached_property
    def _tensors(self) -> dict[str, StoredTensor]:
        return {tensor.name: tensor for tensor in self.source.tensors}

    def _tensor(self, *names: str) -> StoredTensor:
        for name in names:
            if name in self._tensors:
                return self._tensors[name]
        raise UnsupportedError(
            f"{self.source.file.path.name} has no tensor {names[0]}, which a head starts from"
        )

    def embedded(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32 [n_tokens, n_embd]."""
        kinds, where = np.unique(tokens, return_inverse=True)
        return self._rows(self._tensor(EMBEDDING), kinds)[where]

    def output(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of the model's output these tokens' rows, float32 [n_tokens, n_embd]."""
        return self._rows(self._tensor(OUTPUT, EMBEDDING), tokens)

    @staticmethod
    def _rows(tensor: StoredTensor, rows: NDArray[Any]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = quants.dequantize(tensor.rows[rows], tensor.type)
        return np.asarray(found, np.float32)

    def shape(self, n_own: int) -> Shape:
        """A head with a block of the model's sizes."""
        n_embd, n_head = self.source.file.n_embd, self.source.file.n_head
        head_size = self._number("attention.key_length") or n_embd // max(1, n_head)
        return Shape(
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=self._number("attention.head_count_kv") or n_head,
            head_size=head_size,
            n_ff=self._number("feed_forward_length") or 4 * n_embd,
            n_own=n_own,
            eps=float(
                self.source.value(self.source.key("attention.layer_norm_rms_epsilon")) or 1e-5
            ),
        )

    def _number(self, name: str) -> int:
        """A size; of several, by block, the largest."""
        value = self.source.value(self.source.key(name))
        return int(max(value)) if isinstance(value, Sequence) else int(value or 0)

    def head(self, shape: Shape, own: NDArray[np.int64], scale: NDArray[np.float32]) -> Head:
        """Before it has learned anything: the last state passed on, to the model's own output."""
        head = Head(shape)
        n = shape.n_embd
        with torch.no_grad():
            head.scale.copy_(torch.from_numpy(scale))
            head.fc.weight.zero_()
            head.fc.weight[:, -n:] = torch.eye(n)
            head.output.weight.copy_(torch.from_numpy(self.output(own)))
            norm = self._tensor(OUTPUT_NORM)
            head.output_norm.weight.copy_(torch.from_numpy(self._rows(norm, np.arange(1))[0]))
            for part in (head.attn_output, head.ffn_down):
                part.weight.mul_(SMALL)
        return head
