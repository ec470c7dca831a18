"""An oracle in numpy for the heads of tiny_dflash, over the states of a model's blocks."""

import math

import numpy as np
from head_oracle import Oracle, normed
from tiny_dflash import BLOCKS, GROUP, MASK, N_HEAD, N_LAYER, WINDOW

from tools.models.tiny_archs import HEAD_DIM


def turned(x, positions):
    """Each head turned by the row's position. x: [n_rows, n_head, size]."""
    speeds = 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turn = np.exp(1j * np.asarray(positions)[:, None] * speeds)[:, None]
    a, b = np.split(x, 2, -1)
    z = (a + 1j * b) * turn
    return np.concatenate([z.real, z.imag], -1)


class Block(Oracle):
    def __init__(self, context, weights, kind, embedding, output):
        self._context, self._w, self._kind = context, weights, kind
        self._embedding = weights.get("token_embd.weight", embedding)
        self._output = weights.get("output.weight", output)
        self._n_vocab = len(embedding)
        if kind.n_candidates:
            self.tolerance = 0.03  # scores are larger, and the last candidate may be another
        self._block = iter(())

    def rows(self, text):
        """The block that follows a text; its rows are given one after another by ``run``."""
        self._context.sequence().drop()
        left = self._context.decode(text[:-1], hidden_at=BLOCKS, outputs="none").hidden
        w, kind = self._w, self._kind
        states = np.asarray(left, np.float64) @ w["fc.weight"].T
        states = normed(states, w["enc.output_norm.weight"])
        x = self._embedding[[text[-1], *[MASK] * (kind.n_block - 1)]].astype(np.float64)
        for block in range(N_LAYER):
            prefix = f"blk.{block}."
            own = {n.removeprefix(prefix): d for n, d in w.items() if n.startswith(prefix)}
            x = self._through(x, states, own, bool(kind.windows) and kind.windows[block])
        x = normed(x, w["output_norm.weight"])
        logits = self._transformed(x @ self._output.T)
        first = 0 if kind.has_markov and kind.from_first is not False else 1
        self._block = iter(zip(logits[first:], x[first:], strict=True))
        return [text[-1]], np.zeros((1, 1))

    def run(self, tokens, given):
        own, x = next(self._block)
        if self._kind.has_markov:
            before = self._w["markov_w1.weight"][tokens[-1]]
            own = own + self._w["markov_w2.weight"] @ before
            if self._kind.has_confidence:
                found = self._w["conf_proj.weight"] @ [*x, *before] + self._w["conf_proj.bias"]
                self.confidence = 1 / (1 + np.exp(-found[0]))
        logits = np.full(self._n_vocab, -np.inf)
        logits[self._w.get("d2t", np.arange(len(own)))] = own
        return np.zeros(1), self._scored(logits, x, tokens[-1])

    def _transformed(self, logits):
        scaled = logits * (self._kind.scale or 1)
        cap = self._kind.cap
        return np.tanh(scaled / cap) * cap if cap else scaled

    def _scored(self, logits, x, previous):
        """The scores of the likeliest tokens of a row when they follow a token."""
        n, w = self._kind.n_candidates, self._w
        if not n:
            return logits
        found = np.argsort(logits)[-n:]
        gate = w["selector_hidden.weight"] @ x
        pairs = w["selector_successor.weight"][found] @ (
            w["selector_predecessor.weight"][previous] * gate
        )
        scored = np.full_like(logits, -np.inf)
        scored[found] = logits[found] + pairs
        return scored

    def _mixed(self, x, given, w, part, side):
        """Each row of a block mixed with those before it, by coefficients that depend on `given`,
        the input of a part of the block; side 0 comes before the part, 1 after it."""
        if not self._kind.n_candidates:
            return x
        found = (given @ w[f"{part}_conv_proj.weight"].T).reshape(len(x), 2, self._kind.kernel, -1)
        weights = w[f"{part}_conv_base"][side] + np.repeat(found[:, side], GROUP, -1)
        taps = range(min(self._kind.kernel, len(x)))
        return sum(
            weights[:, tap] * np.vstack([np.zeros((tap, x.shape[1])), x[: len(x) - tap]])
            for tap in taps
        )

    def _through(self, x, states, w, has_window):
        given = normed(x, w["attn_norm.weight"])
        mixed = self._attended(self._mixed(given, given, w, "attn", 0), states, w, has_window)
        mixed = self._mixed(mixed, given, w, "attn", 1)
        if self._kind.has_post_norms:
            mixed = normed(mixed, w["post_attention_norm.weight"])
        y = x + mixed
        fed_with = normed(y, w["ffn_norm.weight"])
        z = self._mixed(fed_with, fed_with, w, "ffn", 0)
        gate = z @ w["ffn_gate.weight"].T
        fed = (gate / (1 + np.exp(-gate)) * (z @ w["ffn_up.weight"].T)) @ w["ffn_down.weight"].T
        fed = self._mixed(fed, fed_with, w, "ffn", 1)
        if not self._kind.has_post_norms:
            return y + fed
        return (y + normed(fed, w["post_ffw_norm.weight"])) * w["layer_output_scale.weight"]

    def _attended(self, x, states, w, has_window):
        kind, n, n_all = self._kind, len(states), len(states) + len(x)
        seen = np.vstack([states, x])
        k = (seen @ w["attn_k.weight"].T).reshape(n_all, kind.n_head_kv, HEAD_DIM)
        v = (seen @ w["attn_v.weight"].T).reshape(k.shape) if kind.has_values else normed(k)
        k = turned(normed(k, w["attn_k_norm.weight"]), range(n_all))
        q = (x @ w["attn_q.weight"].T).reshape(len(x), N_HEAD, HEAD_DIM)
        q = turned(normed(q, w["attn_q_norm.weight"]), range(n, n_all))
        k, v = (np.repeat(each, N_HEAD // kind.n_head_kv, 1) for each in (k, v))
        scores = np.einsum("qhd,nhd->hqn", q, k) / math.sqrt(HEAD_DIM)
        distance = np.arange(n, n_all)[:, None] - np.arange(n_all)
        hidden = (distance >= WINDOW) & has_window | (distance < 0) & bool(kind.is_causal)
        scores = np.where(hidden, -np.inf, scores)
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - top)
        sinks = np.exp(w["attn_sinks.weight"][:, None, None] - top) if kind.has_sinks else 0
        mixed = np.einsum("hqn,nhd->qhd", p / (p.sum(-1, keepdims=True) + sinks), v)
        return mixed.reshape(len(x), -1) @ w["attn_output.weight"].T
