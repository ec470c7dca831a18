"""Sample and match emits exactly the target's draws, whatever the draft."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from pyselfspec import Model, Sampler, SamplingParams
from pyselfspec.speculate.types import Verdict
from pyselfspec.speculate.verify import verify

N_VOCAB = 5
Prefix = tuple[int, ...]


class Script:
    """Draws from a list and keeps what was asked and told."""

    def __init__(self, draws, ending=()):
        self.draws, self.ending = draws, ending
        self.asked, self.told = [], []

    def sample(self, i):
        self.asked.append(i)
        return self.draws[i]

    def ends(self, token):
        self.told.append(token)
        return token in self.ending

    def verify(self, draft):
        return verify(draft, self.sample, self.ends)


def emitted(draft, verdict):
    own = [] if verdict.next_token is None else [verdict.next_token]
    return [*draft[: verdict.n_accepted], *own]


@pytest.mark.parametrize(
    ("draft", "draws", "verdict"),
    [
        pytest.param([], [7], Verdict.of_chain(0, 7, False), id="no draft"),
        pytest.param([1, 2], [7], Verdict.of_chain(0, 7, False), id="none accepted"),
        pytest.param([1, 2], [1, 7], Verdict.of_chain(1, 7, False), id="some accepted"),
        pytest.param([1, 2], [1, 2, 7], Verdict.of_chain(2, 7, False), id="all accepted"),
        pytest.param([1, 0, 2], [1, 0], Verdict.of_chain(2, None, True), id="end inside the draft"),
        pytest.param([0], [0], Verdict.of_chain(1, None, True), id="end is all of the draft"),
        pytest.param([1, 2], [1, 0], Verdict.of_chain(1, 0, True), id="end as correction"),
        pytest.param([1, 2], [1, 2, 0], Verdict.of_chain(2, 0, True), id="end as bonus"),
        pytest.param([1, 0], [1, 7], Verdict.of_chain(1, 7, False), id="drafted end rejected"),
    ],
)
def test_verdicts(draft, draws, verdict):
    script = Script(draws, ending={0})
    assert script.verify(draft) == verdict
    assert script.asked == list(range(len(draws)))
    assert script.told == draws


@pytest.mark.parametrize("seed", range(200))
def test_a_verified_draft_emits_what_plain_sampling_does(seed):
    rng = np.random.default_rng(seed)
    draws = rng.integers(3, size=12).tolist()
    draft = rng.integers(3, size=rng.integers(8)).tolist()
    good = rng.integers(len(draft) + 1)
    draft[:good] = draws[:good]  # or hardly any draft would live past its first tokens
    ending = set(rng.choice(3, size=rng.integers(3), replace=False).tolist())

    script = Script(draws, ending)
    verdict = script.verify(draft)
    tokens = emitted(draft, verdict)

    assert tokens == draws[: len(tokens)]
    assert script.asked == list(range(len(tokens)))  # one draw per token, none beyond
    assert script.told == tokens
    assert verdict.ended == (tokens[-1] in ending)
    assert not ending.intersection(tokens[:-1])
    stopped_early = len(tokens) <= len(draft)
    assert not stopped_early or verdict.ended or tokens[-1] != draft[len(tokens) - 1]


# the law of what is emitted


def p_law(prefix: Prefix) -> np.ndarray:
    """The toy model: five tokens, a law that depends on every token of the prefix."""
    weights = [3.0, 3.5, 4.0, 5.0, 6.0] if sum(prefix) % 2 else [1.0, 2.0, 3.0, 4.0, 6.0]
    shuffled = np.random.default_rng([11, *prefix]).permutation(weights)
    return shuffled / shuffled.sum()


LAWS = {
    prefix: p_law(prefix)
    for n in range(3)
    for prefix in map(tuple, np.ndindex(*[N_VOCAB] * n))
}  # fmt: skip

DRAFTS: dict[str, Callable[[Prefix], int]] = {
    "likeliest": lambda prefix: int(p_law(prefix).argmax()),
    "unlikeliest": lambda prefix: int(p_law(prefix).argmin()),
    "constant": lambda prefix: 2,
    "arbitrary": lambda prefix: (3 * sum(prefix) + len(prefix)) % N_VOCAB,
}


def chi_square_limit(n_free: int) -> float:
    """What chi-square of n_free degrees of freedom exceeds once in 10 000.

    The approximation of Wilson and Hilferty, at most 5 % too lenient.
    """
    z = 3.719016  # of the normal law
    return n_free * (1 - 2 / (9 * n_free) + z * (2 / (9 * n_free)) ** 0.5) ** 3


def assert_follows(texts: list[Prefix], laws: dict[Prefix, np.ndarray]) -> None:
    """Every position's tokens, given what came before, are drawn from the law of that prefix."""
    for n in range(3):
        n_seen = Counter(text[:n] for text in texts)
        counts = Counter(text[: n + 1] for text in texts)
        statistic, n_free = 0.0, 0
        for prefix, n_texts in n_seen.items():
            observed = np.array([counts[*prefix, token] for token in range(N_VOCAB)])
            law = laws[prefix]
            assert not observed[law == 0].any()
            expected = n_texts * law[law > 0]
            statistic += float(((observed[law > 0] - expected) ** 2 / expected).sum())
            n_free += len(expected) - 1
        assert statistic < chi_square_limit(n_free), f"token {n + 1}: {statistic:.1f} of {n_free}"


def generate(draft_next, n_draft, draw, accept=verify) -> Prefix:
    """Three tokens or more, drafted and verified until there are enough."""
    text: Prefix = ()
    while len(text) < 3:
        draft: list[int] = []
        while len(draft) < min(n_draft, 2 - len(text)):
            draft.append(draft_next((*text, *draft)))
        verdict = accept(draft, lambda i: draw((*text, *draft[:i])), lambda token: False)  # noqa: B023
        text = (*text, *emitted(draft, verdict))
    return text


def table_draw(rng, laws):
    edges = {prefix: law.cumsum()[:-1] for prefix, law in laws.items()}

    def draw(prefix):
        return int(edges[prefix].searchsorted(rng.random(), side="right"))

    return draw


def test_the_tabulated_limits_hold():
    assert chi_square_limit(4) == pytest.approx(23.51, rel=0.03)
    assert chi_square_limit(100) == pytest.approx(161.3, rel=0.01)


@pytest.mark.parametrize("n_draft", [1, 2])
@pytest.mark.parametrize("kind", DRAFTS)
def test_emitted_tokens_follow_the_target_law(kind, n_draft):
    seed = 5
    print("seed", seed)
    rng = np.random.default_rng(seed)
    draw = table_draw(rng, LAWS)
    texts = [generate(DRAFTS[kind], n_draft, draw) for _ in range(12_000)]
    assert_follows(texts, LAWS)


def test_the_law_test_sees_a_biased_rule():
    """Accepting a drafted token one time in twenty that it differs is found out."""
    seed = 6
    print("seed", seed)
    rng = np.random.default_rng(seed)

    def lenient(draft, sample, ends):
        def bend(i):
            token = sample(i)
            return draft[i] if i < len(draft) and rng.random() < 0.05 else token

        return verify(draft, bend, ends)

    draw = table_draw(rng, LAWS)
    texts = [generate(DRAFTS["likeliest"], 2, draw, lenient) for _ in range(12_000)]
    with pytest.raises(AssertionError, match="token 1"):
        assert_follows(texts, LAWS)


# the same with a chain of llama.cpp, which needs no model unless there is a grammar


PARAMS = SamplingParams(temperature=0.7, top_k=4, top_p=1.0, min_p=0.4, seed=7)


def chain_law(p: np.ndarray) -> np.ndarray:
    """top_k, then min_p on the untempered probabilities, then temperature."""
    kept = (p >= np.sort(p)[-PARAMS.top_k]) & (p >= PARAMS.min_p * p.max())
    tempered = np.where(kept, p ** (1 / PARAMS.temperature), 0.0)
    return tempered / tempered.sum()


CHAIN_LAWS = {prefix: chain_law(law) for prefix, law in LAWS.items()}
LOGITS = {prefix: np.log(law).astype(np.float32) + 3 for prefix, law in LAWS.items()}


def chain() -> Sampler:
    return Sampler(cast(Model, SimpleNamespace(n_vocab=5)), PARAMS)


def test_both_cuts_of_the_chain_are_in_the_laws():
    n_left = {prefix: int((law > 0).sum()) for prefix, law in CHAIN_LAWS.items()}
    assert n_left[()] == 3  # 6 4 3 of 6 4 3 2 1: min_p
    assert n_left[1,] == 4  # 6 5 4 3.5 of 6 5 4 3.5 3: top_k


@pytest.mark.parametrize("kind", ["none", *DRAFTS])
def test_a_real_chain_follows_its_law(kind):
    print("seed", PARAMS.seed)
    with chain() as sampler:
        texts = [
            generate(
                DRAFTS.get(kind),
                0 if kind == "none" else 2,
                lambda prefix: sampler.sample_logits(LOGITS[prefix]),
            )
            for _ in range(8_000)
        ]
    assert_follows(texts, CHAIN_LAWS)


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_real_chain_gives_the_same_text_with_and_without_drafts(kind):
    def texts(n_draft):
        with chain() as sampler:
            draw = lambda prefix: sampler.sample_logits(LOGITS[prefix])  # noqa: E731
            return [generate(DRAFTS[kind], n_draft, draw) for _ in range(500)]

    assert texts(2) == texts(0)


def test_begin_restarts_the_random_stream():
    with chain() as sampler:
        runs = []
        for _ in range(2):
            sampler.begin([])
            runs.append([sampler.sample_logits(LOGITS[()]) for _ in range(50)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1
