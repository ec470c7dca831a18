"""Samplers: parameters, seeds, penalties, grammars."""

from __future__ import annotations

import codecs
import collections
import ctypes
import dataclasses
import re
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from parameters import for_seeds

from pyselfspec import GREEDY, Sampler, SamplingParams
from pyselfspec.errors import ArgumentError, DecodeError
from pyselfspec.runtime.ffi import sampler_calls
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.logprobs import logprobs_of
from pyselfspec.runtime.sampling import FLOAT_MAX, SEED_MAX
from tools.models import tiny_vocab

N_VOCAB = tiny_vocab.N_VOCAB_MIN
NAN, INF = float("nan"), float("inf")


def logits(seed: int = 0) -> NDArray[np.float32]:
    return (2 * np.random.default_rng(seed).standard_normal(N_VOCAB)).astype(np.float32)


def draws(model: Any, params: SamplingParams, n: int, prompt: tuple[int, ...] = ()) -> list[int]:
    with Sampler(model, params) as sampler:
        sampler.begin(prompt)
        return [sampler.sample_logits(logits(i)) for i in range(n)]


def only(**logit_of: float) -> NDArray[np.float32]:
    """Logits of -50 but for the tokens t5=..., t6=..."""
    values = np.full(N_VOCAB, -50, np.float32)
    for name, logit in logit_of.items():
        values[int(name[1:])] = logit
    return values


# --- parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", NAN),
        ("temperature", INF),
        ("top_k", -1),
        ("top_k", 2**31),
        ("top_p", 1.1),
        ("top_p", NAN),
        ("min_p", 2.0),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", INF),
        ("repeat_last_n", -1),
        ("repeat_last_n", 2**31),
        ("presence_penalty", NAN),
        ("frequency_penalty", 1e31),
        ("dry_multiplier", -1.0),
        ("dry_base", 0.9),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("dry_penalty_last_n", 2**20 + 1),
        ("dry_sequence_breakers", ("",)),
        ("dry_sequence_breakers", ("é" * 21,)),
        ("dry_sequence_breakers", ("a\0b",)),
        ("dry_sequence_breakers", ("\ud800",)),
        ("dry_sequence_breakers", ("a",) * 65),
        ("top_n_sigma", -1.0),
        ("typical_p", 1.1),
        ("xtc_probability", 1.1),
        ("xtc_threshold", -0.1),
        ("dynatemp_range", -0.1),
        ("dynatemp_exponent", NAN),
        ("top_k", 2.5),
        ("repeat_last_n", 2.5),
        ("seed", 2.5),
        ("seed", -1),
        ("seed", SEED_MAX + 1),
    ],
)
def test_values_outside_their_range(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{name} is .*, got "):
        SamplingParams(**{name: value})


def test_values_at_the_ends_of_their_range(tiny: Any) -> None:
    low = SamplingParams(temperature=0, top_k=0, top_p=0, min_p=0, repeat_last_n=0, seed=0)
    high = SamplingParams(temperature=FLOAT_MAX, top_k=2**31 - 1, top_p=1, min_p=1, seed=SEED_MAX)
    for params in (low, high, dataclasses.replace(low, repeat_penalty=2.0)):
        assert all(0 <= token < N_VOCAB for token in draws(tiny(), params, 5))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on address space")
def test_huge_memory_of_penalties(error_of: Any) -> None:
    """llama.cpp reserves the memory at once; that must not end the process."""
    error = error_of(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "Sampler(model, SamplingParams(repeat_penalty=1.1, repeat_last_n=2**31 - 1))\n"
        "raise ArgumentError('repeat_last_n was cut')"
    )
    assert error.startswith("ArgumentError: repeat_last_n")


# --- candidates ------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3), SamplingParams(top_k=7)])
def test_a_list_of_the_likeliest_tokens_gives_the_same_draws(tiny: Any, params: Any) -> None:
    n_kept = 1 if params.is_greedy else params.top_k
    params = params.with_seed()
    with Sampler(tiny(), params) as one, Sampler(tiny(), params) as other:
        for i in range(50):
            values = np.random.default_rng(i).standard_normal(50_001 - i).astype(np.float32)
            values[i :: 3 + i] = (-INF, NAN)[i % 2]
            drawn = sampler_calls.sample_logits(one.handle, values, n_kept)
            assert drawn == sampler_calls.sample_logits(
                other.handle, np.nan_to_num(values, nan=-INF), 0
            )
        with pytest.raises(DecodeError, match="not numbers"):
            sampler_calls.sample_logits(one.handle, np.full(50_000, NAN, np.float32), n_kept)


# --- draws -----------------------------------------------------------------------------------


def test_greedy(tiny: Any) -> None:
    assert draws(tiny(), GREEDY, 10) == [int(logits(i).argmax()) for i in range(10)]


@pytest.mark.parametrize("temperature", [1e-29, 1e-31, 1e-38, 1e-45, 5e-324])
def test_next_to_no_temperature_is_greedy(tiny: Any, temperature: float) -> None:
    """Logits over it overflow: the draw would be among numbers that are none."""
    params = SamplingParams(temperature=temperature, seed=1)
    assert draws(tiny(), params, 10) == draws(tiny(), GREEDY, 10)


def test_seed(tiny: Any) -> None:
    params = SamplingParams(temperature=1.0, top_k=0, seed=7)
    first = draws(tiny(), params, 30)
    assert draws(tiny(), params, 30) == first
    assert draws(tiny(), dataclasses.replace(params, seed=8), 30) != first


def test_drawn_seed_can_be_used_again(tiny: Any) -> None:
    with Sampler(tiny(), SamplingParams()) as sampler:
        assert sampler.params.seed is not None
        again = draws(tiny(), sampler.params, 30)
        sampler.begin([])
        assert [sampler.sample_logits(logits(i)) for i in range(30)] == again
    seeds = {SamplingParams().with_seed().seed for _ in range(8)}
    assert len(seeds) == 8


def test_a_new_text_starts_the_stream_anew(tiny: Any) -> None:
    with Sampler(tiny(), SamplingParams(temperature=1.0, top_k=0, seed=7)) as sampler:
        texts = []
        for _ in range(2):
            sampler.begin([5, 6])
            texts.append([sampler.sample_logits(logits(i)) for i in range(20)])
    assert texts[0] == texts[1]


def test_two_samplers_have_their_own_streams(tiny: Any) -> None:
    params = SamplingParams(temperature=1.0, top_k=0, seed=7)
    with Sampler(tiny(), params) as one, Sampler(tiny(), params) as two:
        mixed = [(one.sample_logits(logits(i)), two.sample_logits(logits(i))) for i in range(20)]
    assert [a for a, _ in mixed] == [b for _, b in mixed] == draws(tiny(), params, 20)


def test_top_k(tiny: Any) -> None:
    for i, token in enumerate(draws(tiny(), SamplingParams(temperature=9.0, top_k=3, seed=1), 50)):
        assert token in np.argsort(logits(i))[-3:]


def test_probabilities(tiny: Any) -> None:
    """Two likely tokens at 3 : 1; 600 draws lie within five standard deviations."""
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    values = only(t5=float(np.log(3)), t6=0.0)
    with Sampler(tiny(), params) as sampler:
        counts = collections.Counter(sampler.sample_logits(values) for _ in range(600))
    assert set(counts) == {5, 6}
    assert abs(counts[5] - 450) < 5 * np.sqrt(600 * 0.75 * 0.25)


def test_from_a_context_and_from_its_logits(tiny: Any, new_context: Any, token_ids: Any) -> None:
    context = new_context(tiny())
    params = SamplingParams(temperature=1.0, top_k=0, seed=7)
    with Sampler(tiny(), params) as one, Sampler(tiny(), params) as two:
        values = context.decode(token_ids(12)).logits
        for row in range(12):
            assert one.sample(context, row) == two.sample_logits(values[row])


# --- penalties -------------------------------------------------------------------------------


@pytest.mark.sanitized
def test_penalties_see_the_prompt(tiny: Any) -> None:
    params = SamplingParams(temperature=0.0, repeat_penalty=2.0, repeat_last_n=4)
    values = only(t5=3.0, t6=2.0)
    for prompt, want in (
        ([], 5),
        ([5], 6),
        ([5, 7, 8, 9], 6),
        ([5, 7, 8, 9, 10], 5),  # beyond the last four
        ([6], 5),
    ):
        with Sampler(tiny(), params) as sampler:
            sampler.begin(prompt)
            assert sampler.sample_logits(values) == want, prompt


def test_penalties_see_what_was_drawn(tiny: Any) -> None:
    params = SamplingParams(temperature=0.0, repeat_penalty=2.0, repeat_last_n=1)
    with Sampler(tiny(), params) as sampler:
        sampler.begin([])
        drawn = [sampler.sample_logits(only(t5=3.0, t6=2.0)) for _ in range(6)]
    assert drawn == [5, 6, 5, 6, 5, 6]


def test_penalties_of_the_last_text_are_forgotten(tiny: Any) -> None:
    with Sampler(tiny(), SamplingParams(temperature=0.0, repeat_penalty=2.0)) as sampler:
        sampler.begin([5])
        sampler.begin([])
        assert sampler.sample_logits(only(t5=3.0, t6=2.0)) == 5


def test_repeat_last_n_zero_penalizes_nothing(tiny: Any) -> None:
    params = SamplingParams(temperature=0.0, repeat_penalty=2.0, repeat_last_n=0)
    with Sampler(tiny(), params) as sampler:
        sampler.begin([5, 5, 5])
        assert sampler.sample_logits(only(t5=3.0, t6=2.0)) == 5


@pytest.mark.sanitized
@pytest.mark.parametrize(
    ("penalty", "falls"),
    [("presence_penalty", (1.0, 1.0, 1.0)), ("frequency_penalty", (1.0, 2.0, 3.0))],
)
def test_what_penalties_take_from_logits(penalty: str, falls: Any, tiny: Any) -> None:
    """Once, or as often as a token was there."""
    params = SamplingParams(temperature=0.0, **{penalty: 1.0})
    for n, fall in enumerate(falls, 1):
        for rival, want in ((-0.1, 5), (0.1, 6)):
            with Sampler(tiny(), params) as sampler:
                sampler.begin([5] * n)
                assert sampler.sample_logits(only(t5=9.0, t6=9.0 - fall + rival)) == want


@pytest.mark.sanitized
def test_bias_of_logits(tiny: Any) -> None:
    values = only(t5=3.0, t6=2.0, t7=1.0)
    for bias, want in (((), 5), (((6, 1.5),), 6), (((5, -100.0), (6, -100.0)), 7)):
        with Sampler(tiny(), SamplingParams(temperature=0.0, logit_bias=bias)) as sampler:
            assert [sampler.sample_logits(values) for _ in range(3)] == [want] * 3


@pytest.mark.parametrize("token", [-1, N_VOCAB])
def test_bias_of_what_is_no_token(token: int, tiny: Any) -> None:
    with pytest.raises(ArgumentError, match=f"tokens are 0 to {N_VOCAB - 1} here, got {token}"):
        Sampler(tiny(), SamplingParams(logit_bias=((token, 1.0),)))


def test_bias_that_is_no_number() -> None:
    with pytest.raises(ArgumentError, match="token 5 is not a number: nan"):
        SamplingParams(logit_bias=((5, NAN),))


# --- samplers that are off by default --------------------------------------------------------

ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def softmax(values: Any) -> Any:
    p = np.exp(values.astype(np.float64) - values.max())
    return p / p.sum()


def law(model: Any, values: Any, text: tuple[int, ...] = (), **params: Any) -> Any:
    """The probabilities that a sampler without the usual filters draws by."""
    with Sampler(model, SamplingParams(**({"temperature": 1.0, "seed": 1} | ALL | params))) as each:
        each.begin(text)
        return each.distribution_of(values)


def test_top_n_sigma(tiny: Any) -> None:
    values = logits()
    kept = values >= values.max() - 1.5 * values.std()
    want = softmax(np.where(kept, values, -np.inf))
    np.testing.assert_allclose(law(tiny(), values, top_n_sigma=1.5), want, atol=1e-6)


def test_tokens_that_are_never_drawn_are_not_measured(tiny: Any) -> None:
    values = logits()
    rest = np.arange(N_VOCAB) != 9
    kept = rest & (values >= values[rest].max() - 1.5 * values[rest].std())
    want = softmax(np.where(kept, values, -np.inf))
    found = law(tiny(), values, top_n_sigma=1.5, logit_bias=((9, -FLOAT_MAX),))
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_typical_p(tiny: Any) -> None:
    """Also beside tokens that cannot be drawn, whose probability is 0."""
    values = logits()
    values[:40] = -1000
    p = softmax(values)
    surprise = -np.log(np.maximum(p, 1e-300))
    order = np.argsort(abs(surprise - (p * surprise).sum()))
    n_kept = int((np.cumsum(p[order]) <= 0.6).sum()) + 1
    kept = np.isin(np.arange(N_VOCAB), order[:n_kept])
    want = softmax(np.where(kept, values, -np.inf))
    np.testing.assert_allclose(law(tiny(), values, typical_p=0.6), want, atol=1e-6)


def test_xtc(tiny: Any) -> None:
    """The distribution is the average of two; each draw is from one of them."""
    values = only(t5=3.0, t6=2.5, t7=2.0, t8=0.0)
    p = softmax(values)
    left = softmax(np.where(np.isin(np.arange(N_VOCAB), [5, 6]), -np.inf, values))
    xtc = {"xtc_probability": 0.25, "xtc_threshold": 0.1}
    np.testing.assert_allclose(law(tiny(), values, **xtc), 0.25 * left + 0.75 * p, atol=1e-6)
    always = SamplingParams(1.0, **ALL, xtc_probability=1.0, xtc_threshold=0.1, seed=1)
    with Sampler(tiny(), always) as sampler:
        assert {sampler.sample_logits(values) for _ in range(60)} == {7, 8}
    params = SamplingParams(1.0, **ALL, **xtc, seed=3)
    with Sampler(tiny(), params) as sampler:
        counts = collections.Counter(sampler.sample_logits(values) for _ in range(800))
    want = 800 * (0.25 * left + 0.75 * p)
    for token in (5, 6, 7, 8):
        assert abs(counts[token] - want[token]) < 5 * np.sqrt(want[token])


def test_xtc_starts_anew_with_a_text(tiny: Any) -> None:
    params = SamplingParams(1.0, top_k=0, xtc_probability=0.5, xtc_threshold=0.01, seed=7)
    with Sampler(tiny(), params) as sampler:
        texts = []
        for _ in range(2):
            sampler.begin([5, 6])
            sampler.distribution_of(logits())
            texts.append([sampler.sample_logits(logits(i)) for i in range(20)])
    assert texts[0] == texts[1] == draws(tiny(), params, 20)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("half", [0.3, 0.8, 2.0])
def test_dynamic_temperature(half: float, exponent: float, tiny: Any) -> None:
    values = logits()
    p = softmax(values)
    entropy = -(p * np.log(p)).sum() / np.log(N_VOCAB)
    low, high = max(0.8 - half, 0.0), 0.8 + half
    want = softmax(values / (low + (high - low) * entropy**exponent))
    found = law(tiny(), values, temperature=0.8, dynatemp_range=half, dynatemp_exponent=exponent)
    np.testing.assert_allclose(found, want, atol=1e-4)


@pytest.mark.parametrize("gap", [20.0, 90.0, 100.0])
def test_a_dynamic_temperature_of_next_to_0(gap: float, tiny: Any) -> None:
    """Logits over it would overflow."""
    values = np.full(N_VOCAB, -1000, np.float32)
    values[5], values[6] = 30, 30 - gap
    for exponent in (1.0, 2.0, 5.0):
        found = law(tiny(), values, dynatemp_range=1.0, dynatemp_exponent=exponent)
        assert found[5] == 1.0


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ((20, 21, 22, 23, 20, 21, 22), 3),  # 23 would go on
        ((21, 22, 23, 30, 20, 21, 22), 2),
        ((22, 23, 30, 20, 21, 22), 1),  # shorter than allowed
        ((20, 21, 22, 23, 20, 30, 22), 1),
    ],
)
def test_dry(text: tuple[int, ...], length: int, tiny: Any) -> None:
    values = logits()
    lowered = values.copy()
    if length >= 2:
        lowered[23] -= 0.8 * 1.5 ** (length - 2)
    dry = {"dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 2}
    found = law(tiny(), values, text, **dry, dry_sequence_breakers=())
    np.testing.assert_allclose(found, softmax(lowered), atol=1e-6)


def test_dry_reads_the_last_tokens_and_those_drawn(tiny: Any) -> None:
    params = SamplingParams(
        0.0, dry_multiplier=9.0, dry_penalty_last_n=6, dry_sequence_breakers=(), seed=1
    )
    values = only(t23=3.0, t24=2.0)
    for text, want in (
        ((20, 21, 23, 20), 24),
        ((20, 21, 23, 30, 31, 32, 33, 20), 23),  # beyond the last six
    ):
        with Sampler(tiny(), params) as sampler:
            for _ in range(2):
                sampler.begin(text)
                sampler.accept(21)
                assert sampler.sample_logits(values) == want


def test_a_repetition_does_not_reach_across_a_breaker(tiny: Any) -> None:
    model = tiny()
    start, *text = model.tokenize("the man:")
    assert len(text) > 2
    for breakers, falls in (((), True), ((":",), False), (("é漢", "漢" * 13, ":"), False)):
        dry = {"dry_multiplier": 9.0, "dry_sequence_breakers": breakers}
        prompt = (start, *text, 77, *text)
        assert (law(model, np.zeros(N_VOCAB, np.float32), prompt, **dry)[77] < 1e-3) == falls


def test_only_breakers_of_dry_need_a_tokenizer(error_of: Any) -> None:
    made = "Sampler(model, SamplingParams(dry_multiplier=1.0, dry_sequence_breakers={}))\n"
    code = made.format("()") + made.format("('a',)")
    error = error_of("first = " + code, vocab="none")
    assert error.startswith("ArgumentError") and "has no tokenizer; DRY's" in error


# --- grammars --------------------------------------------------------------------------------


def text_of(model: Any, grammar: str, n: int = 20, seed: int = 0) -> str:
    params = SamplingParams(temperature=1.0, top_k=0, seed=seed, grammar=grammar)
    tokens: list[int] = []
    with Sampler(model, params) as sampler:
        sampler.begin(model.tokenize("the prompt is not part of it"))
        while len(tokens) < n:
            token = sampler.sample_logits(logits(seed + len(tokens)))
            if model.is_eog(token):
                break
            tokens.append(token)
    return str(model.detokenize(tokens))


@pytest.mark.sanitized
def test_grammar(tiny: Any) -> None:
    assert text_of(tiny(), 'root ::= "then"') == "then"
    assert text_of(tiny(), 'root ::= "é" "漢"', seed=1) == "é漢"
    assert set(text_of(tiny(), 'root ::= ("a" | "n")+', seed=2)) <= set("an")


@pytest.mark.parametrize(
    "grammar",
    ["", "root", "root ::= (", 'other ::= "a"', "root ::= other", 'root ::= root "a"', "\0"],
)
def test_grammar_that_is_not_valid(grammar: str, tiny: Any) -> None:
    with pytest.raises(ArgumentError, match="not valid GBNF"):
        Sampler(tiny(), SamplingParams(grammar=grammar))


RULES = {  # few tokens may follow, many, all but some
    "letters": 'root ::= ("t" | "h" | "e" | "é" | " ")+',
    "object": 'root ::= "{" pair ("," pair)* "}"\npair ::= "\\"" [a-f]+ "\\":" [0-9]+',
    "not": "root ::= [^a-m\\n]+",
    "in order": 'root ::= ("a" "b"? "c"? "d"? "e"?)+ "."',
}
WITH_RULES = {
    "greedy": GREEDY,
    "greedy, penalties": SamplingParams(0.0, repeat_penalty=2.0, logit_bias=((90, 3.0),)),
    "drawn": SamplingParams(0.9, top_k=5, seed=1),
    "drawn from all": SamplingParams(1.1, top_k=0, seed=1),
    "flat": SamplingParams(3.0, min_p=0.0, seed=1),
    "within sigmas": SamplingParams(1.0, top_n_sigma=1.5, logit_bias=((90, -FLOAT_MAX),), seed=1),
    "typical": SamplingParams(1.0, typical_p=0.6, dry_multiplier=1.0, dry_allowed_length=1, seed=1),
    "dynamic, without top choices": SamplingParams(
        1.0, dynatemp_range=0.5, dynatemp_exponent=0.7, xtc_probability=0.3, seed=1
    ),
}


def continues_utf8(model: Any, text: list[int], token: int) -> bool:
    """Whether the bytes of a text and a token begin a text in UTF-8."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(b"".join(map(model.piece, [*text, token])))
    except UnicodeDecodeError:
        return False
    return True


def stock_law(model: Any, params: SamplingParams, text: list[int], values: Any) -> Any:
    """By llama.cpp's own grammar, asked about all tokens first, except tokens that break a text's
    UTF-8: it lets these through, and ours does not."""
    assert params.grammar is not None
    rules = llama.llama_sampler_init_grammar(model._vocab, params.grammar.encode(), b"root")
    with Sampler(model, dataclasses.replace(params, grammar=None)) as rest:
        rest.begin([])
        for token in text:
            llama.llama_sampler_accept(rules, token)
            rest.accept(token)
        data = np.zeros(N_VOCAB, sampler_calls.CANDIDATE)
        possible = [continues_utf8(model, text, token) for token in range(N_VOCAB)]
        data["id"], data["logit"] = np.arange(N_VOCAB), np.where(possible, values, -np.inf)
        pointer = data.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
        array = llama.llama_token_data_array(data=pointer, size=N_VOCAB, selected=-1, sorted=False)
        llama.llama_sampler_apply(rules, ctypes.byref(array))
        llama.llama_sampler_free(rules)
        return rest.distribution_of(np.ascontiguousarray(data["logit"]))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", WITH_RULES)
def test_grammars_are_as_llama_cpp_has_them(name: str, rules: str, tied: bool, tiny: Any) -> None:
    """The law of every token, of two texts by one sampler; whether few tokens are asked about, or
    all of them, or it is known. Of tied logits the lowest id is the best one; which of those at the
    end of top_k are kept is left open."""
    params = dataclasses.replace(WITH_RULES[name], grammar=RULES[rules])
    rng = np.random.default_rng([*name.encode(), *rules.encode()])
    with Sampler(tiny(), params) as sampler:
        for _ in range(2):
            sampler.begin([])
            text: list[int] = []
            while len(text) < 12 and not (text and tiny().is_eog(text[-1])):
                values = (4 * rng.standard_normal(N_VOCAB)).astype(np.float32)
                if tied and params.is_greedy:
                    values = np.round(values)
                want = stock_law(tiny(), params, text, values)
                np.testing.assert_allclose(sampler.distribution_of(values), want, atol=1e-9)
                text.append(sampler.sample_logits(values))
                assert want[text[-1]] > 0


@pytest.mark.sanitized
def test_more_states_of_a_grammar_than_are_kept(tiny: Any) -> None:
    """150 of them, each asked about all tokens, and the first ones again in a second text."""
    parts = ("[ab]", "[c-e]", "[fg]") * 50
    params = SamplingParams(1.0, top_k=0, grammar=f"root ::= {' '.join(parts)}")
    rng = np.random.default_rng(4)
    with Sampler(tiny(), params) as sampler:
        for _ in range(2):
            sampler.begin([])
            tokens: list[int] = []
            while not (tokens and tiny().is_eog(tokens[-1])):
                values = rng.standard_normal(N_VOCAB).astype(np.float32)
                tokens.append(sampler.sample_logits(values))
            text = str(tiny().detokenize(tokens[:-1]))
            assert re.fullmatch("".join(parts), text) and set(text) == set("abcdefg")


def test_what_a_grammar_is_not_asked_about_hardly_counts(tiny: Any) -> None:
    """With min_p, tokens that are dropped in any case: they only count in the sum of top_p."""
    params = SamplingParams(1.0, top_k=40, top_p=0.9, min_p=0.02, grammar=RULES["not"])
    rng = np.random.default_rng(3)
    with Sampler(tiny(), params) as sampler:
        for width in np.geomspace(0.5, 20, 60):
            values = (width * rng.standard_normal(N_VOCAB)).astype(np.float32)
            want = stock_law(tiny(), params, [], values)
            assert abs(sampler.distribution_of(values) - want).sum() <= 0.05 * want.max()


def test_grammar_without_vocabulary(error_of: Any) -> None:
    code = (
        "sampler = Sampler(model, SamplingParams(grammar='root ::= \"a\"'))\n"
        "sampler.sample_logits(np.zeros(317, np.float32))"
    )
    error = error_of(code, vocab="none")
    assert error.startswith("ArgumentError") and "has no tokenizer" in error


# --- misuse ----------------------------------------------------------------------------------


@pytest.mark.sanitized
@pytest.mark.parametrize(
    ("decode", "row"),
    [("", 0), ("context.decode([5])", 1), ("context.decode([5], outputs='none')", 0),
     ("context.decode([5, 6], outputs='last')", 0), ("context.decode([5])", -2)],
)  # fmt: skip
def test_rows_without_logits(decode: str, row: int, error_of: Any) -> None:
    error = error_of(f"sampler = Sampler(model)\n{decode}\nsampler.sample(context, {row})")
    assert error == f"ArgumentError: there are no logits in row {row}"


@pytest.mark.parametrize("shape", [(0,), (N_VOCAB - 1,), (5000,), (2, N_VOCAB)])
@pytest.mark.parametrize("grammar", [None, 'root ::= "a"'])
def test_logits_of_the_wrong_shape(
    shape: tuple[int, ...], grammar: str | None, error_of: Any
) -> None:
    params = f"SamplingParams(grammar={grammar!r})"
    code = f"Sampler(model, {params}).sample_logits(np.zeros({shape}, np.float32))"
    error = error_of(code)
    assert error.startswith("ArgumentError") and str(N_VOCAB) in error


@pytest.mark.parametrize("values", [np.full(N_VOCAB, v, np.float32) for v in (NAN, -INF, INF)])
def test_logits_that_are_no_numbers(values: NDArray[np.float32], tiny: Any) -> None:
    """Garbage in, an error out; never the end of the process."""
    for params in (GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_k=0, top_p=1)):
        with Sampler(tiny(), params) as sampler:
            if values[0] == INF:
                assert 0 <= sampler.sample_logits(values) < N_VOCAB
            else:
                with pytest.raises(DecodeError, match="are not numbers"):
                    sampler.sample_logits(values)


def test_closed_sampler(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.decode([5])
    sampler = Sampler(tiny())
    sampler.close()
    sampler.close()
    for use in (
        lambda: sampler.sample(context, 0),
        lambda: sampler.sample_logits(logits()),
        lambda: sampler.begin([]),
    ):
        with pytest.raises(ArgumentError, match="the sampler is closed"):
            use()


# --- nothing left to draw ----------------------------------------------------------------------


@pytest.mark.sanitized
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_grammar_that_leaves_no_token(temperature: float, error_of: Any) -> None:
    """llama.cpp throws through the caller, which ends the process."""
    code = f"""
params = SamplingParams(temperature={temperature}, grammar="root ::= <[100000]>", seed=1)
with Sampler(model, params) as sampler:
    context.decode([5])
    sampler.sample(context, 0)
"""
    error = error_of(code)
    assert error.startswith("ArgumentError: no token is left to draw after row 0")


@pytest.mark.sanitized
def test_logits_that_leave_no_token(error_of: Any) -> None:
    code = """
with Sampler(model, SamplingParams(grammar="root ::= <[100000]>")) as sampler:
    sampler.sample_logits(np.zeros(model.n_vocab, np.float32))
"""
    assert error_of(code).startswith("ArgumentError: no token is left to draw")


@pytest.mark.parametrize("grammar", [None, "root ::= .*"])
def test_an_id_that_is_no_token_is_not_accepted(grammar: str | None, tiny: Any) -> None:
    model = tiny()
    params = SamplingParams(temperature=1.0, repeat_penalty=2.0, grammar=grammar)
    with Sampler(model, params) as sampler:
        before = sampler.distribution_of(logits())
        for token in (-1, model.n_vocab, 10**6):
            with pytest.raises(ArgumentError, match=f"token id {token} is not in the vocabulary"):
                sampler.accept(token)
        np.testing.assert_array_equal(sampler.distribution_of(logits()), before)


@pytest.mark.sanitized
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_draws_are_llama_cpp_s(temperature: float, tiny: Any, new_context: Any) -> None:
    """Token by token the stock function's, also the state of the random stream."""
    context = new_context(tiny())
    context.decode(range(20, 40))
    params = SamplingParams(temperature=temperature, seed=7)
    with Sampler(tiny(), params) as ours, Sampler(tiny(), params) as stock:
        for row in range(20):
            want = llama.llama_sampler_sample(stock.handle, context.handle, row)
            assert ours.sample(context, row) == want


@pytest.mark.sanitized
@for_seeds(20)
def test_the_likeliest_tokens_are_those_of_a_full_sort(seed: int) -> None:
    """Few different values, so that many are equal; of these the lowest ids come first."""
    rng = np.random.default_rng(seed)
    row = rng.integers(-3, 4, rng.integers(1, 60)).astype(np.float32)
    row[rng.integers(len(row))] = -INF if seed % 2 and len(row) > 1 else 1.0
    n = int(rng.integers(0, 25))
    found = logprobs_of(row, 0, n)
    want = sorted(range(len(row)), key=lambda i: (-row[i], i))[:n]
    assert [token for token, _ in found.top] == want
    whole = logprobs_of(row, 0, len(row))
    assert sum(np.exp(logprob) for _, logprob in whole.top) == pytest.approx(1)
