"""The lengths of copies that the default controller chooses, against all possible choices."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from drafts import draft_of
from parameters import for_seeds
from simulation import BF16, FEW_ROWS, K_QUANT, NARROW, Q8_0, TINY, table

from pyselfspec.costs.table import N_WIDTH
from pyselfspec.costs.timed import TimedCosts
from pyselfspec.runtime.pass_result import SINGLE, BatchLoad
from pyselfspec.speculate.controllers import Learned
from pyselfspec.speculate.controllers._choice import COPY_LENGTHS, GAIN_MIN, Choice
from pyselfspec.speculate.controllers._decision import Rule
from pyselfspec.speculate.controllers.auto import make
from pyselfspec.speculate.types import Draft, Step, Verdict

GROWTHS = {
    "Q4_0": FEW_ROWS,
    "Q4_K_M": K_QUANT,
    "AVX2": NARROW,
    "BF16": BF16,
    "stock": Q8_0,
    "tiny": TINY,
    "free": 0.0,
}


def choice(costs, n_copies=15, n_max=0, rule_after=None):
    return Choice(n_max, n_copies=n_copies, costs=costs, rule_after=rule_after)


def copied(chances):
    """A chain of copies with these probabilities."""
    return Draft.copied(range(len(chances)), chances)


def split(limit, chances):
    """How many copies a limit takes, and the limit for draft passes after them."""
    start, rest = limit.split(copied(chances))
    return len(start.tokens), rest


def value(chances, n):
    """Expected tokens of a step that verifies n copies."""
    return 1 + sum(math.prod(chances[:i]) for i in range(1, n + 1))


@pytest.mark.parametrize("growth", GROWTHS)
@for_seeds(20)
def test_it_takes_what_promises_most_tokens_for_the_time(growth, seed):
    rng = random.Random(seed)
    costs = table(growth=GROWTHS[growth], shared=0.0).levels[0]
    costs = replace(costs, removal_us=rng.choice((0.0, 0.5)) * costs.plain_us)
    chances = [rng.random() ** rng.choice((0.1, 1, 4)) for _ in range(rng.randrange(12))]
    n_copies = rng.randrange(16)
    n, rest = split(choice(costs, n_copies), chances)
    assert rest.n_max == 0
    allowed = [i for i in COPY_LENGTHS if i <= min(len(chances), n_copies)]
    removal_us = {i: (1 - math.prod(chances[:i])) * costs.removal_us for i in allowed}
    speeds = {i: value(chances, i) / (costs.full_us[i] + removal_us[i]) for i in allowed}
    best = max(speeds.values())
    if best > (1 + GAIN_MIN) * speeds[0]:
        assert speeds[n] == pytest.approx(best)
    else:
        assert n == 0
    cut = choice(costs, n_copies).truncate(copied(chances))
    assert cut.token_ids == tuple(range(n)) and cut.n_copied == n


@for_seeds(20)
def test_drafts_behind_copies_are_weighed_against_copies_alone(seed):
    """All pairs of copies and rules, written out."""
    rng = random.Random(seed)
    costs = table(0.3, FEW_ROWS, shared=0.25).levels[0]
    rules = [
        Rule(4, 0.5, 1 + 3 * rng.random(), costs.step_us(4, 4, n) * rng.uniform(0.8, 1))
        for n in range(8)
    ]
    chances = [rng.random() ** rng.choice((0.3, 2)) for _ in range(3)]
    n, rest = split(choice(costs, n_max=4, rule_after=rules.__getitem__), chances)
    options = {(0, None): (1 + GAIN_MIN) / costs.plain_us}
    for i in range(len(chances) + 1):
        expected = value(chances, i)
        if i:
            options[i, None] = expected / costs.full_us[i]
        behind = math.prod(chances[:i]) * (rules[i].tokens - 1)
        options[i, rules[i]] = (expected + behind) / rules[i].us
    best, rule = max(options, key=options.get)
    assert n == best
    assert (rest.n_max, rest.p_min) == ((0, 0.0) if rule is None else (4, 0.5))


def test_a_probe_is_made_where_nothing_is_copied():
    costs = table(0.3, FEW_ROWS, shared=0.25).levels[0]
    probing = choice(costs, n_max=1)
    assert split(probing, [])[1].n_max == 1
    n, rest = split(probing, [0.9])
    assert n == 1 and rest.n_max == 0


@pytest.mark.parametrize("room", range(6))
def test_copies_and_drafts_fit_into_the_room_that_is_left(room):
    costs = table(0.1, 0.01, shared=0.25).levels[0]
    rule = Rule(4, 0.0, 4.5, costs.step_us(4, 4))
    limit = choice(costs, n_max=4, rule_after=lambda n: rule).capped(room)
    for n_chances in range(6):
        n, rest = split(limit, [0.5] * n_chances)
        assert n + rest.n_max <= room


# in a world without a model


class Copies:
    """A text whose copies are right as often as they say.

    alphas: of its phases of 100 tokens; None: there is nothing to copy.
    """

    def __init__(self, alphas, rng):
        self.alphas, self.rng, self.n_tokens = itertools.cycle(alphas), rng, 0
        self.alpha = next(self.alphas)

    def chances(self, n_max):
        alpha = self.alpha
        if alpha is None or not n_max:
            return []
        return [float(self.rng.beta(4 * alpha, 4 * (1 - alpha))) for _ in range(n_max)]

    def add(self, n):
        if (self.n_tokens + n) // 100 > self.n_tokens // 100:
            self.alpha = next(self.alphas)
        self.n_tokens += n


def run(controller, text, true, n_tokens, noise=0.03, busy=0.0):
    """Speed over plain decoding. busy: share of the passes that take five times as long."""
    costs, rng, spent, n_steps = true.levels[0], text.rng, 0.0, 0
    while text.n_tokens < n_tokens:
        limit = controller.limit(text.n_tokens)
        chances = text.chances(limit.max_lookup)
        draft = limit.truncate(copied(chances))
        n = draft.n_copied
        n_right = next((i for i in range(n) if rng.random() >= chances[i]), n)
        us = costs.full_us[n] * float(np.exp(rng.normal(0, noise)))
        us *= 5 if rng.random() < busy else 1
        step = Step(
            replace(draft, draft_us=int(n > 0)),
            Verdict.of_chain(n_right, 1, False),
            round(us),
        )
        controller.observe(step)
        text.add(len(step.tokens))
        spent += us
        n_steps += 1
    return text.n_tokens * costs.plain_us * (1 + 4 * busy) / spent


def free(growth):
    """Costs of copies: drafts take nothing."""
    return table(0.0, growth, shared=0.0)


TEXTS = {
    "nothing": [None],
    "hopeless": [0.02],
    "weak": [0.2],
    "mixed": [0.9, None, 0.3, 0.05],
    "copies": [0.97],
}


def speeds(growth, alphas, believed=None, n_texts=3, **options):
    """Return the speeds of successive texts; each starts with what the earlier ones taught."""
    true = free(GROWTHS[growth])
    found = []
    for seed in range(8):
        memory = Learned(TimedCosts(believed or true))
        for i in range(n_texts):
            text = Copies(alphas, np.random.default_rng(100 * seed + i))
            found.append(run(make(true, Learned(memory.timings)), text, true, 300, **options))
    return found


@pytest.mark.parametrize("believed", [None, 0.25], ids=["measured", "by bytes"])
@pytest.mark.parametrize("alphas", TEXTS)
@pytest.mark.parametrize("growth", GROWTHS)
def test_copies_never_lose(growth, alphas, believed):
    table = None if believed is None else free(believed)
    found = speeds(growth, TEXTS[alphas], table)
    assert len(found) / sum(1 / speed for speed in found) >= 0.985


@pytest.mark.parametrize("growth", GROWTHS)
def test_they_hardly_lose_on_a_busy_machine(growth):
    found = speeds(growth, TEXTS["weak"], busy=0.05, noise=0.2)
    assert len(found) / sum(1 / speed for speed in found) >= 0.97


@pytest.mark.parametrize("growth", ["Q4_0", "Q4_K_M", "AVX2", "BF16"])
def test_they_gain_what_there_is_to_gain(growth):
    """Beside a controller that knows all costs from the start and times nothing."""
    true = free(GROWTHS[growth])
    rng = np.random.default_rng(1)
    known = choice(true.levels[0])
    text, spent = Copies(TEXTS["mixed"], rng), 0.0
    while text.n_tokens < 6000:
        chances = text.chances(15)
        n = split(known, chances)[0]
        n_right = next((i for i in range(n) if rng.random() >= chances[i]), n)
        text.add(n_right + 1)
        spent += true.levels[0].full_us[n]
    best = text.n_tokens * true.levels[0].plain_us / spent
    assert best > 1.12
    found = speeds(growth, TEXTS["mixed"], free(0.25), n_texts=6)[3:]
    assert len(found) / sum(1 / speed for speed in found) >= 0.95 * best


def test_widths_are_tried_from_narrow_to_wide():
    controller = make(free(0.01))
    limits = []
    for _ in range(40):
        limits.append(controller.limit(0).max_lookup)
        draft = controller.limit(0).truncate(Draft.copied([1] * 15, [1.0] * 15))
        verdict = Verdict.of_chain(len(draft.tokens), 1, False)
        controller.observe(Step(draft, verdict, 1000))
    drafting = [n for n in limits if n]
    assert drafting[0] < 5 and max(drafting) == N_WIDTH - 1
    assert all(b <= 2 * a + 3 for a, b in itertools.pairwise(drafting))


def test_there_is_room_for_the_graphs_of_all_lengths():
    """Twelve are kept, see graph/slots.h; a pass whose graph is not is built anew."""
    assert len(COPY_LENGTHS) <= 9 and COPY_LENGTHS[-1] == N_WIDTH - 1


# beside other texts

SHARED = BatchLoad(7, 8, tuple(2000.0 + 100 * n for n in range(32)))


def step_among(batch_load, n=0, us=1000.0):
    return Step(
        draft_of((1,) * n, (0.5,) * n, n_copied=n), Verdict.of_chain(0, 1, False), us, batch_load
    )


def offered(controller, chances=(0.6, 0.5, 0.1)):
    return controller.limit(0).truncate(copied(chances))


def test_beside_others_all_that_may_pay_is_offered_and_alone_the_text_decides_again():
    controller = make(table(0.0, 0.3, shared=0.0))
    alone = offered(controller)
    assert len(alone.tokens) < 3 and not alone.is_offer
    controller.observe(step_among(SHARED))
    beside = offered(controller)
    # a row adds 100 us for each of eight texts to a pass of 2800 us: the third token cannot pay
    assert [round(chance, 2) for chance in beside.survival] == [0.6, 0.3] and beside.is_offer
    assert not offered(controller, (0.28, 1.0, 1.0)).tokens
    assert not controller.limit(0).truncate(Draft.copied([1, 2])).tokens  # of unknown chances
    for _ in range(3):  # the first of which time plain decoding
        controller.observe(step_among(SINGLE))
    assert offered(controller) == alone and not offered(controller).is_offer


def test_texts_rest_as_long_as_the_batch_has_no_credit():
    controller = make(table(0.0, 0.1, shared=0.0))
    controller.observe(step_among(SHARED._replace(n_rests=2)))
    assert controller.limit(0).rests
    controller.observe(step_among(SHARED))
    assert controller.limit(0).rests
    controller.observe(step_among(SHARED))
    assert not controller.limit(0).rests
    controller.observe(step_among(SHARED._replace(n_rests=100)))
    controller.observe(step_among(SINGLE))
    assert not controller.limit(0).rests  # the others have gone


def test_shared_passes_teach_nothing_about_own_ones():
    timings = TimedCosts(table(0.0, 0.1, shared=0.0))
    controller = make(timings.table, Learned(timings))
    for us in (1000, 1000, 1000):
        controller.observe(step_among(SINGLE, us=us))
    before = timings.at(0)
    for n in range(100):
        controller.observe(step_among(SHARED, n=n % 4, us=50_000))
    assert timings.at(0) == before
