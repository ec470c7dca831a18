"""Sequences that are saved and restored: the text goes on as if they had never left. The oracle is
a context that read the prompt itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import odd_models
import pytest
import tiny_nextn
from fixture_types import NewContext
from tiny_hybrids import write_hybrid

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.runtime.checkpoints import Checkpoint
from pyselfspec.runtime.context import Context
from pyselfspec.runtime.sequence_snapshot import SavedSequence, restore_sequence, save_sequence

PROMPT = [5 + i * i % 290 for i in range(300)]
SHORTER = 270


@pytest.fixture(scope="module", params=["llama", "gemma3", "lfm2", "qwen35", "mamba2"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: object
) -> Iterator[Model]:
    arch = request.param
    if arch in ("llama", "gemma3"):
        yield tiny(arch)  # type: ignore[operator]
        return
    path = tmp_path_factory.mktemp("hybrid") / "model.gguf"
    with Model(write_hybrid(path, arch, varied=True, n_ctx=1024)) as model:
        yield model


def text_of(context: Context, prompt: list[int], seq_id: int) -> tuple[list[int], int]:
    made = Completion(
        context, prompt, None, seq=context.sequence(seq_id), n_predict=12, sampling=GREEDY
    )
    list(made)
    return made.tokens, made.stats.n_prompt_reused


def open_two(model: Model, new_context: NewContext) -> Context:
    return new_context(model, n_ctx=1024, n_seq_max=4, n_batch=32)


@pytest.mark.parametrize("n", [len(PROMPT), SHORTER])
def test_a_text_goes_on_elsewhere(n: int, model: Model, new_context: NewContext) -> None:
    """n: tokens of the prompt that are alike, 300 or 270, after which it has others."""
    prompt = [*PROMPT[:n], 7, 8, 9]
    want, _ = text_of(open_two(model, new_context), prompt, 0)
    first = open_two(model, new_context)
    text_of(first, PROMPT, 0)
    seq = first.sequence(0)
    seq.keep(PROMPT)
    saved = save_sequence(seq)
    assert saved is not None and saved.tokens.tolist() == PROMPT[: len(saved.tokens)]
    other = open_two(model, new_context)
    text_of(other, [3, 4, 5, 6], 1)  # it is not alone there
    assert restore_sequence(other.sequence(2), saved)
    found, n_reused = text_of(other, prompt, 2)
    assert found == want
    assert n_reused == saved.n_usable(np.array(prompt, np.int32))
    if model.file.architecture == "gemma3":  # of a sliding window only the last one is saved
        assert n_reused == (n if n == len(PROMPT) else 0)
    else:
        assert n_reused >= (n if other.abilities.can_rollback else 256)


def saved_prompt(context: Context) -> SavedSequence:
    """Return a copy of sequence 0 after a text that follows PROMPT was cut off."""
    text_of(context, PROMPT, 0)
    seq = context.sequence(0)
    seq.keep(PROMPT)
    saved = save_sequence(seq)
    assert saved is not None
    return saved


def test_nothing_is_saved_of_an_empty_sequence(model: Model, new_context: NewContext) -> None:
    assert save_sequence(open_two(model, new_context).sequence(0)) is None


def test_a_state_of_another_model_is_refused(
    model: Model, new_context: NewContext, tmp_path: Path, demo: Model
) -> None:
    context = open_two(model, new_context)
    saved = saved_prompt(context)
    other = new_context(demo, n_ctx=512)
    assert not restore_sequence(other.sequence(0), saved)
    assert other.sequence(0).n_past == 0 and other.sequence(0).tokens == ()


# --- copies that are false ------------------------------------------------------------------------


def false_copies(saved: SavedSequence, *, has_states: bool) -> Iterator[tuple[str, SavedSequence]]:
    """Copies of which a checksum would be right."""
    words = saved.state[: saved.state.nbytes // 4 * 4].view(np.int32)
    n, first = len(saved.tokens), 4  # two words of the start, the streams, the cells
    if not (has_states and words[3] == n - 1):
        for what, value in (("below 0", -1), ("twice", words[first] + 1), ("too large", n)):
            changed = words.copy()
            changed[first] = value
            yield what, replace(saved, state=changed.view(np.uint8))
    else:  # states only
        cell = words[3:5]
        two = np.concatenate([words[:2], [2], cell, cell, words[5:]]).astype(np.int32)
        yield "two states", replace(saved, state=two.view(np.uint8))
        late = words.copy()
        late[3] += 1
        yield "another position", replace(saved, state=late.view(np.uint8))
    yield "cut off", replace(saved, state=saved.state[:40])
    yield "empty", replace(saved, state=saved.state[:0])
    for each in saved.checkpoints[:1]:
        late_one = Checkpoint(each.n_tokens + 1, each.state)
        yield "a false checkpoint", replace(saved, checkpoints=(late_one,))


def test_false_copies_are_refused(model: Model, new_context: NewContext) -> None:
    """Before, recurrent states in two cells ended the process, and cells below 0 were kept for
    ever."""
    context = open_two(model, new_context)
    saved = saved_prompt(context)
    found = dict(false_copies(saved, has_states=context.abilities.has_states))
    assert len(found) >= 4
    for what, each in found.items():
        other = context.sequence(2)
        assert not restore_sequence(other, each), what
        assert other.n_past == 0 and not other.tokens, what
    assert restore_sequence(context.sequence(2), saved)


@pytest.mark.parametrize("flash_attn", [None, False])
def test_copies_of_memories_of_all_forms_are_sound(
    flash_attn: bool | None, new_context: NewContext, tmp_path: Path
) -> None:
    """Latent K without V, an index beside K, states in streams, windows and shared K."""
    kinds = (tiny_nextn.DEEPSEEK2, tiny_nextn.DEEPSEEK4, tiny_nextn.MIMO2, tiny_nextn.QWEN35)
    paths = [
        tiny_nextn.write(tmp_path / f"{kind.arch}.gguf", tiny_nextn.weights(kind), kind)
        for kind in kinds
    ]
    for name in ("gemma3n", "gemma4"):
        odd_models.WRITERS[name](tmp_path / f"{name}.gguf")
        paths.append(tmp_path / f"{name}.gguf")
    for path in paths:
        with Model(path) as model:
            context = new_context(model, n_ctx=512, n_seq_max=2, flash_attn=flash_attn)
            for seq_id in (0, 1):
                seq = context.sequence(seq_id)
                context.prefill(PROMPT[:90], seq)
                saved = save_sequence(seq)
                seq.drop()
                assert saved is not None and restore_sequence(seq, saved), (path, seq_id)
                seq.drop()
