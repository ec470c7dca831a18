"""A linear map behind an exit: what it is fitted to, what a pass over mapped states gives, its
file, and texts drafted with it."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from typed_models import EXIT, SAMPLINGS, plain_text, require_exact

from pyselfspec import Fixed, LayerMask, Sampler
from pyselfspec.errors import ArgumentError
from pyselfspec.lab.drafters import exit_map
from pyselfspec.runtime.passes import FULL
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.speculate.pass_requests import run_request
from pyselfspec.testing.conformance import tokens_of
from tools import fit_exit_map

N_LAYER = 4
AFTER = 2


@pytest.fixture
def context(request, tiny, new_context):
    arch = getattr(request, "param", "llama")
    return new_context(tiny(arch, qtype="Q8_0", late_scale=0.05), n_ctx=256)


@pytest.fixture
def text(token_ids):
    return [1 + (7 * token + i) % 250 for i, token in enumerate(token_ids(40) * 16)]


@pytest.fixture
def written(context, text, tmp_path):
    found = exit_map.fit(context, text, AFTER, "some text")
    path = tmp_path / "map.json"
    exit_map.save(path, found)
    return path


def states(context, tokens, at, **how):
    context.sequence().drop()
    return context.decode(tokens, hidden_at=at, **how).hidden.numpy().astype(np.float64)


def test_the_map_is_the_ridge_regression_from_the_exit_to_the_last_feed_forward_part(context, text):
    found = exit_map.fit(context, text, AFTER, "some text").weights()
    given, wanted = [], []
    for first in range(0, len(text), context.n_batch):
        part = text[first : first + context.n_batch]
        given.append(states(context, part, AFTER))
        mask = LayerMask.skipping(N_LAYER, ffn=[N_LAYER - 1])
        wanted.append(states(context, part, N_LAYER, mask=mask))
    x, y = np.vstack(given), np.vstack(wanted)
    size = np.sqrt((y**2).mean(axis=1, keepdims=True))
    x, y = x / size, y / size
    ridge = np.sqrt(exit_map.RIDGE * (x**2).sum() / x.shape[1])
    extra = ridge * np.eye(x.shape[1])
    want = np.linalg.lstsq(np.vstack([x, extra]), np.vstack([y, 0 * extra]), rcond=None)[0]
    np.testing.assert_allclose(found, want, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize("context", ["llama", "gemma3"], indirect=True)
def test_behind_what_the_last_part_reads_comes_what_the_model_says(context, text):
    """With a map that changes nothing."""
    n_embd = context.model.n_embd
    matrix = np.eye(n_embd, dtype="<f2").tobytes()
    found = exit_map.fit(context, text, AFTER, "some text")
    jump = exit_map.Jump(context, _with(found, matrix))
    mask = LayerMask.skipping(N_LAYER, ffn=[N_LAYER - 1])
    before = states(context, text[:16], N_LAYER, mask=mask)
    context.sequence().drop()
    context.decode(text[:16])
    want = context.logits(15)
    held = context.sequence().n_past
    got = run_request(
        context, jump.request(context.sequence(), 15, text[15], _hidden(before), FULL)
    )
    np.testing.assert_allclose(context.logits(0), want, atol=1e-3 * np.abs(want).max())
    assert got.best(0) == want.argmax() and context.sequence().n_past == held


@pytest.mark.parametrize("context", ["llama", "gemma3"], indirect=True)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_text_drafted_with_a_map_is_plain_text(context, written, token_ids, sampling):
    require_exact(context)
    prompt, n = token_ids(9), 48
    plain = plain_text(context, prompt, n, SAMPLINGS[sampling])
    context.sequence().drop()
    drafter = exit_map.make(context, exit_map.Options(written))
    with Sampler(context.model, SAMPLINGS[sampling]) as sampler:
        steps = list(
            generate_steps(
                context,
                prompt,
                drafter=drafter,
                controller=Fixed(3, p_min=0),
                sampler=sampler,
                n_predict=n,
            )
        )
    assert tokens_of(steps) == plain
    assert all(len(step.draft.tokens) >= 3 for step in steps[:-3])
    assert any(step.n_accepted for step in steps)
    assert [context.sequence(i).n_past for i in range(4)] == [len(prompt) + n - 1, 0, 0, 0]


def test_drafts_are_those_of_mapped_states(context, written, token_ids):
    """Unlike those of the exit itself, which is why it is worth a test."""
    weights = exit_map.load(written, context, EXIT).weights()
    prompt = token_ids(20)

    def draft(drafter):
        context.sequence().drop()
        with Sampler(context.model) as sampler:
            steps = generate_steps(
                context,
                prompt,
                drafter=drafter,
                controller=Fixed(1, p_min=0),
                sampler=sampler,
                n_predict=8,
            )
            return [
                (step.draft.token_ids[0], step.draft.probs[0]) for step in steps if step.n_drafted
            ]

    mapped = draft(exit_map.make(context, exit_map.Options(written)))
    assert mapped != draft(layer_skip.make(context, layer_skip.Options(EXIT)))
    (token, p), *_ = mapped
    given = states(context, prompt, AFTER)[-1:].astype(np.float32) @ weights
    context.sequence().drop()
    context.decode([0], hidden=given, mask=exit_map.jump_mask(N_LAYER))
    assert (token, p) == pytest.approx(context.argmax(0))


# files and what does not fit


def _hidden(found):
    return exit_map.Hidden(found.astype(np.float32))


def _with(found, matrix):
    return replace(found, matrix=matrix, sha256=exit_map.hashlib.sha256(matrix).hexdigest())


def refused(context, path, match, mask=EXIT):
    with pytest.raises(ArgumentError, match=match) as error:
        exit_map.make(context, exit_map.Options(path, mask))
    assert "\n" not in str(error.value)


def test_a_map_of_another_model_or_exit_is_refused(context, written, tiny, new_context):
    other = new_context(tiny("llama", qtype="F16", late_scale=0.05))
    refused(other, written, r"was fitted for another model \(.*gguf\); fit one with tools/")
    exits = r"map of an exit after 2 blocks; draft with that exit, or"
    refused(context, written, exits, LayerMask.early_exit(N_LAYER, 1))
    refused(context, written, exits, LayerMask.skipping(N_LAYER, attn=[2, 3], ffn=[3]))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data[: len(data) // 2], "no map of an exit"),
        (lambda data: b"GGUF" + data, "no map of an exit .*not JSON"),
        (lambda data: data.replace(b'"matrix": "', b'"matrix": "AAAA', 1), "another size"),
        (lambda data: data.replace(b'"n_embd": 64', b'"n_embd": 32'), "another size"),
        (lambda data: _flipped(data), "the matrix is damaged"),
    ],
)
def test_a_damaged_file_is_refused(context, written, change, match):
    written.write_bytes(change(written.read_bytes()))
    refused(context, written, match)


def _flipped(data):
    at = data.index(b'"matrix": "') + 100
    return data[:at] + (b"B" if data[at : at + 1] != b"B" else b"C") + data[at + 1 :]


def test_what_has_no_map_is_refused(context, text):
    for after, tokens, match in (
        (AFTER, text[:100], "the text has 100 tokens; .* on 512 or more"),
        (N_LAYER - 1, text, "passes cannot jump from block 3 to the last one"),
    ):
        with pytest.raises(ArgumentError, match=match):
            exit_map.fit(context, tokens, after, "some text")


def test_the_tool_writes_a_map_and_says_what_it_gives(tiny_path, tmp_path, context):
    model = tiny_path("llama", qtype="Q8_0", late_scale=0.05)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over a lazy dog and on " * 200, encoding="utf-8")
    out = tmp_path / "map.json"
    args = [str(model), str(text), "--exit-layer", str(AFTER), "--out", str(out), "--tokens"]
    ran = CliRunner().invoke(fit_exit_map.main, [*args, "1000"])
    assert ran.exit_code == 0, ran.output
    assert "fitted on 1000 tokens" in ran.output and "of 1024 tokens" in ran.output
    assert exit_map.load(out, context, EXIT).text == "text.txt"
    ran = CliRunner().invoke(fit_exit_map.main, [*args, "10"])
    assert ran.exit_code == 1 and "fitted on 512 or more" in ran.output
