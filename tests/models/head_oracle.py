"""Helpers for tests of draft heads: texts drafted with a head, and an oracle in numpy that computes
what a head drafts."""

import math
from abc import ABC, abstractmethod
from types import SimpleNamespace

import command_line
import numpy as np
import pytest
import tiny_head
from gguf import GGUFReader

from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.runtime.sampling import Sampler, SamplingParams
from pyselfspec.speculate.batching import batch_steps, generate_steps, run_steps
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.drafters import head
from pyselfspec.speculate.generation import Generation
from pyselfspec.speculate.residual import Residual
from tools.models.tiny_archs import HEAD_DIM, NORM_EPS

GREEDY = SamplingParams(temperature=0)
SEEDED = SamplingParams(temperature=0.8, seed=7)
WHOLE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
each_sampling = pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
N_PREDICT = 24
PROMPT = [1, 300, 290, 281, 270, 300, 290, 281, 295, 300]
LONG_PROMPT = [1, *(270 + i * i % 41 for i in range(80))]
COUNTED = range(20, 26)  # a prompt for a model that counts
OWN = "own"  # in the place of a path: the model's own head


def knowing_head(target, folder):
    """A head that is often right about a tiny model, quantized."""
    weights = {t.name: np.array(t.data) for t in GGUFReader(target).tensors}
    known = tiny_head.knowing_weights(weights)
    return tiny_head.write(folder / "knowing.gguf", known, n_head_kv=2, qtype="Q8_0")


def drafter_of(context, path):
    return head.make(context, head.Options(None if path == OWN else path))


def require_refused(context, path, kind, why):
    """Require an error of one line from a head for a context; return its text."""
    with pytest.raises(kind, match=why) as error:
        drafter_of(context, path)
    assert "\n" not in str(error.value)
    return str(error.value)


def steps(
    context,
    path,
    prompt=PROMPT,
    n_max=4,
    sampling=GREEDY,
    n_predict=N_PREDICT,
    **options,
):
    """Steps of a text with a head, with another drafter or without drafts."""
    made = {
        "drafter": drafter_of(context, path) if path else None,
        "controller": Fixed(n_max, p_min=0),
        "sampler": Sampler(context.model, sampling),
    }
    return list(generate_steps(context, prompt, n_predict=n_predict, **(made | options)))


def drawn_steps(context, path, prompt=PROMPT):
    """Steps with draft tokens that are drawn."""
    with Sampler(context.model, WHOLE) as sampler, Sampler(context.model, WHOLE) as for_drafts:
        text = Generation(
            context.sequence(),
            prompt,
            drafter=drafter_of(context, path),
            controller=Fixed(4, p_min=0),
            sampler=sampler,
            n_predict=N_PREDICT,
            residual=Residual(for_drafts, 7),
        )
        return list(run_steps(context, text))


def tokens_of(found):
    return [token for step in found for token in step.tokens]


def text_in(context, path, prompt, seq_id=0, sampling=GREEDY, n_predict=N_PREDICT, n_max=3):
    return Generation(
        context.sequence(seq_id),
        prompt,
        drafter=drafter_of(context, path),
        controller=Fixed(n_max, p_min=0),
        sampler=Sampler(context.model, sampling),
        n_predict=n_predict,
    )


def normed(x, weight=1.0):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + NORM_EPS) * weight


def rotated(x):
    """Pairs of neighbours in each head turned by the row's position. x: [n_rows, n_head, size]."""
    n, _, size = x.shape
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def attended(x, w):
    """Return the output of attention for the last row. x: [n_rows, n_in]."""
    q, k, v = ((x @ w[f"attn_{c}.weight"].T).reshape(len(x), -1, HEAD_DIM) for c in "qkv")
    shared = q.shape[1] // k.shape[1]
    k, v = np.repeat(rotated(k), shared, 1), np.repeat(v, shared, 1)
    scores = np.einsum("hd,nhd->hn", rotated(q)[-1], k) / math.sqrt(HEAD_DIM)
    p = np.exp(scores - scores.max(1, keepdims=True))
    mixed = np.einsum("hn,nhd->hd", p / p.sum(1, keepdims=True), v).reshape(-1)
    return mixed @ w["attn_output.weight"].T


def fed_forward(z, gate, up, down):
    x = gate @ z
    return down @ (x / (1 + np.exp(-x)) * (up @ z))


class Oracle(ABC):
    """A head in numpy, over the states of a context of its own.

    tolerance: by how much probabilities may differ, as K and V have few digits.
    confidence: predicted probability that the token of the last row is accepted; None: the token's
        own probability is all that is known.
    """

    tolerance = 0.01
    confidence = None

    @abstractmethod
    def rows(self, text):
        """Tokens, and the states that led to them, float [n_rows, n_embd], of the rows that a text
        has known so far."""

    @abstractmethod
    def run(self, tokens, given):
        """States that the last of these rows leaves, and logits over the model's vocabulary."""

    def require(self, history, draft):
        """The draft is the head's: each token of its chain the likeliest one behind those before
        it, up to the precision of K and V, with its probability; or drawn from the head's
        distribution."""
        tokens, given = self.rows(history)
        for each in draft.tokens:
            drafted = each.token
            left, logits = self.run(tokens, given)
            law = np.exp(logits - logits.max())
            law /= law.sum()
            p = law.max()
            if each.distribution is None:
                assert law[drafted] >= law.max() - self.tolerance, (history, draft)
                p = law[drafted]
            else:
                np.testing.assert_allclose(each.distribution, law, atol=self.tolerance)
            p = p if self.confidence is None else self.confidence
            assert each.p == pytest.approx(p, abs=self.tolerance)
            tokens.append(drafted)
            given = np.vstack([given, left])


def require_all(oracle, prompt, found):
    """Every draft of a text is the head's."""
    history = list(prompt)
    assert any(step.draft.tokens for step in found)
    for step in found:
        if step.draft.tokens:
            oracle.require(history, step.draft)
        history += step.tokens


# --- what every kind of head keeps to ----------------------------------------------------------


def followed_turns(context, path, oracle):
    """Require drafts of the oracle in a second turn, in a text that goes its own way in the middle
    and in one that grew without a head. Return how many tokens of the first text the first two of
    them evaluated again."""
    first = [*PROMPT, *tokens_of(steps(context, path))]
    other = [*first[:-20], 282, 285, 300]
    n_again = []
    for turn in ([*first, 299, 283], other):
        text = text_in(context, path, turn)
        require_all(oracle, turn, list(run_steps(context, text)))
        n_again.append(len(first) - text.n_reused)
    grown = [*other, *tokens_of(steps(context, None, other)), 288]
    require_all(oracle, grown, list(run_steps(context, text_in(context, path, grown))))
    return n_again


def require_side_by_side(new_context, model, path, oracle, sampling=GREEDY):
    """Two texts of one context draft on their own, and each is the text that it is alone."""
    context = new_context(model, n_ctx=512)
    prompts = [PROMPT, [*PROMPT[4:], 284, 301, 299]]
    texts = [text_in(context, path, prompt, i, sampling) for i, prompt in enumerate(prompts)]
    found = {id(text): [] for text in texts}
    for events in batch_steps(context, texts):
        for text, step in events:
            found[id(text)] += [step] if step else []
    for text, prompt in zip(texts, prompts, strict=True):
        require_all(oracle, prompt, found[id(text)])
        plain = steps(new_context(model), None, prompt, sampling=sampling)
        assert text.history[len(prompt) :] == tokens_of(plain)


def steps_with_gaps(context, path, prompt, sampling=GREEDY):
    """Steps of a text in which, for a while, more tokens pass by without drafts than may wait."""
    lengths, controller = iter([2] * 3 + [0] * 50 + [4] * 100), Fixed(4, p_min=0)
    sometimes = SimpleNamespace(
        limit=lambda _n_past: controller.limit(0).capped(next(lengths)), observe=lambda _step: None
    )
    return steps(context, path, prompt, sampling=sampling, n_predict=80, controller=sometimes)


def require_same_pass(new_context, model, last, several, n_embd):
    """States for a head do not change a pass. Rows without an output leave them, too, and a graph
    that leaves none is another one.

    last, several: blocks whose states leave the pass.
    """
    context, other = new_context(model), new_context(model)
    want = other.run(Rows.of(0, 0, PROMPT, "last")).logits
    states = []
    for leave in (None, last, several, None):
        context.sequence().drop()
        decoded = context.run(Rows.of(0, 0, PROMPT, "last"), Pass(leave=leave))
        assert np.array_equal(decoded.logits, want)
        states += [] if leave is None else [decoded.hidden.numpy()[:, -n_embd:]]
    assert np.array_equal(*states)


def require_no_model(path):
    """A head is refused by commands that need a model."""
    for command in (["models", "info", path], ["generate", path, "-p", "a"]):
        refused = command_line.run(*command)
        assert (refused.status, refused.stdout) == (1, "")
        assert "is a draft head, which cannot generate text alone" in refused.stderr
