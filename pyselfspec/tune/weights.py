"""The weights of the base model that a new head starts from: embeddings, output matrix and norm."""

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
BLOCK_SCALE = 0.1  # initial output of the head's block, relative to torch's default initialization


@dataclass(frozen=True)
class BaseModelWeights:
    """Reads the tensors that a head needs from a model's file.

    Methods raise UnsupportedError when the file lacks a tensor.
    """

    source: Source

    @classmethod
    def open(cls, path: Path) -> BaseModelWeights:
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

    def embeddings(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the embeddings of tokens, float32 [n_tokens, n_embd]."""
        unique, where = np.unique(tokens, return_inverse=True)
        return self._rows(self._tensor(EMBEDDING), unique)[where]

    def output_rows(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the output matrix's rows of tokens, float32 [n_tokens, n_embd]."""
        return self._rows(self._tensor(OUTPUT, EMBEDDING), tokens)

    @staticmethod
    def _rows(tensor: StoredTensor, rows: NDArray[Any]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = quants.dequantize(tensor.rows[rows], tensor.type)
        return np.asarray(values, np.float32)

    def head_shape(self, draft_vocab_size: int) -> Shape:
        """Return the shape of a head whose block has the model's sizes."""
        n_embd, n_head = self.source.file.n_embd, self.source.file.n_head
        head_size = self._number("attention.key_length") or n_embd // max(1, n_head)
        return Shape(
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=self._number("attention.head_count_kv") or n_head,
            head_size=head_size,
            n_ff=self._number("feed_forward_length") or 4 * n_embd,
            draft_vocab_size=draft_vocab_size,
            eps=float(
                self.source.value(self.source.key("attention.layer_norm_rms_epsilon")) or 1e-5
            ),
        )

    def _number(self, name: str) -> int:
        """Return a size from the metadata: the largest if it differs by block, 0 if absent."""
        value = self.source.value(self.source.key(name))
        return int(max(value)) if isinstance(value, Sequence) else int(value or 0)

    def new_head(
        self, shape: Shape, draft_vocab: NDArray[np.int64], scale: NDArray[np.float32]
    ) -> Head:
        """Return an untrained head: it passes the last block's state to the model's own output.

        draft_vocab: ids of the tokens it can draft, int64 [draft_vocab_size].
        scale: factors that bring features to the same size, float32 [n_features].
        """
        head = Head(shape)
        n = shape.n_embd
        with torch.no_grad():
            head.draft_vocab.copy_(torch.from_numpy(draft_vocab))
            head.scale.copy_(torch.from_numpy(scale))
            head.fc.weight.zero_()
            head.fc.weight[:, -n:] = torch.eye(n)
            head.output.weight.copy_(torch.from_numpy(self.output_rows(draft_vocab)))
            norm = self._tensor(OUTPUT_NORM)
            head.output_norm.weight.copy_(torch.from_numpy(self._rows(norm, np.arange(1))[0]))
            for part in (head.attn_output, head.ffn_down):
                part.weight.mul_(BLOCK_SCALE)
        return head
