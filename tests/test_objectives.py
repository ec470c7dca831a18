"""Perplexity and match against direct computation, and prefix reuse against none, bit for bit."""

import numpy as np
import pytest

from pyselfspec import LayerMask
from pyselfspec.errors import ArgumentError
from pyselfspec.masks.layer_mask import entry
from pyselfspec.masks.score import Score
from pyselfspec.selection import own_text
from pyselfspec.selection.chunks import cut
from pyselfspec.selection.match import Match
from pyselfspec.selection.perplexity import Perplexity
from tools.models import tiny_gguf

N_LAYER = 4
N_CTX = 48
FULL = LayerMask.full(N_LAYER)
EACH_ARCH = pytest.mark.parametrize("arch", tiny_gguf.ARCHITECTURES)


def random_masks(seed, n=12):
    """Masks of all sorts, exits among them; never everything skipped."""
    print("seed", seed)
    rng = np.random.default_rng(seed)
    masks = [LayerMask.early_exit(N_LAYER, 2), LayerMask.skipping(N_LAYER, attn=[3], ffn=[3])]
    while len(masks) < n:
        attn, ffn = ([il for il in range(N_LAYER) if rng.random() < 0.4] for _ in "ab")
        if len(attn) + len(ffn) < 2 * N_LAYER:
            masks.append(LayerMask.skipping(N_LAYER, attn=attn, ffn=ffn))
    return masks


@pytest.fixture
def texts(token_ids):
    return cut(token_ids(3 * N_CTX), N_CTX, 1)


def score_all(objective, base, masks, n_chunks=2):
    """Scores by mask, over the first chunks; the masks in the order that shares most."""
    ordered = sorted(masks, key=lambda mask: entry(base, mask))
    total = dict.fromkeys(ordered, Score())
    for chunk in range(n_chunks):
        for mask, score in zip(ordered, objective.scores(chunk, base, ordered), strict=True):
            total[mask] += score
    return total


def log_probs(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@EACH_ARCH
def test_perplexity_against_one_pass_over_the_chunk(arch, tiny, new_context, texts):
    model = tiny(arch)
    direct = new_context(model)
    for mask, score in score_all(
        Perplexity(new_context(model), texts), FULL, [FULL, *random_masks(1, 4)]
    ).items():
        losses = []
        for text in texts[:2]:
            direct.sequence().drop()
            table = log_probs(direct.decode(text, mask=mask).logits)
            losses += [-table[i, text[i + 1]] for i in range(N_CTX // 2, N_CTX - 1)]
        assert score.n == len(losses) == 2 * (N_CTX // 2 - 1)
        assert score.mean == pytest.approx(np.mean(losses), abs=1e-4)


def test_the_full_model_has_no_excess(tiny, new_context, texts):
    score = score_all(Perplexity(new_context(tiny()), texts), FULL, [FULL])[FULL]
    assert score.excess == score.excess_sq == 0.0 < score.loss


def test_chunks_longer_than_a_batch(tiny, new_context, texts):
    masks = random_masks(2, 5)
    whole = score_all(Perplexity(new_context(tiny()), texts), FULL, masks)
    parts = score_all(Perplexity(new_context(tiny(), n_batch=7), texts), FULL, masks)
    for mask in masks:
        # passes of more than 16 tokens round otherwise than those of fewer
        assert parts[mask].mean == pytest.approx(whole[mask].mean, abs=5e-3)
    whole = score_all(Match(new_context(tiny()), texts, window=4), FULL, masks)
    parts = score_all(Match(new_context(tiny(), n_batch=7), texts, window=4), FULL, masks)
    assert parts == whole


@EACH_ARCH
@pytest.mark.parametrize("window", [1, 5, 24])
def test_match_against_drafting_after_a_full_prefix(arch, window, tiny, new_context, texts):
    """The definition, with nothing shared: a fresh full prefix for every window."""
    model = tiny(arch)
    direct = new_context(model)
    scores = score_all(Match(new_context(model), texts, window=window), FULL, random_masks(3, 4), 1)
    text = texts[0]
    wanted = direct.decode(text).logits.argmax(-1)
    for mask, score in scores.items():
        n_right = n = 0
        for pos in range(N_CTX // 2, N_CTX - window + 1, window):
            direct.sequence().drop()
            direct.decode(text[:pos])
            got = direct.decode(text[pos : pos + window], mask=mask).logits.argmax(-1)
            n_right += int((got == wanted[pos : pos + window]).sum())
            n += window
        assert (score.n, score.n - score.loss) == (n, n_right)
        assert 0 < n_right < n or arch != "llama" or window < 24  # the test could not tell


def test_the_full_model_agrees_with_itself(tiny, new_context, texts):
    score = score_all(Match(new_context(tiny()), texts, window=8), FULL, [FULL])[FULL]
    assert score.agreement == 1.0
    assert score.tokens_per_check(4) == 5.0


def test_chunks_that_are_kept_score_the_same(tiny, new_context, texts):
    masks = random_masks(4, 6)
    one = Match(new_context(tiny()), texts, window=8)
    many = Match(new_context(tiny()), texts, window=8, n_kept=3)
    for _again in range(2):
        assert score_all(many, FULL, masks, 3) == score_all(one, FULL, masks, 3)
    assert many.n_parts < one.n_parts


# --- prefix reuse ----------------------------------------------------------------------------

OBJECTIVES = {
    "ppl": Perplexity,
    "match": lambda context, chunks, **more: Match(context, chunks, window=8, **more),
}
BASES = {
    "full": FULL,
    "interior": LayerMask.skipping(N_LAYER, attn=[1], ffn=[2]),
    "first and last": LayerMask.skipping(N_LAYER, attn=[1, 2], ffn=[1, 2]),
}


@EACH_ARCH
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("base", BASES)
def test_reuse_changes_nothing_but_the_work(arch, objective, base, tiny, new_context, texts):
    new, model = OBJECTIVES[objective], tiny(arch)
    near = [LayerMask.skipping(N_LAYER, attn=[1, 2], ffn=[1]), LayerMask.skipping(N_LAYER, ffn=[3])]
    masks = [BASES[base], *near, *random_masks(5)]
    reusing = new(new_context(model), texts)
    anew = new(new_context(model), texts, cache_bytes=0)
    assert score_all(reusing, BASES[base], masks) == score_all(anew, BASES[base], masks)
    assert reusing.n_parts < anew.n_parts


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_masks_in_the_wrong_order_are_right_too(objective, tiny, new_context, texts):
    masks = random_masks(6)
    reusing = OBJECTIVES[objective](new_context(tiny()), texts)
    anew = OBJECTIVES[objective](new_context(tiny()), texts, cache_bytes=0)
    assert list(reusing.scores(0, FULL, masks)) == list(anew.scores(0, FULL, masks))


def test_states_enter_where_the_masks_begin_to_differ():
    base = LayerMask.skipping(N_LAYER, attn=[1])
    assert entry(base, LayerMask.skipping(N_LAYER, attn=[1, 2])) == 2
    assert entry(base, FULL) == 1
    assert entry(base, base) == 3
    assert entry(FULL, LayerMask.early_exit(N_LAYER, 2)) == 1  # something must run


# --- errors and own text ---------------------------------------------------------------------


def test_windows_that_do_not_fit(tiny, new_context, texts):
    with pytest.raises(ArgumentError, match="1 to 64 tokens, got 65"):
        Match(new_context(tiny()), texts, window=65)
    with pytest.raises(ArgumentError, match="no room for a window of 25"):
        next(Match(new_context(tiny()), texts, window=25).scores(0, FULL, [FULL]))
    with pytest.raises(ArgumentError, match="n_seq_max of 4 or more, got 3"):
        Match(new_context(tiny(), n_seq_max=3), texts, n_kept=3)


def test_own_text_is_the_models_and_repeats_with_its_seed(tiny, new_context, texts):
    context = new_context(tiny())
    text = own_text.continued(context, texts[0], 7)
    assert text[: N_CTX // 2] == texts[0][: N_CTX // 2] and len(text) == N_CTX
    assert text == own_text.continued(context, texts[0], 7)
    assert text != own_text.continued(context, texts[0], 8) != texts[0]
