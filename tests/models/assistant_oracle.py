"""An oracle in numpy for the assistants of tiny_assistant, over K and V that it computes from the
states of a model's blocks."""

import math

import numpy as np
from head_oracle import Oracle, normed
from tiny_assistant import BASES, N_EMBD, N_HEAD, N_ROT, SIZES, WINDOW


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turned(x, positions, has_window, factors):
    """The first values of each head turned by the row's position. x: [n_rows, n_head, size]."""
    n_rot = N_ROT[has_window]
    slow = 1.0 if has_window else factors[: n_rot // 2]
    speeds = BASES[has_window] ** (-np.arange(0, n_rot, 2) / n_rot) / slow
    turn = np.exp(1j * np.asarray(positions)[:, None] * speeds)[:, None]
    a, b = np.split(x[..., :n_rot], 2, -1)
    z = (a + 1j * b) * turn
    return np.concatenate([z.real, z.imag, x[..., n_rot:]], -1)


class Assistant(Oracle):
    def __init__(self, context, model_weights, weights, pair):
        self._context, self._pair = context, pair
        self._model, self._w = model_weights, weights
        self._cells = {}

    def rows(self, text):
        """One row: the last token, and the state that the model left after those before it."""
        self._context.sequence().drop()
        tokens, n = list(text[:-1]), self._pair.n_layer
        left = self._context.decode(tokens, hidden_at=tuple(range(1, n + 1))).hidden
        states = np.asarray(left, np.float64).reshape(len(tokens), n, N_EMBD)
        self._cells = {w: self._keys_and_values(states, w) for w in set(self._pair.windows)}
        return [text[-1]], normed(states[-1:, -1], self._model["output_norm.weight"])

    def _keys_and_values(self, states, has_window):
        source = self._pair.source(has_window)
        w, block = self._model, f"blk.{source}."
        x = normed(states[:, source - 1], w[f"{block}attn_norm.weight"])
        shape = (len(x), self._pair.n_head_kv[has_window], SIZES[has_window])
        k = (x @ w[f"{block}attn_k.weight"].T).reshape(shape)
        values = w.get(f"{block}attn_v.weight")
        v = normed(k if values is None else (x @ values.T).reshape(shape))
        k = normed(k, w[f"{block}attn_k_norm.weight"])
        k = turned(k, range(len(x)), has_window, w["rope_freqs.weight"])
        return tuple(np.repeat(each, N_HEAD // shape[1], 1) for each in (k, v))

    def run(self, tokens, given):
        """All rows are at the position of the first one, and see K and V before it."""
        w = self._w
        embedded = math.sqrt(N_EMBD) * self._model["token_embd.weight"][tokens[-1]]
        x = w["nextn.pre_projection.weight"] @ np.concatenate([embedded, given[-1]])
        for block, has_window in enumerate(self._pair.windows):
            of_block = {
                name.removeprefix(f"blk.{block}."): data
                for name, data in w.items()
                if name.startswith(f"blk.{block}.")
            }
            x = self._through(x, of_block, has_window)
        last = normed(x, w["output_norm.weight"])
        return w["nextn.post_projection.weight"] @ last, w["token_embd.weight"] @ last

    def _through(self, x, w, has_window):
        mixed = self._attended(normed(x, w["attn_norm.weight"]), w, has_window)
        y = x + normed(mixed, w["post_attention_norm.weight"])
        z = normed(y, w["ffn_norm.weight"])
        fed = w["ffn_down.weight"] @ (gelu(w["ffn_gate.weight"] @ z) * (w["ffn_up.weight"] @ z))
        left = y + normed(fed, w["post_ffw_norm.weight"])
        return left * w["layer_output_scale.weight"]

    def _attended(self, x, w, has_window):
        k, v = self._cells[has_window]
        q = (w["attn_q.weight"] @ x).reshape(1, N_HEAD, SIZES[has_window])
        q = normed(q, w["attn_q_norm.weight"])
        q = turned(q, [len(k)], has_window, self._w["rope_freqs.weight"])[0]
        scores = np.einsum("hd,nhd->hn", q, k)
        if has_window:
            scores = np.where(np.arange(len(k)) > len(k) - WINDOW, scores, -np.inf)
        p = np.exp(scores - scores.max(1, keepdims=True))
        mixed = np.einsum("hn,nhd->hd", p / p.sum(1, keepdims=True), v)
        return w["attn_output.weight"] @ mixed.reshape(-1)
