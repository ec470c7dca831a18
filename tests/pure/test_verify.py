"""Sample and match emits exactly the target's draws, whatever the draft."""

from collections import Counter

import numpy as np
import pytest
from drafts import draft_of
from drawn_tokens import (
    CHAIN_LAWS,
    DRAFTS,
    LAWS,
    TREES,
    assert_follows,
    chains,
    chi_square_limit,
    generate,
)
from parameters import for_seeds

from pyselfspec.speculate.types import Step, Verdict
from pyselfspec.speculate.verify import verify


class Script:
    """Draws from a list, one after another, and keeps what was asked and told."""

    def __init__(self, draws, ending=()):
        self.draws, self.ending = draws, ending
        self.asked, self.told = [], []

    def sample(self, row):
        self.asked.append(row)
        return self.draws[len(self.asked) - 1]

    def ends(self, token):
        self.told.append(token)
        return token in self.ending

    def verify(self, draft, parents=()):
        return verify(draft_of(draft, parents=parents or None), self.sample, self.ends)


def emitted(draft, verdict, parents=()):
    return list(Step(draft_of(draft, parents=parents or None), verdict, 0).tokens)


@for_seeds(200)
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
    assert verdict == Verdict.of_chain(verdict.n_accepted, verdict.next_token, verdict.ended)


# trees


@pytest.mark.parametrize(
    ("tokens", "parents", "draws", "rows", "verdict"),
    [
        pytest.param([1, 2], [-1, -1], [1, 7], [0, 1], Verdict((0,), 7, False), id="first branch"),
        pytest.param([1, 2], [-1, -1], [2, 7], [0, 2], Verdict((1,), 7, False), id="second branch"),
        pytest.param([1, 2], [-1, -1], [7], [0], Verdict((), 7, False), id="neither branch"),
        pytest.param(
            [1, 2, 3, 3, 4], [-1, -1, 0, 1, 3], [2, 3, 4, 7], [0, 2, 4, 5],
            Verdict((1, 3, 4), 7, False), id="to a leaf",
        ),
        pytest.param(
            [1, 2, 3, 4], [-1, -1, 0, 1], [2, 3], [0, 2],
            Verdict((1,), 3, False), id="a cousin's token is none of its own",
        ),
        pytest.param(
            [1, 2, 2], [-1, 0, -1], [2, 7], [0, 3],
            Verdict((2,), 7, False), id="a child's token is none of the text's",
        ),
        pytest.param(
            [1, 1, 5], [-1, -1, 0], [1, 5, 7], [0, 1, 3],
            Verdict((0, 2), 7, False), id="of two equal ones the first",
        ),
        pytest.param(
            [0, 1, 2], [-1, -1, 0], [0], [0], Verdict((0,), None, True), id="end inside a branch"
        ),
        pytest.param(
            [1, 2, 0], [-1, -1, 1], [2, 0], [0, 2], Verdict((1, 2), None, True), id="end at a leaf"
        ),
        pytest.param(
            [1, 2, 3], [-1, -1, 1], [2, 0], [0, 2], Verdict((1,), 0, True), id="end as correction"
        ),
    ],
)  # fmt: skip
def test_verdicts_on_trees(tokens, parents, draws, rows, verdict):
    script = Script(draws, ending={0})
    assert script.verify(tokens, parents) == verdict
    assert script.asked == rows
    assert script.told == draws == emitted(tokens, verdict, parents)


def random_tree(seed: int) -> tuple[np.random.Generator, list[int], list[int], list[int]]:
    """Draws, and tokens and parents of a tree in which they find a way. Siblings may have the same
    token."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(3, size=30).tolist()
    n = int(rng.integers(1, 25))
    parents = [int(rng.integers(max(-1, i - rng.integers(1, 9)), i)) for i in range(n)]
    tokens = rng.integers(3, size=n).tolist()
    path = [int(rng.integers(n))]
    while path[0] >= 0:
        path.insert(0, parents[path[0]])
    for node, token in zip(path[1 : 1 + rng.integers(len(path))], draws, strict=False):
        tokens[node] = token  # or hardly any path would get past its first tokens
    return rng, draws, tokens, parents


@for_seeds(150)
def test_a_verified_tree_emits_what_plain_sampling_does(seed):
    rng, draws, tokens, parents = random_tree(seed)
    ending = set(rng.choice(3, size=rng.integers(3), replace=False).tolist())

    script = Script(draws, ending)
    verdict = script.verify(tokens, parents)
    path, out = verdict.path, emitted(tokens, verdict, parents)

    # the text is that of plain sampling: the same draws, each made once, none beyond the end
    assert out == script.told == draws[: len(out)]
    assert verdict.ended == (out[-1] in ending) and not ending.intersection(out[:-1])
    # what was accepted is a path from the text down
    assert [parents[i] for i in path] == [-1, *path[:-1]][: len(path)]
    # every token was drawn in the row of the one before it, and no other row was looked at
    rows = [parents[i] + 1 for i in path]
    if verdict.next_token is not None:
        rows.append(path[-1] + 1 if path else 0)
    assert script.asked == rows == sorted(set(rows)) and len(rows) == len(out)
    # and it went down as far as there was a branch for
    if verdict.next_token is None:
        assert verdict.ended
    else:
        last = path[-1] if path else -1
        children = [token for token, parent in zip(tokens, parents, strict=True) if parent == last]
        assert verdict.next_token not in children


def test_random_trees_are_worth_verifying():
    """The drafts of the test above branch and have long paths."""
    n_branching, lengths = 0, Counter()
    for seed in range(150):
        _, draws, tokens, parents = random_tree(seed)
        n_branching += not draft_of(tokens, parents=parents).is_chain
        lengths[Script(draws).verify(tokens, parents).n_accepted] += 1
    assert n_branching > 100
    assert all(lengths[n] > 10 for n in range(4)), lengths


# the distribution of emitted tokens


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
    propose = chains(DRAFTS[kind], n_draft)
    assert_follows([generate(propose, draw) for _ in range(12_000)], LAWS)


@pytest.mark.parametrize("kind", TREES)
def test_tokens_emitted_by_trees_follow_the_target_law(kind):
    seed = 8
    print("seed", seed)
    draw = table_draw(np.random.default_rng(seed), LAWS)
    assert not TREES[kind](()).is_chain
    assert_follows([generate(TREES[kind], draw) for _ in range(12_000)], LAWS)


def test_the_law_test_sees_a_biased_rule():
    """Accepting a drafted token one time in twenty that it differs is found out."""
    seed = 6
    print("seed", seed)
    rng = np.random.default_rng(seed)

    def lenient(draft, sample, ends):
        def bend(row):
            token = sample(row)
            differs = row < len(draft.tokens) and rng.random() < 0.05
            return draft.tokens[row].token if differs else token

        return verify(draft, bend, ends)

    draw = table_draw(rng, LAWS)
    propose = chains(DRAFTS["likeliest"], 2)
    texts = [generate(propose, draw, lenient) for _ in range(12_000)]
    with pytest.raises(AssertionError, match="token 1"):
        assert_follows(texts, LAWS)


# the same with a chain of llama.cpp, which needs no model unless there is a grammar


def test_both_cuts_of_the_chain_are_in_the_laws():
    n_left = {prefix: int((law > 0).sum()) for prefix, law in CHAIN_LAWS.items()}
    assert n_left[()] == 3  # 6 4 3 of 6 4 3 2 1: min_p
    assert n_left[1,] == 4  # 6 5 4 3.5 of 6 5 4 3.5 3: top_k
