"""Trees of draft tokens on tiny models."""

import numpy as np
import pytest
from attentions import ATTENTIONS
from branching import KINDS, Trees
from drafts import draft_of
from tiny_mamba import write_mamba
from typed_models import SAMPLINGS, SEEDED, plain_text, require_exact

from pyselfspec import Fixed, Model, Sampler
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.branches import branched
from pyselfspec.speculate.types import Verdict
from pyselfspec.testing.conformance import tokens_of

#      text -> 0 -> 1 -> 2
#              `--> 3 -> 4
#      text -> 5
TREE = draft_of((7, 8, 9, 7, 6, 5), parents=(-1, 0, 1, 0, 3, -1))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("arch", ["llama", "gemma3", "falcon", "qwen2moe", "phi3"])
def test_real_text_under_trees_is_plain_text(arch, sampling, tiny, new_context, token_ids):
    context = new_context(tiny(arch, qtype="Q8_0", late_scale=0.05), n_seq_max=6)
    require_exact(context)
    prompt, n = token_ids(9), 48
    plain = plain_text(context, prompt, n, SAMPLINGS[sampling])
    for seed, kind in enumerate(KINDS):
        print("seed", seed)
        context.sequence().drop()
        drafter = Trees([*prompt, *plain], kind, seed, context.model.n_vocab)
        with Sampler(context.model, SAMPLINGS[sampling]) as sampler:
            steps = list(
                generate_steps(
                    context,
                    prompt,
                    drafter=drafter,
                    controller=Fixed(7, p_min=0),
                    sampler=sampler,
                    n_predict=n,
                )
            )
        assert tokens_of(steps) == plain, kind
        n_past = len(prompt) + len(plain) - 1
        assert [context.sequence(i).n_past for i in range(6)] == [n_past, 0, 0, 0, 0, 0]
        assert context.sequence().tokens == tuple([*prompt, *plain][:-1])
        if kind in ("last", "random"):
            assert any(step.verdict.path not in ((), (0,), (0, 1)) for step in steps)


def test_a_real_text_takes_branches_until_the_context_is_nearly_full(tiny, new_context, token_ids):
    """The cells that other branches leave empty between those of the text are won back."""
    context = new_context(tiny("llama", qtype="Q8_0", late_scale=0.05), n_ctx=256)
    require_exact(context)
    prompt, n = token_ids(9), 210
    plain = plain_text(context, prompt, n, SEEDED)
    assert len(plain) == n
    context.sequence().drop()
    with Sampler(context.model, SEEDED) as sampler:
        steps = list(
            generate_steps(
                context,
                prompt,
                drafter=Trees([*prompt, *plain], "last", 0, context.model.n_vocab),
                controller=Fixed(5, p_min=0),
                sampler=sampler,
                n_predict=n,
            )
        )
    assert tokens_of(steps) == plain
    assert sum(not step.draft.is_chain for step in steps) > 30
    assert context.n_moves and context.sequence().in_order


@pytest.mark.parametrize("attention", ["flash", "f32", "q8_0", "mixed"])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "falcon"])
def test_cells_between_those_of_a_text_do_not_change_a_bit(arch, attention, tiny, new_context):
    """A text that takes over every branch from behind others, against the same as a chain."""
    context = new_context(tiny(arch, qtype="Q4_0"), **ATTENTIONS[attention])
    require_exact(context)
    seq, n_vocab = context.sequence(), context.model.n_vocab
    rng = np.random.default_rng(0)
    steps = rng.integers(5, n_vocab, (12, 3)).tolist()

    def run(wrong):
        seq.drop()
        context.prefill([1, 2, 3])
        text, found = [1, 2, 3], []
        for last, *right in steps:
            text.append(last)
            parents = (*range(-1, wrong - 1), -1, wrong)
            draft = draft_of((*[4] * wrong, *right), parents=parents)
            rows, path = (0, wrong + 1, wrong + 2), (wrong, wrong + 1)
            with branched(seq, draft) as branches:
                context.run(branches.rows(text))
                found += [calls.logits(context.session, row, n_vocab) for row in rows]
                branches.adopt(seq, len(text) - 1, Verdict(path, 1, False))
            text += right
            assert seq.n_past == len(text)
        assert seq.in_order
        return found

    chain = run(0)
    for wrong in (1, 3):
        assert all(map(np.array_equal, chain, run(wrong)))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_rows_of_a_tree_have_the_bits_of_rows_of_a_chain(arch, tiny, new_context, token_ids):
    context = new_context(tiny(arch, qtype="Q8_0"), n_seq_max=4)
    require_exact(context)
    prompt = token_ids(40)
    text = context.sequence()
    context.prefill(prompt[:-1], text)
    for i in (1, 2):
        text.fork(i)
    n = len(prompt) - 1
    rows = Rows(
        tokens=(prompt[-1], *TREE.token_ids),
        seq_ids=(0, 0, 0, 0, 1, 1, 2),
        pos=(n, *(n + 1 + depth for depth in TREE.depths)),
        outputs=(True,) * 7,
        shared=((1, 2), (1,), (), (), (), (), ()),
    )
    context.run(rows)
    branched = [context.best(i) for i in range(7)]
    n_vocab = context.model.n_vocab
    logits = [calls.logits(context.session, i, n_vocab) for i in range(7)]
    for path in ((0, 1, 2), (0, 3, 4), (5,)):
        for i in range(4):
            context.sequence(i).drop()
        context.prefill(prompt[:-1])
        chain = context.decode([prompt[-1], *(TREE.token_ids[i] for i in path)]).logits
        for row, i in enumerate((-1, *path)):
            assert np.array_equal(chain[row], logits[i + 1])
            assert chain[row].argmax() == branched[i + 1]


def test_a_branch_that_was_taken_is_known_to_be_held(tiny, new_context):
    context = new_context(tiny("llama"))
    text = context.sequence()
    context.prefill([1, 2, 3])
    fork = text.fork(1)
    context.run(Rows((4, 5, 6), (0, 0, 1), (3, 4, 4), (True,) * 3, ((1,), (), ())))
    assert (text.tokens, fork.tokens) == ((1, 2, 3, 4, 5), (1, 2, 3, 4, 6))
    text.take_over(fork, 3)
    fork.drop()
    assert (text.tokens, text.n_past) == ((1, 2, 3, 4, 6), 5)
    text.rollback(4)
    assert text.tokens == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Rows((4, 5), (0, 0), (3, 4), (True,) * 2, ((1,), ())), "sequence 1 ends at position -1"),
        (Rows((4,), (0,), (3,), (True,), ((99,),)), "sequence id 99 is not allowed"),
    ],
)
def test_rows_in_sequences_that_differ_are_refused(rows, message, tiny, new_context):
    context = new_context(tiny("llama"))
    context.prefill([1, 2, 3])
    with pytest.raises(ArgumentError, match=message):
        context.run(rows)
    assert context.sequence().n_past == 3


def test_without_flash_attention_there_is_one_branch(tiny, new_context):
    """Lanes of a sum depend on where cells are."""
    model = tiny("llama")
    assert new_context(model, flash_attn=False).n_branches == 1
    assert new_context(model, flash_attn=True).n_branches == 4
    assert new_context(model, type_k="q8_0", type_v="q8_0").n_branches == 4


def test_rows_of_several_sequences_are_not_rewritten_in_place(tiny, new_context):
    context = new_context(tiny("llama"))
    context.prefill([1, 2, 3])
    context.sequence().fork(1)
    with pytest.raises(UnsupportedError, match="several sequences need"):
        context.run(Rows((3,), (0,), (2,), (True,), ((1,),)), Pass(in_place=True))


def test_a_recurrent_model_has_one_branch_and_shares_no_rows(tmp_path):
    with (
        Model(write_mamba(tmp_path / "mamba.gguf")) as model,
        model.context(n_ctx=256, n_seq_max=2) as context,
    ):
        assert context.n_branches == 1
        with pytest.raises(UnsupportedError, match="several sequences need a memory that takes"):
            context.run(Rows((3,), (0,), (0,), (True,), ((1,),)))
