"""The likeliest tree, against all trees; and the drafter that makes some."""

import itertools

import numpy as np
import pytest
from drafts import parents_of
from simulation import table

from pyselfspec.errors import ArgumentError
from pyselfspec.speculate.branches import likeliest, n_within
from pyselfspec.speculate.controllers._choice import Choice
from pyselfspec.speculate.drafters import ngram
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.testing.conformance import DrafterConformance, drafted, generated, tokens_of
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_model import FakeModel, plain_tokens


def expected(draft):
    """Tokens of a tree that are expected to be accepted."""
    right = []
    for parent, chance in zip(parents_of(draft), draft.probs, strict=True):
        right.append(chance * (right[parent] if parent >= 0 else 1.0))
    return sum(right)


def all_chances(continuations, depth, path=(), right=1.0):
    """Paths and how likely they are right as a whole, all that there are."""
    for token, chance in continuations(path) if depth else ():
        yield (*path, token), right * chance
        yield from all_chances(continuations, depth - 1, (*path, token), right * chance)


def random_continuations(seed):
    def continuations(path):
        rng = np.random.default_rng([seed, *path])
        chances = np.sort(rng.dirichlet([0.5] * 4))[::-1][: rng.integers(4)]
        return [(i + 1, float(p)) for i, p in enumerate(chances)]

    return continuations


@pytest.mark.parametrize("seed", range(20))
def test_no_tree_of_as_many_tokens_is_likelier(seed):
    """All sets of three paths that hold the beginnings of each."""
    continuations = random_continuations(seed)
    chances = dict(all_chances(continuations, 3))
    best = max(
        (
            sum(chances[path] for path in paths)
            for n in range(4)
            for paths in itertools.combinations(chances, n)
            if all(path[:-1] in paths for path in paths if len(path) > 1)
        ),
        default=0.0,
    )
    assert expected(likeliest(3, 9, continuations)) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_branches", [1, 2, 3])
def test_the_likeliest_branch_comes_first_and_there_are_no_more_than_allowed(n_branches, seed):
    continuations = random_continuations(seed)
    draft = likeliest(7, n_branches, continuations)
    assert n_within(draft, n_branches) == len(draft.tokens) <= 7
    path = ()
    for token, parent in zip(draft.token_ids, parents_of(draft), strict=True):
        if parent != len(path) - 1:
            break  # the second branch
        assert token == continuations(path)[0][0]
        path += (token,)
    for node in range(-1, len(draft.tokens)):
        tokens = [draft.token_ids[i] for i in draft.children(node)]
        assert tokens == sorted(set(tokens))  # the likelier sibling first, none twice


def test_one_branch_is_the_chain():
    continuations = {
        (): [(5, 0.5), (6, 0.4)],
        (5,): [(7, 0.1)],
        (5, 7): [],
        (6,): [(8, 1.0)],
        (6, 8): [],
    }
    assert likeliest(4, 1, continuations.__getitem__).token_ids == (5, 7)
    both = likeliest(4, 2, continuations.__getitem__)
    assert (both.token_ids, parents_of(both)) == ((5, 7, 6, 8), (-1, 0, -1, 2))


# n-grams


class TestBranchesOfCopies(DrafterConformance):
    def make(self, context):
        return ngram.make(context, ngram.Options(session=False, n_branches=3))


def test_what_else_has_followed_is_a_branch():
    context = FakeContext(FakeModel())
    drafter = ngram.make(context, ngram.Options(session=False, n_branches=2, chance_min=0))
    history = [1, 2, 9, 4, 1, 3, 9, 5, 1]
    drafter.begin(context.sequence(), history)
    draft = drafted(drafter, context, DraftLimit(4), history)
    assert {draft.token_ids[i] for i in draft.children(-1)} == {2, 3}
    chain = drafted(
        ngram.make(context, ngram.Options(session=False, chance_min=0)),
        context,
        DraftLimit(4),
        history,
    )
    assert chain.is_chain and len(draft.tokens) == len(chain.tokens)
    first = [draft.token_ids[i] for i in range(n_within(draft, 1))]
    assert first == list(chain.token_ids[: len(first)])


@pytest.mark.parametrize("seed", range(5))
def test_branches_are_taken_and_the_text_is_the_plain_one(seed):
    """A model of few tokens, which repeats itself."""
    model = FakeModel(seed=seed, n_vocab=4)
    context = FakeContext(model)
    drafter = ngram.make(context, ngram.Options(session=False, n_branches=4, chance_min=0))
    prompt = [1, 2, 1, 3, 1, 2, 3]
    steps = generated(drafter, context, n_max=6, n_predict=60, prompt=prompt)
    assert tokens_of(steps) == plain_tokens(model, prompt, 60)
    paths = [step.verdict.path for step in steps]
    assert any(path != tuple(range(len(path))) for path in paths)


def test_sequences_that_others_use_are_not_drafted_for():
    context = FakeContext(FakeModel(), n_seq_max=2)
    drafter = ngram.make(context, ngram.Options(session=False, n_branches=2))
    history = [1, 2, 9, 4, 1, 3, 9, 5, 1]
    drafter.begin(context.sequence(), history)
    context.sequence_table.occupy(0)
    context.sequence_table.occupy(1)
    assert drafted(drafter, context, DraftLimit(4), history).is_chain


@pytest.mark.parametrize(("n", "message"), [(0, "at least 1, got 0"), (5, "at most 4, got 5")])
def test_branches_that_cannot_be_are_refused(n, message):
    with pytest.raises(ArgumentError, match=message):
        ngram.make(FakeContext(FakeModel(), n_seq_max=4), ngram.Options(n_branches=n))


def test_there_are_no_branches_where_a_shared_pass_decides_how_much_it_verifies():
    """It may leave out the last rows, and those are not the least likely ones of a tree."""
    context = FakeContext(FakeModel())
    drafter = ngram.make(context, ngram.Options(session=False, n_branches=2, chance_min=0))
    history = [1, 2, 9, 4, 1, 3, 9, 5, 1]
    drafter.begin(context.sequence(), history)
    costs = table().levels[0]
    limit = Choice(0, 0.0, n_copies=4, costs=costs, offers=True)
    draft = drafted(drafter, context, limit, history)
    assert len(draft.tokens) > 1 and draft.is_chain
