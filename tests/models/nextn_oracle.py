"""An oracle in numpy for the blocks after the others, of each kind in tiny_nextn."""

import math
from contextlib import ExitStack, contextmanager

import numpy as np
import tiny_nextn
from head_oracle import Oracle, fed_forward, normed
from tiny_nextn import (
    LATENT,
    N_EXPERT,
    N_GROUPS,
    N_HEAD,
    N_HEAD_KV,
    N_LAYER,
    N_PLAIN_LATENT,
    N_ROT_LATENT,
    N_SINKHORN,
    N_STREAMS,
    STREAMS_EPS,
    WINDOW,
    has_experts,
)

from pyselfspec import Model
from tools.models.tiny_archs import HEAD_DIM, NORM_EPS


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def turned(x, kind, sign=1):
    """The first n_rot values of each head turned by the row's position. x: [n_rows, n_head,
    size]."""
    part, rest = x[..., : kind.n_rot], x[..., kind.n_rot :]
    angles = np.arange(len(x))[:, None] * kind.base ** (-np.arange(0, kind.n_rot, 2) / kind.n_rot)
    turn = np.exp(sign * 1j * angles)[:, None]
    if kind.neighbours:
        z = (part[..., 0::2] + 1j * part[..., 1::2]) * turn
        part = np.stack([z.real, z.imag], -1).reshape(part.shape)
    else:
        a, b = np.split(part, 2, -1)
        z = (a + 1j * b) * turn
        part = np.concatenate([z.real, z.imag], -1)
    return np.concatenate([part, rest], -1)


def shares(scores, kind, sinks=None):
    """Shares of the rows, for each head, in what the last row takes. scores: [n_head, n_rows]."""
    if kind.has_window:
        scores = np.where(np.arange(scores.shape[1]) > scores.shape[1] - 1 - WINDOW, scores, -1e30)
    top = scores.max(1, keepdims=True)
    p = np.exp(scores - top)
    others = 0 if sinks is None else np.exp(sinks[:, None] - top)
    return p / (p.sum(1, keepdims=True) + others)


def attended(x, w, kind):
    """Return what attention adds to the last row. x: [n_rows, n_in], normed."""
    if kind.attention == "latent":
        return attended_latent(x, w, kind)
    if kind.attention == "fused":
        sizes = np.cumsum([N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM])
        projected = np.split(x @ w["attn_qkv.weight"].T, sizes, 1)
    else:
        projected = [x @ w[f"attn_{c}.weight"].T for c in "qkv"]
    q, k, v = (each.reshape(len(x), -1, HEAD_DIM) for each in projected)
    if kind.attention == "gated":
        q, gates = q[:, 0::2], sigmoid(q[-1, 1::2])
    if kind.has_qk_norm:
        q, k = normed(q, w["attn_q_norm.weight"]), normed(k, w["attn_k_norm.weight"])
    q, k = turned(q, kind)[-1], np.repeat(turned(k, kind), N_HEAD // N_HEAD_KV, 1)
    v = np.repeat(v, N_HEAD // N_HEAD_KV, 1)
    scores = np.einsum("hd,nhd->hn", q, k) / math.sqrt(HEAD_DIM)
    mixed = np.einsum("hn,nhd->hd", shares(scores, kind, w.get("attn_sinks.weight")), v)
    if kind.attention == "gated":
        mixed = mixed * gates
    if kind.has_gates:
        mixed = mixed * sigmoid(w["attn_gate.weight"] @ x[-1])[:, None]
    return kind.value_scale * (w["attn_output.weight"] @ mixed.reshape(-1))


def attended_latent(x, w, kind):
    low = normed(x @ w["attn_q_a.weight"].T, w["attn_q_a_norm.weight"])
    q = (low @ w["attn_q_b.weight"].T).reshape(len(x), N_HEAD, -1)
    q_plain, q_turned = q[-1, :, :N_PLAIN_LATENT], turned(q[..., N_PLAIN_LATENT:], kind)[-1]
    compressed = x @ w["attn_kv_a_mqa.weight"].T
    latent = normed(compressed[:, :LATENT], w["attn_kv_a_norm.weight"])
    k_turned = turned(compressed[:, None, LATENT:], kind)[:, 0]
    k_plain = np.einsum("hld,nl->nhd", w["attn_k_b.weight"], latent)
    scores = np.einsum("hd,nhd->hn", q_plain, k_plain) + q_turned @ k_turned.T
    scores /= math.sqrt(N_PLAIN_LATENT + N_ROT_LATENT)
    v = np.einsum("hdl,nl->nhd", w["attn_v_b.weight"], latent)
    mixed = np.einsum("hn,nhd->hd", shares(scores, kind), v)
    if kind.has_gates:
        mixed = mixed * sigmoid(w["attn_gate.weight"] @ x[-1])[:, None]
    return w["attn_output.weight"] @ mixed.reshape(-1)


def turned_end(x, kind, sign=1):
    """The last n_rot values of each head turned."""
    plain, end = x[..., : -kind.n_rot], x[..., -kind.n_rot :]
    return np.concatenate([plain, turned(end, kind, sign)], -1)


def attended_grouped(x, w, kind):
    low = normed(x @ w["attn_q_a.weight"].T, w["attn_q_a_norm.weight"])
    q = normed((low @ w["attn_q_b.weight"].T).reshape(len(x), N_HEAD, -1))
    kv = normed(x @ w["attn_kv.weight"].T, w["attn_kv_a_norm.weight"])
    q, kv = turned_end(q, kind), turned_end(kv[:, None], kind)[:, 0]
    scores = np.einsum("hd,nd->hn", q[-1], kv) / math.sqrt(HEAD_DIM)
    mixed = np.zeros_like(q)
    mixed[-1] = shares(scores, kind, w["attn_sinks.weight"]) @ kv
    groups = turned_end(mixed, kind, -1)[-1].reshape(N_GROUPS, -1)
    low = np.einsum("glk,gk->gl", w["attn_output_a.weight"], groups)
    return w["attn_output_b.weight"] @ low.reshape(-1)


def squared(z, up, down):
    return down @ np.maximum(up @ z, 0) ** 2


def fed_through(z, w, kind, number):
    if not has_experts(kind, number):
        return fed_forward(z, *(w[f"ffn_{part}.weight"] for part in ("gate", "up", "down")))
    share = w["ffn_gate_inp.weight"] @ z
    if kind.has_streams:
        share = np.sqrt(np.log1p(np.exp(share)))
    else:
        share = np.exp(share) if kind.has_qwen_experts else sigmoid(share)
    fed = squared if kind.is_nemotron else fed_forward
    parts = [f"ffn_{part}_{{}}.weight" for part in ("gate", "up", "down")[kind.is_nemotron :]]
    found = fed(z, *(w[part.format("shexp")] for part in parts))
    if kind.has_qwen_experts:
        found = found * sigmoid(w["ffn_gate_inp_shexp.weight"] @ z)
    for i in range(N_EXPERT):
        expert = (w[part.format("exps")][i] for part in parts)
        found = found + share[i] / share.sum() * fed(z, *expert)
    return found / 2 if kind.arch == "cohere2moe" else found


class OwnHead(Oracle):
    """The head in a model's file: its input is a token and the state of the token before it."""

    def __init__(self, context, weights, kind, number=N_LAYER):
        """number: of the block."""
        self._context, self._kind, self._number = context, kind, number
        block = f"blk.{number}."
        self._w = {n.removeprefix(block): w for n, w in weights.items() if n.startswith(block)}
        self._embedding, self._output, self._last_norm = (
            self._w.get(f"nextn.{name}.weight", weights[f"{model_name}.weight"])
            for name, model_name in (
                ("embed_tokens", "token_embd"),
                ("shared_head_head", "output"),
                ("shared_head_norm", "output_norm"),
            )
        )
        if kind.head_norm:
            self._last_norm = self._w[f"{kind.head_norm}.weight"]
        self._model_output = weights["output.weight"]
        self._model_norm = weights["output_norm.weight"]

    def _normed(self, x, weight, mean_norm=None):
        if self._kind.mean_norm if mean_norm is None else mean_norm:
            x = x - x.mean(-1, keepdims=True)
            return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + NORM_EPS) * weight
        return normed(x, weight)

    def rows(self, text):
        self._context.sequence().drop()
        states = self._states(text[:-1])
        return list(text), np.vstack([np.zeros_like(states[:1]), states])

    def _states(self, tokens):
        if self._kind.is_nemotron:  # its last states cannot be copied, but follow from the logits
            logits = self._context.decode(tokens).logits
            return np.linalg.lstsq(self._model_output, logits.T.astype(np.float64))[0].T
        left = self._context.decode(tokens, hidden_at=N_LAYER).hidden
        states = np.asarray(left, np.float64)
        return self._normed(states, self._model_norm) if self._kind.reads_normed else states

    def run(self, tokens, given):
        w, kind = self._w, self._kind
        embedded = self._normed(self._embedding[tokens], w["nextn.enorm.weight"])
        states = self._normed(given, w["nextn.hnorm.weight"])
        x = np.hstack([embedded, states]) @ w["nextn.eh_proj.weight"].T
        inner = self._normed(x, w["attn_norm.weight"])
        y = x[-1] + attended(inner, w, kind)
        z = inner[-1] if kind.is_parallel else self._normed(y, w[f"{kind.post_norm}.weight"])
        left = y + fed_through(z, w, kind, self._number)
        last = self._normed(left, self._last_norm, kind.mean_norm or kind.is_nemotron)
        return last if kind.reads_normed else left, kind.logit_scale * (self._output @ last)


class StreamsHead(OwnHead):
    """The head of a model with hyper-connections (Zhu et al., "Hyper-Connections",
    https://arxiv.org/abs/2409.19606; with mixtures that are doubly stochastic)."""

    def __init__(self, context, weights, kind):
        super().__init__(context, weights, kind)
        parts = ("fn", "base", "scale")
        self._last = tuple(weights[f"output_hc_{part}.weight"] for part in parts)

    def _states(self, tokens):
        left = self._context.decode(tokens, hidden_at=N_LAYER + 1).hidden
        return np.asarray(left, np.float64)

    def run(self, tokens, given):
        w, kind = self._w, self._kind
        embedded = normed(self._embedding[tokens], w["nextn.enorm.weight"])
        embedded = np.repeat(embedded[:, None], N_STREAMS, 1)
        states = normed(given.reshape(len(given), N_STREAMS, -1), w["nextn.hnorm.weight"])
        x = np.concatenate([embedded, states], -1) @ w["nextn.eh_proj.weight"].T
        inner = np.stack([connected(row, w, "attn")[0] @ row for row in x])
        left = x[-1]
        for part in ("attn", "ffn"):
            share, out, among = connected(left, w, part)
            if part == "attn":
                added = attended_grouped(normed(inner, w["attn_norm.weight"]), w, kind)
            else:
                read = normed(share @ left, w["ffn_norm.weight"])
                added = fed_through(read, w, kind, self._number)
            left = out[:, None] * added + among.T @ left
        fn, base, scale = self._last
        share = sigmoid(fn @ normed(left.reshape(-1)) * scale + base) + STREAMS_EPS
        return left.reshape(-1), self._output @ normed(share @ left, self._last_norm)


def connected(x, w, part):
    """How much of each stream a sublayer reads, how much of its output each takes, and how much
    each takes of the others, [from, to]. x: [n_streams, n_embd]."""
    fn, base, scale = (w[f"hc_{part}_{name}.weight"] for name in ("fn", "base", "scale"))
    sizes = np.cumsum([N_STREAMS, N_STREAMS])
    pairs = zip(np.split(fn @ normed(x.reshape(-1)), sizes), np.split(base, sizes), strict=True)
    read, taken, among = (each * s + b for (each, b), s in zip(pairs, scale, strict=True))
    among = np.exp(among.reshape(N_STREAMS, N_STREAMS))
    among = among / among.sum(1, keepdims=True) + STREAMS_EPS
    for i in range(N_SINKHORN):
        if i:
            among = among / (among.sum(1, keepdims=True) + STREAMS_EPS)
        among = among / (among.sum(0, keepdims=True) + STREAMS_EPS)
    return sigmoid(read) + STREAMS_EPS, 2 * sigmoid(taken), among


class Chain(Oracle):
    """Several heads in a model's file, one for each draft position. The last drafts on alone."""

    def __init__(self, context, weights, kind):
        self._heads = [OwnHead(context, weights, kind, N_LAYER + k) for k in range(kind.n_nextn)]
        self._text, self._given, self._known = [], [], {}

    def rows(self, text):
        """Every row of block k, of which row j reads token j + k and what block k - 1 left in row
        j."""
        tokens, given = self._heads[0].rows(text)
        self._text, self._given = list(text), [given]
        return tokens, given

    def run(self, tokens, given):
        k = len(tokens) - len(self._text)
        if k >= len(self._heads):
            n_more = k - len(self._heads) + 1
            own = np.vstack([self._given[len(self._heads) - 1], given[len(given) - n_more :]])
            return self._heads[-1].run(tokens[len(self._heads) - 1 :], own)
        rows = [self._row(k, tokens, j) for j in range(len(self._text))]
        self._given.append(np.stack([left for left, _ in rows]))
        return rows[-1]

    def _row(self, k, tokens, j):
        """State and logits of row j of block k, which depend on the tokens before it only."""
        key = (k, *tokens[: j + k + 1])
        if key not in self._known:
            read = tokens[k : j + k + 1]
            self._known[key] = self._heads[k].run(read, self._given[k][: j + 1])
        return self._known[key]


@contextmanager
def opened_models(folder):
    """Yield a function that returns the loaded model of a kind, with random weights."""
    models = {}
    with ExitStack() as stack:

        def model(kind):
            if kind not in models:
                path = folder / f"{len(models)}.gguf"
                tiny_nextn.write(path, tiny_nextn.weights(kind), kind)
                models[kind] = stack.enter_context(Model(path))
            return models[kind]

        yield model


def oracle_of(context, weights, kind):
    if kind.has_streams:
        return StreamsHead(context, weights, kind)
    return (Chain if kind.n_nextn > 1 else OwnHead)(context, weights, kind)
