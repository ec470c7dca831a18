"""The head that a model's own file brings, a block behind the others: found by itself where it is
known to work, and never in the way."""

import command_line
import numpy as np
import pytest
from head_oracle import (
    GREEDY,
    OWN,
    PROMPT,
    SEEDED,
    Oracle,
    attended,
    fed_forward,
    normed,
    require_all,
    steps,
    text_in,
    tokens_of,
)

from pyselfspec import Completion, Model
from pyselfspec.errors import ArgumentError
from pyselfspec.masks import profiles
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.speculate import drafters
from pyselfspec.speculate.drafters import head
from pyselfspec.speculate.loop import steps_of
from pyselfspec.speculate.prepared import prepared
from pyselfspec.speculate.together import steps_together
from tools.models import tiny_nextn
from tools.models.tiny_nextn import N_EMBD, N_EXPERT, N_LAYER


@pytest.fixture(scope="module")
def weights():
    return tiny_nextn.weights()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nextn")


@pytest.fixture(scope="module")
def model(weights, folder):
    with Model(tiny_nextn.write(folder / "model.gguf", weights)) as model:
        yield model


class OwnHead(Oracle):
    """Of GLM-4.5: a row is a token and what the model's last norm made of the one before it."""

    def __init__(self, context, weights):
        self._context = context
        self._weights = weights
        block = f"blk.{N_LAYER}."
        self._w = {n.removeprefix(block): w for n, w in weights.items() if n.startswith(block)}

    def rows(self, text):
        self._context.sequence().drop()
        left = self._context.decode(text[:-1], hidden_at=N_LAYER).hidden
        states = normed(np.asarray(left, np.float64), self._weights["output_norm.weight"])
        return list(text), np.vstack([np.zeros((1, N_EMBD)), states])

    def run(self, tokens, given):
        w = self._w
        embedded = normed(self._weights["token_embd.weight"][tokens], w["nextn.enorm.weight"])
        states = normed(given, w["nextn.hnorm.weight"])
        x = np.hstack([embedded, states]) @ w["nextn.eh_proj.weight"].T
        y = x[-1] + attended(normed(x, w["attn_norm.weight"]), w, neighbours=False)
        z = normed(y, w["post_attention_norm.weight"])
        share = 1 / (1 + np.exp(-(w["ffn_gate_inp.weight"] @ z)))
        parts = [f"ffn_{part}_{{}}.weight" for part in ("gate", "up", "down")]
        left = y + fed_forward(z, *(w[part.format("shexp")] for part in parts))
        for i in range(N_EXPERT):
            expert = (w[part.format("exps")][i] for part in parts)
            left = left + share[i] / share.sum() * fed_forward(z, *expert)
        left = normed(left, self._weights["output_norm.weight"])
        return left, self._weights["output.weight"] @ left


@pytest.fixture
def oracle(new_context, model, weights):
    return OwnHead(new_context(model, n_batch=256), weights)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_drafts_are_those_of_the_block_behind_the_others(new_context, model, oracle, sampling):
    found = steps(new_context(model), OWN, sampling=sampling, n_predict=40)
    require_all(oracle, PROMPT, found)
    plain = steps(new_context(model), None, sampling=sampling, n_predict=40)
    assert tokens_of(found) == tokens_of(plain)


def test_turns_and_long_prompts_are_followed(new_context, model, oracle):
    context = new_context(model, n_batch=24)
    prompt = [1, *(270 + i * i % 41 for i in range(80))]
    found = steps(context, OWN, prompt)
    require_all(oracle, prompt, found)
    first = [*prompt, *tokens_of(found)]
    for turn in ([*first, 299, 283], [*first[:-15], 282, 285, 300]):
        text = text_in(context, OWN, turn)
        require_all(oracle, turn, list(steps_of(context, text)))
        assert len(first) - 17 <= text.n_reused <= len(first) - 1


def test_texts_side_by_side_have_their_own_drafts(new_context, model, oracle):
    context = new_context(model, n_ctx=512)
    prompts = [PROMPT, [*PROMPT[4:], 284, 301, 299]]
    texts = [text_in(context, OWN, prompt, i) for i, prompt in enumerate(prompts)]
    found = {id(text): [] for text in texts}
    for events in steps_together(context, texts):
        for text, step in events:
            found[id(text)] += [step] if step else []
    for text, prompt in zip(texts, prompts, strict=True):
        require_all(oracle, prompt, found[id(text)])
        plain = steps(new_context(model), None, prompt)
        assert text.history[len(prompt) :] == tokens_of(plain)


def test_states_for_it_do_not_change_a_pass(new_context, model):
    """Rows without an output leave them, too, and a graph that leaves none is another one."""
    context, other = new_context(model), new_context(model)
    want = other.run(Rows.of(0, 0, PROMPT, "last")).logits
    states = []
    for leave in (None, N_LAYER + 1, (1, N_LAYER + 1), None):
        context.sequence().drop()
        decoded = context.run(Rows.of(0, 0, PROMPT, "last"), Pass(leave=leave))
        assert np.array_equal(decoded.logits, want)
        states += [] if leave is None else [decoded.hidden.numpy()[:, -N_EMBD:]]
    assert np.array_equal(*states)


def test_it_is_found_by_itself(new_context, model):
    context = new_context(model)
    assert drafters.suggested(context, None)["head"] == head.Options()
    text = Completion(context, PROMPT, sampling=GREEDY, n_predict=24)
    list(text)
    assert text.tokens == tokens_of(steps(new_context(model), None))


def test_info_names_it(model):
    assert "and the draft head of this file (head)" in command_line.run("info", model.path).stdout


def test_a_mask_that_is_asked_for_goes_first(new_context, model, monkeypatch):
    """Only one drafter can need passes; a mask that is merely known gives way to the head."""
    context, mask = new_context(model), LayerMask(N_LAYER, {1}, {1})
    assert prepared(context).name == "ngram+head"
    assert prepared(context, mask=mask).name == "ngram+layer-skip"
    assert prepared(context, with_mask=True).name == "ngram+layer-skip"
    monkeypatch.setattr(profiles, "mask_for", lambda _model: mask)
    assert prepared(new_context(model)).name == "ngram+head"


@pytest.mark.parametrize("case", ["without the block", "two blocks", "none announced"])
def test_a_model_without_a_head_that_works_has_none(new_context, weights, folder, case):
    last = f"blk.{N_LAYER}."
    tensors, n_nextn = dict(weights), 1
    if case != "two blocks":
        tensors = {name: w for name, w in weights.items() if not name.startswith(last)}
    else:
        more = {n.replace(last, f"blk.{N_LAYER + 1}."): w for n, w in weights.items() if last in n}
        tensors, n_nextn = tensors | more, 2
    n_nextn = 0 if case == "none announced" else n_nextn
    with Model(tiny_nextn.write(folder / f"{case}.gguf", tensors, n_nextn)) as model:
        assert model.own_head is None
        context = new_context(model)
        assert "head" not in drafters.suggested(context, None)
        with pytest.raises(ArgumentError, match="this model has no draft head"):
            head.make(context, head.Options())
        with pytest.raises(ArgumentError, match=f"hidden_at is 1 to {N_LAYER}, got {N_LAYER + 1}"):
            context.run(Rows.of(0, 0, PROMPT), Pass(leave=N_LAYER + 1))
        assert tokens_of(steps(context, None))
