"""A model of the llama architecture in torch, from a GGUF file: writes many texts at once, and
returns hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from gguf import quants
from torch import Tensor
from torch.nn import functional as F

from pyselfspec.convert.stream import Source

MATRICES = (
    *("attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_gate", "ffn_up", "ffn_down"),
)
N_PREFILL = 256  # texts whose prompts are read at once
CHECK_EVERY = 16  # tokens between two looks at which texts have ended
KEEP_ABOVE = 0.75  # share of running texts below which ended ones are taken out of the batch


class TorchLlama:
    """Weights in bfloat16, states between sublayers in float32.

    Raises KeyError for a file of another architecture.
    """

    def __init__(self, source: Source, device: str) -> None:
        self.device = device
        self._dtype = torch.bfloat16
        tensors = {tensor.name: tensor for tensor in source.tensors}

        def load(name: str) -> Tensor:
            stored = tensors[f"{name}.weight"]
            values = np.array(quants.dequantize(stored.rows, stored.type), np.float32)
            return torch.from_numpy(values.reshape(stored.rows.shape[0], -1)).to(device)

        def norm(name: str) -> Tensor:
            return load(name).flatten()

        file = source.file
        self.n_blocks = file.n_layer
        self._n_head = file.n_head
        self._n_kv = int(source.value(source.key("attention.head_count_kv")))
        self._eps = float(source.value(source.key("attention.layer_norm_rms_epsilon")))
        base = float(source.value(source.key("rope.freq_base")) or 10000.0)
        self._blocks = []
        for i in range(self.n_blocks):
            block = {name: load(f"blk.{i}.{name}").to(self._dtype) for name in MATRICES}
            block |= {name: norm(f"blk.{i}.{name}") for name in ("attn_norm", "ffn_norm")}
            self._blocks.append(block)
        self._embedding = load("token_embd").to(self._dtype)
        tied = "output.weight" not in tensors
        self._output = self._embedding if tied else load("output").to(self._dtype)
        self._output_norm = norm("output_norm")
        self.n_vocab, self.n_embd = self._embedding.shape
        self._size = self._blocks[0]["attn_q"].shape[0] // self._n_head
        speeds = base ** (-torch.arange(0, self._size, 2, device=device) / self._size)
        self._speeds = speeds.float()
        self._eos = int(source.value("tokenizer.ggml.eos_token_id"))

    #
    # parts of a pass
    #

    def embeddings(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self._embedding).float()

    def logits(self, final: Tensor) -> Tensor:
        """Return the logits, float32, of states that ``states`` returned last."""
        x = self._norm(final, self._output_norm)
        if x.device.type != "cuda":
            return F.linear(x, self._output).float()
        # rounded to bfloat16, the two likeliest tokens are often equal
        product = torch.mm(x.flatten(0, -2), self._output.T, out_dtype=torch.float32)
        return product.unflatten(0, x.shape[:-1])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self._eps) * weight
        return y.to(self._dtype)

    def _rotate(self, x: Tensor, turn: Tensor) -> Tensor:
        """Rotate neighbouring pairs. x: [n_lines, n_rows, n_head, head_size]."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2).to(self._dtype)

    def _turn(self, at: Tensor) -> Tensor:
        """Return rotations by position, complex [n_lines, n_rows, 1, head_size / 2]."""
        angles = at[..., None].float() * self._speeds
        return torch.polar(torch.ones_like(angles), angles)[:, :, None]

    def _qkv(self, block: dict[str, Tensor], x: Tensor, turn: Tensor) -> tuple[Tensor, ...]:
        y = self._norm(x, block["attn_norm"])
        q, k, v = (
            F.linear(y, block[name]).unflatten(-1, (-1, self._size))
            for name in ("attn_q", "attn_k", "attn_v")
        )
        return self._rotate(q, turn), self._rotate(k, turn), v

    def _rest(self, block: dict[str, Tensor], x: Tensor, attended: Tensor) -> Tensor:
        x = x + F.linear(attended.flatten(-2), block["attn_output"])
        y = self._norm(x, block["ffn_norm"])
        return x + F.linear(
            F.silu(F.linear(y, block["ffn_gate"])) * F.linear(y, block["ffn_up"]), block["ffn_down"]
        )

    #
    # whole texts
    #

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def states(
        self, tokens: Tensor, texts: Tensor, at: Tensor, blocks: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return the concatenated input states of blocks, [n_lines, n_rows, n_features], and the
        states after the last block.

        tokens, texts, at: token, number of the text and position in it of each row, int64
            [n_lines, n_rows].
        """
        causal = torch.ones(tokens.shape[1:] * 2, dtype=torch.bool, device=self.device).tril()
        visible = ((texts[:, :, None] == texts[:, None, :]) & causal)[:, None]
        turn, x = self._turn(at), self.embeddings(tokens)
        kept = []
        for i, block in enumerate(self._blocks):
            if i in blocks:
                kept.append(x)
            q, k, v = (each.transpose(1, 2) for each in self._qkv(block, x, turn))
            x = self._rest(block, x, self._attend(q, k, v, visible))
        return torch.cat(kept, -1), x

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        """Return attention outputs, [n_lines, n_rows, n_head, head_size], of heads that share
        keys."""
        k, v = (each.repeat_interleave(self._n_head // self._n_kv, 1) for each in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2)

    #
    # writing
    #

    def ends(self, text: Sequence[int]) -> bool:
        return bool(text) and text[-1] == self._eos

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def write(
        self, prompts: Sequence[Sequence[int]], n_max: int, temperatures: Sequence[float]
    ) -> list[list[int]]:
        """Return at most n_max tokens after each prompt, up to the end of the text and with it;
        greedy at temperature 0. Prompts of similar lengths beside each other are read faster."""
        n_text, n_read = len(prompts), max(map(len, prompts))
        tokens = torch.zeros(n_text, n_read + n_max, dtype=torch.int64, device=self.device)
        first = torch.tensor([n_read - len(prompt) for prompt in prompts], device=self.device)
        for i, prompt in enumerate(prompts):  # prompts end in the same column
            tokens[i, n_read - len(prompt) : n_read] = torch.tensor(prompt)
        heat = torch.tensor(temperatures, device=self.device)[:, None]
        cache = _Cache(self, n_text, n_read + n_max)
        final = self._read(cache, tokens[:, :n_read], first)
        tokens[:, n_read] = self._sample(final, heat)
        rows = torch.arange(n_text, device=self.device)  # texts that go on
        for column in range(n_read, n_read + n_max - 1):
            if (column - n_read) % CHECK_EVERY == 0:
                going = ~(tokens[rows, n_read : column + 1] == self._eos).any(1)
                n_going = int(going.sum())
                if not n_going:
                    break
                if n_going < KEEP_ABOVE * len(rows):
                    rows = rows[going]
                    cache.keep(going)
            final = self._step(cache, tokens[rows, column], column, first[rows])
            tokens[rows, column + 1] = self._sample(final, heat[rows])
        return [self._cut(text) for text in tokens[:, n_read:].tolist()]

    def _cut(self, text: list[int]) -> list[int]:
        return text[: text.index(self._eos) + 1] if self._eos in text else text

    def _read(self, cache: _Cache, tokens: Tensor, first: Tensor) -> Tensor:
        """Read prompts into the cache and return the last row's states, [n_texts, n_embd]."""
        final, n_rows = [], tokens.shape[1]
        columns = torch.arange(n_rows, device=self.device)
        causal = columns[:, None] >= columns
        bounds = [*range(0, len(tokens), N_PREFILL), len(tokens)]
        for low, high in pairwise(bounds):
            part = slice(low, high)
            begin = int(first[part].min())
            at = columns[begin:] - first[part, None]
            seen = (columns[begin:] >= first[part, None])[:, None, None]
            own = torch.eye(n_rows - begin, dtype=torch.bool, device=self.device)
            visible = causal[begin:, begin:] & seen | own  # rows before a prompt see themselves
            turn, x = self._turn(at), self.embeddings(tokens[part, begin:])
            for block, (keys, values) in zip(self._blocks, cache.layers, strict=True):
                q, k, v = (each.transpose(1, 2) for each in self._qkv(block, x, turn))
                keys[part, :, begin:n_rows], values[part, :, begin:n_rows] = k, v
                x = self._rest(block, x, self._attend(q, k, v, visible))
            final.append(x[:, -1])
        return torch.cat(final)

    def _step(self, cache: _Cache, tokens: Tensor, column: int, first: Tensor) -> Tensor:
        """Compute one token of every text."""
        visible = torch.arange(column + 1, device=self.device) >= first[:, None]
        visible = visible[:, None, None]
        turn = self._turn(column - first[:, None])
        x = self.embeddings(tokens)[:, None]
        for block, (keys, values) in zip(self._blocks, cache.layers, strict=True):
            q, k, v = self._qkv(block, x, turn)
            keys[:, :, column], values[:, :, column] = k[:, 0], v[:, 0]
            # heads that share keys are rows of one product
            grouped = q[:, 0].unflatten(1, (self._n_kv, -1))
            attended = F.scaled_dot_product_attention(
                grouped, keys[:, :, : column + 1], values[:, :, : column + 1], attn_mask=visible
            )
            x = self._rest(block, x, attended.flatten(1, 2)[:, None])
        return x[:, 0]

    def _sample(self, final: Tensor, heat: Tensor) -> Tensor:
        logits = self.logits(final)
        noise = -torch.log(torch.empty_like(logits).exponential_().clamp_min(1e-20))
        return (logits + heat * noise).argmax(-1)


class _Cache:
    """Keys and values of every block, [n_texts, n_head_kv, n_columns, head_size] each."""

    def __init__(self, model: TorchLlama, n_texts: int, n_columns: int) -> None:
        shape = (n_texts, model._n_kv, n_columns, model._size)
        self.layers = [
            tuple(torch.empty(shape, dtype=model._dtype, device=model.device) for _ in range(2))
            for _ in range(model.n_blocks)
        ]

    def keep(self, rows: Tensor) -> None:
        """Keep only some texts."""
        for i, pair in enumerate(self.layers):
            self.layers[i] = tuple(each[rows] for each in pair)
