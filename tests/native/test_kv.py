"""Sequences in the K/V cache: what a fork costs, what stays after it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyselfspec import GREEDY, Fixed, KVSequence, LayerMask, Sampler
from pyselfspec.errors import ArgumentError, ContextFullError, UnsupportedError
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.passes import Rows
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.drafters import Drafter
from pyselfspec.speculate.drafters.layer_skip.shared_blocks import SharedBlocks
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.pass_requests import PassRequest, Work
from pyselfspec.speculate.types import Draft
from tools.models import tiny_archs

EACH_ARCH = pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)


@EACH_ARCH
def test_drafting_leaves_no_trace(arch: str, tiny: Any, new_context: Any, token_ids: Any) -> None:
    """After fork, masked drafts and drop, a context equals one that never drafted, bit for bit."""
    prompt, more = token_ids(12), token_ids(6, seed=1)
    drafting, plain = new_context(tiny(arch)), new_context(tiny(arch))
    masks = [LayerMask.early_exit(4, 1), LayerMask.skipping(4, attn=[0, 2], ffn=[3])]
    for context in (drafting, plain):
        context.decode(prompt)
    for i, token in enumerate(more):
        fork = drafting.sequence().fork(1)
        for drafted in token_ids(3, seed=i):
            drafting.decode([drafted], seq=fork, mask=masks[i % 2])
        fork.drop()
        assert drafting.sequence().n_past == len(prompt) + i
        got, want = (context.decode([token]).logits for context in (drafting, plain))
        np.testing.assert_array_equal(got, want)


@pytest.mark.sanitized
def test_fork_sees_the_past_and_has_its_own_future(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context, fresh = new_context(tiny()), new_context(tiny())
    prompt = token_ids(10)
    context.decode(prompt)
    seq = context.sequence()
    fork = seq.fork(2)
    assert fork.seq_id == 2 and fork.n_past == 10
    context.decode([7, 8], seq=fork)
    assert (seq.n_past, fork.n_past) == (10, 12)
    fresh.decode(prompt)
    np.testing.assert_array_equal(context.decode([9]).logits, fresh.decode([9]).logits)


@pytest.mark.sanitized
def test_forks_take_no_cells(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny(), n_seq_max=8)
    seq = context.sequence()
    for _ in range(3):
        context.decode([5] * 64, outputs="none")
    forks = [seq.fork(i) for i in range(1, 8)]
    context.decode([5] * 64, outputs="none")  # the last cells of 256
    assert seq.n_past == 256 and {fork.n_past for fork in forks} == {192}
    with pytest.raises(ContextFullError):
        context.decode([5], seq=forks[0])


@pytest.mark.sanitized
def test_a_shared_cell_is_free_when_the_last_holder_lets_go(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    seq = context.sequence()
    for _ in range(4):
        context.decode([5] * 64, outputs="none")
    fork = seq.fork(1)
    seq.drop()
    assert (seq.n_past, fork.n_past) == (0, 256)
    with pytest.raises(ContextFullError):
        context.decode([6])
    fork.rollback(200)
    context.decode([6] * 56)
    assert seq.n_past == 56


def test_fork_drops_what_the_other_held(tiny: Any, new_context: Any, token_ids: Any) -> None:
    context, fresh = new_context(tiny()), new_context(tiny())
    other = context.sequence(1)
    context.decode(token_ids(20, seed=1), seq=other)
    for each in (context, fresh):
        each.decode(token_ids(8))
    fork = context.sequence().fork(1)
    assert fork.n_past == other.n_past == 8
    got = context.decode([7], seq=fork).logits
    # The cells lie elsewhere than in the fresh context, so rounding may differ.
    np.testing.assert_allclose(got, fresh.decode([7]).logits, atol=1e-2)
    assert got.argmax() == fresh.argmax(0)[0]


def test_fork_of_an_empty_sequence_is_empty(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.decode([5], seq=context.sequence(1))
    assert context.sequence().fork(1).n_past == 0


@pytest.mark.sanitized
@EACH_ARCH
def test_rollback(arch: str, tiny: Any, new_context: Any, token_ids: Any) -> None:
    """Across the sliding window too, where the architecture has one."""
    n_keep = 20
    tokens = token_ids(n_keep + 2 * tiny_archs.SLIDING_WINDOW)
    context, fresh = new_context(tiny(arch), n_batch=128), new_context(tiny(arch), n_batch=128)
    context.decode(tokens[:n_keep])
    context.decode(tokens[n_keep:])
    context.sequence().rollback(n_keep)
    fresh.decode(tokens[:n_keep])
    assert context.sequence().n_past == n_keep
    np.testing.assert_array_equal(context.decode([7]).logits, fresh.decode([7]).logits)


def test_rollback_to_more_than_is_there_does_nothing(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.decode([5, 6, 7])
    seq = context.sequence()
    for n_keep in (3, 4, 2**40):
        seq.rollback(n_keep)
        assert seq.n_past == 3
    with pytest.raises(ArgumentError, match="0 tokens or more, got -1"):
        seq.rollback(-1)
    assert seq.n_past == 3
    seq.drop()
    seq.drop()
    assert seq.n_past == 0


@pytest.mark.parametrize("seq_id", [-1, 4, 2**32])
def test_sequence_ids_outside_the_context(seq_id: int, tiny: Any, new_context: Any) -> None:
    context = new_context(tiny(), n_seq_max=4)
    with pytest.raises(ArgumentError, match="0 to 3"):
        context.sequence(seq_id)
    with pytest.raises(ArgumentError, match="0 to 3"):
        context.sequence().fork(seq_id)
    with pytest.raises(ArgumentError, match="0 to 3"):
        KVSequence(context, seq_id)


def test_fork_into_itself_keeps_the_sequence(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.decode([5, 6])
    with pytest.raises(ArgumentError, match="itself"):
        context.sequence().fork(0)
    assert context.sequence().n_past == 2


def test_closed_context(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    seq = context.sequence()
    context.close()
    for use in (lambda: seq.n_past, lambda: seq.fork(1), seq.drop, lambda: seq.rollback(1)):
        with pytest.raises(ArgumentError, match="closed"):
            use()


# --- sliding windows ---------------------------------------------------------------------------

N_LOST = 100  # first tokens that a cache has let go of


def feed(context: Any, tokens: list[int], seq_id: int) -> None:
    for i in range(0, len(tokens), 64):
        context.decode(tokens[i : i + 64], seq=context.sequence(seq_id), outputs="none")


def lose(context: Any) -> None:
    """Stands for a cache of the window's size, which overwrites what no later token sees."""
    llama.llama_memory_seq_rm(llama.llama_get_memory(context.handle), 0, 0, N_LOST)


@pytest.mark.sanitized
def test_other_sequences_take_no_cells_of_a_window(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    """Upstream's search gives away cells outside of the window, which a rollback needs again."""
    tokens = token_ids(260)
    context, fresh = new_context(tiny("gemma3")), new_context(tiny("gemma3"))
    feed(context, tokens[:100], 0)
    feed(context, tokens[200:240], 1)
    feed(context, tokens[100:160], 0)
    context.sequence(1).drop()
    feed(context, tokens[200:260], 2)
    assert context.sequence().can_keep(140) == 140
    context.sequence().rollback(140)
    feed(fresh, tokens[:100], 0)
    feed(fresh, tokens[100:160], 0)
    fresh.sequence().rollback(140)
    np.testing.assert_array_equal(context.decode([7]).logits, fresh.decode([7]).logits)


@pytest.mark.sanitized
def test_rollback_into_a_lost_window_is_refused(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(tiny("gemma3"))
    feed(context, token_ids(160), 0)
    lose(context)
    seq = context.sequence()
    least = N_LOST + tiny_archs.SLIDING_WINDOW - 1  # the first position that sees kept ones only
    assert [seq.can_keep(n) for n in (least - 1, least, 160, 1000)] == [0, least, 160, 160]
    with pytest.raises(UnsupportedError, match=f"position {least - 1} sees .* decode its tokens"):
        seq.rollback(least - 1)
    assert seq.n_past == 160
    seq.rollback(least)
    context.decode([7])
    assert seq.n_past == least + 1
    seq.drop()
    assert seq.n_past == 0


@pytest.mark.sanitized
def test_in_place_needs_its_window(tiny: Any, new_context: Any, token_ids: Any) -> None:
    tokens = token_ids(160)
    context = new_context(tiny("gemma3"))
    feed(context, tokens, 0)
    lose(context)
    context.decode(tokens[150:], pos=150, in_place=True)
    with pytest.raises(UnsupportedError, match=r"position 120 sees .* begins at 100"):
        context.decode(tokens[120:130], pos=120, in_place=True)


@pytest.mark.sanitized
def test_a_fork_does_not_go_on_without_its_window(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(tiny("gemma3"))
    feed(context, token_ids(160), 0)
    lose(context)
    fork = context.sequence().fork(1)
    context.decode([7], seq=fork)
    with pytest.raises(UnsupportedError, match="sequence 1 no longer holds"):
        fork.rollback(110)
    memory = llama.llama_get_memory(context.handle)
    llama.llama_memory_seq_rm(memory, 1, 110, -1)  # behind our back
    with pytest.raises(UnsupportedError, match=r"sequence 1 no longer holds .* position 110"):
        context.decode([7], seq=fork)


def test_models_without_a_window_keep_what_they_hold(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(tiny())
    feed(context, token_ids(100), 0)
    seq = context.sequence()
    assert [seq.can_keep(n) for n in (0, 1, 99, 100, 101)] == [0, 1, 99, 100, 100]
    assert context.sequence(1).can_keep(5) == 0


# --- what sequences are known to hold ------------------------------------------------------------


@pytest.mark.sanitized
def test_a_pass_in_place_in_a_fork_is_felt_where_it_was_forked_from(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    """Both share the cells, so neither may be taken for the full model's afterwards."""
    context, tokens = new_context(tiny()), token_ids(12)
    seq = context.sequence()
    context.decode(tokens)
    fork = seq.fork(1)
    mask = LayerMask.early_exit(4, 2)
    context.decode(tokens[3:9], seq=fork, pos=3, mask=mask, in_place=True)
    assert list(seq.tokens) == list(fork.tokens) == tokens[:3]
    assert seq.keep([*tokens, 7]) == 3


@pytest.mark.sanitized
def test_a_sequence_holds_what_it_is_said_to_hold_or_says_why_not(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context, tokens = new_context(tiny()), token_ids(4)
    seq = context.sequence()
    context.decode(tokens)
    with pytest.raises(ArgumentError, match="holds 4 tokens, not 5"):
        seq.set_tokens([*tokens, 7])
    with pytest.raises(ArgumentError, match="does not begin"):
        seq.set_tokens([*tokens[:-1], tokens[-1] + 1])
    seq.set_tokens(tokens[:2])
    assert list(seq.tokens) == tokens[:2]


@pytest.mark.sanitized
def test_a_dropped_sequence_can_be_borrowed_again(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    sequences = [context.sequence(i) for i in range(context.n_seq_max)]
    for seq in sequences:
        seq.occupy()
    assert not context.has_spare
    sequences[2].drop()
    with context.spare_sequence() as spare:
        assert spare.seq_id == 2
        with pytest.raises(ArgumentError, match="a draft uses sequence 2"):
            sequences[2].occupy()


class EmptyAfterShared(Drafter):
    """Runs the shared blocks over the last token, then proposes nothing."""

    name = "empty-after-shared"

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        shared = SharedBlocks(LayerMask.early_exit(self._context.model.n_layer, 1))
        rows = Rows.of(0, len(history) - 1, history[-1:], "none")
        shared.keep((yield PassRequest(rows, shared.below())).hidden)
        return Draft(verification=shared.verification())


def test_a_sequence_knows_its_tokens_after_empty_drafts_that_shared_blocks(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context = new_context(tiny())
    prompt = token_ids(6)
    given = {"controller": Fixed(2), "n_predict": 4, "consume": lambda token: False}
    sampler = Sampler(context.model, GREEDY)
    text = list(prompt)
    for step in generate_steps(
        context, prompt, drafter=EmptyAfterShared(context), sampler=sampler, **given
    ):
        text += step.tokens
        assert context.sequence(0).tokens == tuple(text[:-1])
    assert len(text) == len(prompt) + 4
