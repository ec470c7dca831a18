"""Recurrent and hybrid models: removing draft tokens by snapshots or by replay, and going back to
checkpoints.

Every result is compared, bit for bit, with a context without snapshots that reads one token at a
time and never removes any.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_hybrids import write_hybrid

from pyselfspec import GREEDY, Completion, Context, Fixed, Model, SamplingParams, generate_batch
from pyselfspec.errors import ArgumentError, DecodeError, UnsupportedError
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.passes import Rows

WITH_SNAPSHOTS = ("lfm2", "qwen35", "nemotron_h", "mamba2")
ARCHITECTURES = (*WITH_SNAPSHOTS, "mamba")
N_SNAPSHOTS = 7
REPLAY = None  # the default where states are large
N_REPLAYED = 15
N_TEXT = 40

Logits = NDArray[np.float32]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("hybrid")
    path = write_hybrid(folder / "model.gguf", request.param, varied=True)
    with Model(path) as model:
        yield model


@pytest.fixture(scope="module")
def text(model: Model) -> list[int]:
    rng = np.random.default_rng(1)
    return [int(token) for token in rng.integers(3, model.n_vocab, N_TEXT)]


@pytest.fixture(scope="module")
def expected(model: Model, text: list[int]) -> Logits:
    """The logits after each token of the text, float32 [N_TEXT, n_vocab]."""
    with opened(model, n_snapshots=0) as context:
        return np.concatenate([context.decode([token]).logits for token in text])


@pytest.fixture(params=[N_SNAPSHOTS, REPLAY], ids=["snapshots", "replay"])
def context(model: Model, request: pytest.FixtureRequest) -> Iterator[Context]:
    with opened(model, request.param) as context:
        yield context


def opened(model: Model, n_snapshots: int | None = N_SNAPSHOTS) -> Context:
    return model.context(n_ctx=256, n_batch=64, n_threads=1, n_seq_max=3, n_snapshots=n_snapshots)


def has_snapshots(model: Model) -> bool:
    return model.file.architecture in WITH_SNAPSHOTS


def needs_removal(context: Context) -> None:
    if not context.abilities.max_rollback:
        pytest.skip("llama.cpp keeps no snapshots for this architecture")


def test_a_context_says_how_it_removes_tokens(model: Model, context: Context) -> None:
    assert (
        not context.abilities.can_rollback
        and context.abilities.has_states
        and context.abilities.can_draft
    )
    assert context.abilities.max_rollback in (
        (N_SNAPSHOTS if has_snapshots(model) else 0),
        N_REPLAYED,
    )
    with opened(model, n_snapshots=0) as without:
        assert without.abilities.max_rollback == 0 and without.abilities.can_draft


@pytest.mark.parametrize("n_removed", range(1, N_SNAPSHOTS + 1))
def test_bits_after_every_removal(
    model: Model, context: Context, text: list[int], expected: Logits, n_removed: int
) -> None:
    needs_removal(context)
    seq = context.sequence()
    context.decode(text[:5])
    wrong = [7] * n_removed
    got = context.decode([*text[5:9], *wrong]).logits[:4]
    assert seq.can_keep(9) == 9
    seq.rollback(9)
    rest = context.decode(text[9:12]).logits
    np.testing.assert_array_equal(np.concatenate([got, rest]), expected[5:12])


@pytest.mark.sanitized
def test_bits_of_random_drafts(
    model: Model, context: Context, text: list[int], expected: Logits
) -> None:
    needs_removal(context)
    rng = np.random.default_rng(seed := 3)
    print(f"seed {seed}")
    seq, pos = context.sequence(), 0
    while pos + N_SNAPSHOTS < N_TEXT:
        n_right = int(rng.integers(1, N_SNAPSHOTS + 2))
        wrong = rng.integers(3, model.n_vocab, N_SNAPSHOTS + 1 - n_right)
        rows = [*text[pos : pos + n_right], *map(int, wrong)]
        logits = context.decode(rows).logits[:n_right]
        np.testing.assert_array_equal(logits, expected[pos : pos + n_right])
        pos += n_right
        seq.rollback(pos)


def refused(context: Context, n_keep: int) -> None:
    seq = context.sequence()
    n_past = seq.n_past
    assert seq.can_keep(n_keep) == 0
    with pytest.raises(UnsupportedError):
        calls.keep(context.session, 0, n_keep)
    assert seq.n_past == n_past


def test_a_removal_that_reaches_back_over_the_last_pass_is_refused(
    model: Model, context: Context, text: list[int], expected: Logits
) -> None:
    context.decode(text[:8])
    context.decode(text[8:9])
    refused(context, 7)
    refused(context, 8)  # the only row of the last pass
    np.testing.assert_array_equal(context.decode(text[9:10]).logits, expected[9:10])


def test_a_second_removal_before_a_pass_is_refused(
    model: Model, context: Context, text: list[int], expected: Logits
) -> None:
    needs_removal(context)
    context.decode(text[:8])
    context.sequence().rollback(6)
    refused(context, 5)
    np.testing.assert_array_equal(context.decode(text[6:8]).logits, expected[6:8])


def test_more_than_the_snapshots_is_refused(context: Context, text: list[int]) -> None:
    context.decode(text[: context.abilities.max_rollback + 4])
    refused(context, 3)


def test_a_state_that_a_fork_shares_is_not_replayed(
    model: Model, text: list[int], expected: Logits
) -> None:
    with opened(model, REPLAY) as context:
        context.decode(text[:8])
        fork = context.sequence().fork(1)
        refused(context, 6)
        for seq in (fork, context.sequence()):
            got = context.decode(text[8:10], seq=seq).logits
            np.testing.assert_array_equal(got, expected[8:10])


@pytest.mark.sanitized
def test_replays_after_prompts_in_pieces_and_passes_of_others(
    model: Model, text: list[int], expected: Logits
) -> None:
    """Cells of states change places; passes of one token and of many alternate."""
    rng = np.random.default_rng(seed := 11)
    print(f"seed {seed}")
    with opened(model, REPLAY) as context:
        sequences = [context.sequence(i) for i in range(3)]
        for _ in range(30):
            seq = sequences[int(rng.integers(3))]
            if seq.n_past + 8 >= N_TEXT:
                seq.drop()
            pos, n_right = seq.n_past, int(rng.integers(1, 5))
            rows = [*text[pos : pos + n_right], *[9] * int(rng.integers(0, 5))]
            got = context.decode(rows, seq=seq).logits[:n_right]
            np.testing.assert_array_equal(got, expected[pos : pos + n_right])
            seq.rollback(pos + n_right)


@pytest.mark.parametrize("first", [0, 2])
def test_a_fork_after_a_removal_sees_what_the_sequence_sees(
    model: Model, context: Context, text: list[int], expected: Logits, first: int
) -> None:
    needs_removal(context)
    context.decode(text[:8])
    context.sequence().rollback(5)
    context.sequence().fork(2)
    for seq_id in (first, 2 - first):
        got = context.decode(text[5:8], seq=context.sequence(seq_id)).logits
        np.testing.assert_array_equal(got, expected[5:8])


@pytest.mark.sanitized
def test_a_fork_goes_its_own_way(context: Context, text: list[int], expected: Logits) -> None:
    context.decode(text[:6])
    fork = context.sequence().fork(1)
    context.decode([9, 9, 9], seq=fork)
    np.testing.assert_array_equal(context.decode(text[6:9]).logits, expected[6:9])
    assert fork.n_past == 9 and fork.tokens == (*text[:6], 9, 9, 9)


@pytest.mark.parametrize("ids", [(0, 1), (0, 2), (2, 0)])
def test_sequences_with_as_many_rows_share_a_pass(
    model: Model, context: Context, text: list[int], expected: Logits, ids: tuple[int, int]
) -> None:
    needs_removal(context)
    one, other = map(context.sequence, ids)
    context.decode(text[:3], seq=one)
    context.decode(text[:6], seq=other)
    for n_one, n_other in ((4, 2), (1, 3)):
        rows = [rows_of(seq, text, n) for seq, n in ((one, n_one), (other, n_other))]
        context.run(Rows.joined(rows))
        for i, (seq, n) in enumerate(((one, n_one), (other, n_other))):
            right = seq.n_past - 4 + n
            got = np.stack([context.logits(4 * i + row) for row in range(n)])
            np.testing.assert_array_equal(got, expected[right - n : right])
            seq.rollback(right)


def rows_of(seq: object, text: list[int], n_right: int, n: int = 4) -> Rows:
    pos = seq.n_past  # type: ignore[attr-defined]
    rows = [*text[pos : pos + n_right], *[11] * (n - n_right)]
    return Rows.of(seq.seq_id, pos, rows, "all")  # type: ignore[attr-defined]


def test_different_numbers_of_rows_leave_no_snapshots(context: Context, text: list[int]) -> None:
    one, other = context.sequence(0), context.sequence(1)
    context.run(Rows.joined([Rows.of(0, 0, text[:5]), Rows.of(1, 0, text[:3])]))
    assert one.can_keep(4) == 0 and other.can_keep(2) == 0


def test_a_pass_of_others_ends_what_can_be_removed(context: Context, text: list[int]) -> None:
    context.decode(text[:5])
    context.decode(text[:5], seq=context.sequence(1))
    assert context.sequence().can_keep(4) == 0


def test_a_pass_that_was_stopped_empties_its_sequence(
    context: Context, text: list[int], expected: Logits
) -> None:
    context.decode(text[:6])
    context.sequence().save_checkpoint()
    with context.stopped(), pytest.raises(DecodeError):
        context.decode(text[6:9])
    seq = context.sequence()
    assert seq.n_past == 0 and seq.can_keep(6) == 0 and seq.tokens == ()
    np.testing.assert_array_equal(context.decode(text[:6]).logits, expected[:6])


@pytest.mark.parametrize("n", [1, 5, 17])
def test_a_checkpoint_restores_the_bits(
    context: Context, text: list[int], expected: Logits, n: int
) -> None:
    seq = context.sequence()
    context.decode(text[:n])
    assert seq.save_checkpoint() is not None
    for wrong in ([4] * 20, [5]):
        context.decode(wrong)
        seq.rollback(n)
        got = context.decode(text[n : n + 9]).logits
        np.testing.assert_array_equal(got, expected[n : n + 9])
        assert seq.tokens == tuple(text[: n + 9])


def test_a_checkpoint_holds_what_a_removal_left(
    model: Model, context: Context, text: list[int], expected: Logits
) -> None:
    needs_removal(context)
    seq = context.sequence()
    context.decode([*text[:6], 4, 4])
    seq.rollback(6)
    seq.save_checkpoint()
    context.decode([9] * 20)
    seq.rollback(6)
    np.testing.assert_array_equal(context.decode(text[6:9]).logits, expected[6:9])


def test_a_text_goes_back_to_the_longest_checkpoint_that_it_shares(
    context: Context, text: list[int], expected: Logits
) -> None:
    seq = context.sequence()
    for first, end in ((0, 6), (6, 12), (12, 20)):
        context.decode(text[first:end])
        seq.save_checkpoint()
    context.decode(text[20:21])  # its one row is all that snapshots cover
    edited = [*text[:15], 9, 9]
    assert seq.keep(edited) == 12
    np.testing.assert_array_equal(context.decode(text[12:15]).logits, expected[12:15])
    assert seq.keep(text[:8]) == 6


@pytest.mark.sanitized
def test_a_fork_takes_the_checkpoints_along(
    context: Context, text: list[int], expected: Logits
) -> None:
    seq = context.sequence()
    context.decode(text[:6])
    seq.save_checkpoint()
    context.decode(text[6:10])
    fork = seq.fork(1)
    seq.drop()
    assert fork.keep([*text[:7], 9]) == 6
    np.testing.assert_array_equal(context.decode(text[6:9], seq=fork).logits, expected[6:9])


@pytest.mark.sanitized
@pytest.mark.parametrize("edit", ["short", "long", "empty"])
def test_a_broken_state_is_an_error_and_empties_the_sequence(
    context: Context, text: list[int], expected: Logits, edit: str
) -> None:
    context.decode(text[:6])
    state = calls.save_state(context.session, 0)
    broken = {
        "short": state[:-8].copy(),
        "long": np.concatenate([state, state]),
        "empty": state[:0].copy(),
    }[edit]
    with pytest.raises(DecodeError, match="cannot be restored"):
        calls.load_state(context.session, 0, broken, 6)
    assert context.sequence().n_past == 0
    np.testing.assert_array_equal(context.decode(text[:6]).logits, expected[:6])


@pytest.mark.sanitized
def test_calls_with_wrong_arguments_change_nothing(
    context: Context, text: list[int], expected: Logits
) -> None:
    context.decode(text[:6])
    state = calls.save_state(context.session, 0)
    for n in (0, 7, -1):
        with pytest.raises(ArgumentError, match="does not hold"):
            calls.load_state(context.session, 0, state, n)
    with pytest.raises(ArgumentError, match="not empty"):
        calls.fork(context.session, 1, 0)
    with pytest.raises(ArgumentError, match="seq_id is 3"):
        calls.save_state(context.session, 3)
    np.testing.assert_array_equal(context.decode(text[6:8]).logits, expected[6:8])


#
# texts
#


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("n_snapshots", [0, 2, N_SNAPSHOTS, REPLAY])
def test_copies_leave_the_text_as_it_is(
    model: Model, text: list[int], n_snapshots: int | None, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5)
    prompt = text[:9] * 2
    with opened(model, n_snapshots=0) as context:
        plain = written(Completion(context, prompt, n_predict=60, sampling=sampling, draft=None))
    with opened(model, n_snapshots) as context:
        drafting = Completion(
            context,
            prompt,
            n_predict=60,
            sampling=sampling,
            draft="ngram",
            controller=Fixed(4, p_min=0),
        )
        assert written(drafting) == plain
        assert drafting.stats.n_drafted > 0


def written(text: Completion) -> list[int]:
    for _ in text:
        pass
    return list(text.tokens)


def test_texts_of_a_batch_are_those_alone(model: Model, text: list[int]) -> None:
    prompts = [text[:9] * 2, text[3:7] * 3]
    alone = []
    for prompt in prompts:
        with opened(model, n_snapshots=0) as context:
            alone.append(
                written(Completion(context, prompt, n_predict=40, sampling=GREEDY, draft=None))
            )
    with opened(model) as context:
        together = [
            Completion(
                context,
                prompt,
                n_predict=40,
                sampling=GREEDY,
                draft="ngram",
                seq=context.sequence(i),
            )
            for i, prompt in enumerate(prompts)
        ]
        for _ in generate_batch(together):
            pass
        assert [list(each.tokens) for each in together] == alone


def test_the_next_turn_reads_what_is_new(model: Model, text: list[int]) -> None:
    with opened(model) as context:
        first = Completion(context, text[:20], n_predict=10, sampling=GREEDY, draft="ngram")
        tokens = written(first)
        turn = [*text[:20], *tokens, *text[20:25]]
        second = Completion(context, turn, n_predict=10, sampling=GREEDY, draft="ngram")
        written(second)
        assert second.stats.n_prompt_reused == 29
        edited = [*text[:20], *tokens, *text[25:30]]
        third = Completion(context, edited, n_predict=10, sampling=GREEDY, draft="ngram")
        got = written(third)
        assert third.stats.n_prompt_reused == 29
    with opened(model, n_snapshots=0) as context:
        assert (
            written(Completion(context, edited, n_predict=10, sampling=GREEDY, draft=None)) == got
        )


#
# options
#


def test_snapshots_are_few_where_states_are_large(model: Model) -> None:
    # llama.cpp's 256 sequences do not hold the states before a pass of 200
    with model.context(n_ctx=256, n_threads=1, n_seq_max=200) as context:
        assert context.abilities.max_rollback == (2 if has_snapshots(model) else 0)


@pytest.mark.parametrize(
    "options", [{"n_snapshots": -1}, {"n_snapshots": 16}, {"n_checkpoints": 0}]
)
def test_options_outside_their_range_are_refused(model: Model, options: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="is at"):
        model.context(n_ctx=256, **options)


def test_stopping_passes_does_not_stop_a_removal(tmp_path: Path) -> None:
    """Before, a replay that was stopped left the sequence empty."""
    prompt = [5 + i * i % 290 for i in range(300)]
    with (
        Model(write_hybrid(tmp_path / "m.gguf", "mamba2", varied=True, n_ctx=1024)) as model,
        model.context(n_ctx=512, n_batch=64, n_threads=1, n_seq_max=2) as context,
    ):

        def text() -> list[int]:
            made = Completion(context, prompt, None, n_predict=4, sampling=GREEDY)
            list(made)
            return made.tokens

        want, seq = text(), context.sequence(0)
        n = seq.n_past
        context.decode([7, 8, 9, 10], seq=seq)
        with context.stopped():
            seq.rollback(n + 1)
        assert len(seq.tokens) == seq.n_past == n + 1
        assert text() == want


def test_a_removal_that_fails_is_forgotten(
    context: Context, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library empties the sequence then, and nothing says that it holds tokens."""
    context.decode(text[:6])
    seq = context.sequence()
    seq.save_checkpoint()
    context.decode(text[6:10])
    needs_removal(context)
    keep = calls.keep

    def fail(session: int, seq_id: int, _n: int) -> None:
        keep(session, seq_id, 0)
        raise DecodeError("the sequence is empty now")

    with monkeypatch.context() as patched, pytest.raises(DecodeError):
        patched.setattr(calls, "keep", fail)
        seq.rollback(8)
    assert len(seq.tokens) == seq.n_past == len(context.checkpoints.of(0)) == 0
