"""Grammars: the tokens that they let follow are those of llama.cpp's own matcher, whatever the
grammar, as far as they are UTF-8; following one never takes long; what cannot be compiled is
refused in one line."""

from __future__ import annotations

import ctypes
import random
import time
from typing import Any

import numpy as np
import pytest
from grammars import of_bytes

from pyselfspec import Model
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.ffi.sampler_calls import CANDIDATE
from pyselfspec.runtime.sampling import Sampler, SamplingParams

TOKEN_S = 2.0  # processor time for one token at most; most take milliseconds
FORKED = 'root ::= "a" root "b" | "a" root "c" | "a"'  # ways to go on double with every "a"


def allowed_by_stock(model: Model, rules: str, text: list[int]) -> Any:
    """Return for every token whether llama.cpp's own matcher accepts it; None where it refuses the
    grammar, as it does some that repeat what may be empty."""
    sampler = llama.llama_sampler_init_grammar(model._vocab, rules.encode(), b"root")
    if not sampler:
        return None
    try:
        for token in text:
            llama.llama_sampler_accept(sampler, token)
        data = np.zeros(model.n_vocab, CANDIDATE)
        data["id"] = np.arange(model.n_vocab)
        pointer = data.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
        array = llama.llama_token_data_array(
            data=pointer, size=len(data), selected=-1, sorted=False
        )
        llama.llama_sampler_apply(sampler, ctypes.byref(array))
        return np.asarray(data["logit"] == 0)
    finally:
        llama.llama_sampler_free(sampler)


def begins_text(written: bytes) -> bool:
    """Whether bytes are UTF-8, up to a character that may be unfinished."""
    return any(is_text(written + end * n) for end in (b"\x80", b"\xbf") for n in range(4))


def is_text(written: bytes) -> bool:
    try:
        written.decode()
    except UnicodeDecodeError:
        return False
    return True


def random_rules(rng: random.Random) -> str:
    names = ["root", "one", "two"]
    return "\n".join(
        f"{name} ::= "
        + " | ".join(random_sequence(rng, 2, names) for _ in range(rng.randint(1, 3)))
        for name in names
    )


def random_sequence(rng: random.Random, depth: int, rules: list[str]) -> str:
    """A sequence of items. Only its last one may be a reference, so that there is no left
    recursion."""
    items = [random_item(rng, depth) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        items += ['"a"', rng.choice(rules)]
    return " ".join(items)


def random_item(rng: random.Random, depth: int) -> str:
    atoms = ['"a"', '"th"', '"é"', "[a-c]", "[^a\\n]", ".", '"b"', '""']
    item = rng.choice(atoms)
    if depth and rng.random() < 0.4:
        inner = " | ".join(random_sequence(rng, depth - 1, ["root"]) for _ in range(2))
        item = f"({inner})"
    counts = ("", "", "?", "*", "+", "{2}", "{0,3}", "{1,}")
    return item + (rng.choice(counts) if item != '""' else "")


@pytest.mark.parametrize("seed", range(40))
def test_tokens_that_may_follow_are_llama_cpps(seed: int, tiny: Any) -> None:
    """Random grammars, along random texts."""
    rng, model = random.Random(seed), tiny()
    while allowed_by_stock(model, rules := random_rules(rng), []) is None:
        pass
    print(f"seed {seed}:\n{rules}")
    text: list[int] = []
    with Sampler(model, SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, grammar=rules)) as ours:
        for _ in range(12):
            want = allowed_by_stock(model, rules, text)
            written = b"".join(map(model.piece, text))  # llama.cpp lets more bytes through
            want &= [begins_text(written + model.piece(token)) for token in range(model.n_vocab)]
            if not want.any():
                with pytest.raises(ArgumentError, match="no token is left"):
                    ours.distribution_of(np.zeros(model.n_vocab, np.float32))
                return
            law = ours.distribution_of(np.zeros(model.n_vocab, np.float32))
            np.testing.assert_array_equal(law > 0, want)
            for token in range(model.n_vocab):
                if not want[token]:
                    with pytest.raises(ArgumentError, match="does not let token"):
                        ours.accept(token)
            text.append(rng.choice(np.flatnonzero(want).tolist()))
            ours.accept(text[-1])
            if model.is_eog(text[-1]):
                return


def hostile(rng: random.Random, depth: int) -> str:
    """Nested repetitions and alternatives of few letters: a text can be read in many ways."""
    if not depth:
        return rng.choice(['"a"', '"a"', "[ab]", ".", '"a"?'])
    parts = [hostile(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    inner = rng.choice((" ", " | ")).join(parts)
    count = rng.choice(("*", "+", "?", "{0,9}", "{0,12}", "{1,5}", "{0,3}", ""))
    return f"({inner}){count}"


def slowest_token(model: Model, rules: str, letters: str = "a") -> float:
    """Processor seconds of the slowest of 60 tokens, which are these letters where possible."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal(model.n_vocab).astype(np.float32)
    values[of_bytes(model, letters)] += 20
    worst = 0.0
    with Sampler(model, SamplingParams(1.0, top_k=0, seed=1, grammar=rules)) as sampler:
        for _ in range(60):
            start = time.thread_time()
            try:
                token = sampler.sample_logits(values)
            except ArgumentError as error:
                assert "too ambiguous" in str(error)
                return max(worst, time.thread_time() - start)
            worst = max(worst, time.thread_time() - start)
            if model.is_eog(token):
                break
    return worst


@pytest.mark.parametrize("seed", range(30))
def test_no_grammar_takes_long(seed: int, demo: Model) -> None:
    rng = random.Random(seed)
    rules = f"root ::= {hostile(rng, rng.randint(2, 6))}"
    print(f"seed {seed}: {rules}")
    try:
        assert slowest_token(demo, rules) < TOKEN_S
    except ArgumentError as error:
        assert "repetitions" in str(error)


def chain(n: int, link: str) -> str:
    rules = [f"r{i} ::= {link.format(f'r{i + 1}')}" for i in range(n)]
    return "\n".join(["root ::= r0", *rules, f'r{n} ::= "a"+'])


@pytest.mark.parametrize(
    "rules",
    [
        'root ::= (("a"{0,12}){0,12}){0,12}',
        "root ::= " + " ".join('"a"?' for _ in range(600)),
        "root ::= " + " ".join(f'"{chr(97 + i % 26)}"?' for i in range(600)),
        "root ::= " + " | ".join(f'"value {i}"' for i in range(2000)),
        'root ::= "a" | "a" root root',
        'root ::= ((("a"?)*)*)* "b"',
        'root ::= [^"]{0,2000}',
        chain(45_000, "{}"),
        chain(40, "{0} | {0}"),  # llama.cpp looks for left recursion along all 2**40 paths
        FORKED,
    ],
    ids=lambda rules: rules[:30],
)
def test_known_hard_grammars(rules: str, demo: Model) -> None:
    assert slowest_token(demo, rules) < TOKEN_S


def test_a_grammar_that_becomes_too_ambiguous(demo: Model) -> None:
    """The token before was drawn, so the text up to there stands."""
    values = np.zeros(demo.n_vocab, np.float32)
    values[of_bytes(demo, "a")] = 50
    n = 0
    with (
        Sampler(demo, SamplingParams(0.0, grammar=FORKED)) as sampler,
        pytest.raises(ArgumentError, match=r"too ambiguous to follow.*fewer repetitions"),
    ):
        for n in range(64):  # noqa: B007
            sampler.sample_logits(values)
    assert 8 <= n <= 40


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ('root ::= root "a"', "left recursion: the rule root"),
        ('root ::= "x" expr\nexpr ::= expr "+" expr | "1"', "left recursion: the rule expr"),
        ('root ::= maybe root "a" | "b"\nmaybe ::= other\nother ::= "c" | ""', "left recursion"),
        ("root ::= a\na ::= b\nb ::= a", "no text matches"),
        ("root ::= other", "the rule other is used and not defined"),
        ('other ::= "a"', "no rule named root"),
        ('root ::= "a"{5,2}', "counts from 5 up to 2"),
        ('root ::= "a"{99999999999999999999}', "elements|too large"),
        ('root ::= "' + "a" * 30_000 + '"{2000}', "more than .* elements"),
        ('root ::= "a"' + "+" * 100_000, "more than .* elements"),
        ("root ::= " + ".{0,2000} " * 5000, "more than .* elements"),
        (f"root ::= {'n' * 2000}", "name of a rule has more than"),
        ("root ::= " + "(" * 2000 + ")" * 2000, "nests 2000 deep"),
        ('root ::= "\ud800"', "half a character"),
        ('root ::= "a"\n' + "# a comment\n" * 100_000, "characters"),
    ],
    ids=lambda value: value[:30].encode("ascii", "replace").decode(),
)
def test_grammars_that_are_refused(rules: str, reason: str, tiny: Any) -> None:
    start = time.thread_time()
    with pytest.raises(ArgumentError, match=reason) as caught:
        Sampler(tiny(), SamplingParams(grammar=rules))
    assert time.thread_time() - start < TOKEN_S
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_grammar_that_is_refused_leaves_nothing_on_stderr(tiny: Any, capfd: Any) -> None:
    with pytest.raises(ArgumentError):
        Sampler(tiny(), SamplingParams(grammar="root ::= (\n" + "x" * 5000))
    assert capfd.readouterr() == ("", "")


def test_a_token_that_may_not_follow_changes_nothing(tiny: Any) -> None:
    """With llama.cpp's own accept the process ends."""
    model = tiny()
    params = SamplingParams(0.0, repeat_penalty=2.0, grammar='root ::= "a" "b"')
    a, b = of_bytes(model, "ab")
    end = next(token for token in range(model.n_vocab) if model.is_eog(token))
    flat = np.zeros(model.n_vocab, np.float32)
    with Sampler(model, params) as sampler:
        for token in (a, b, end):
            before = sampler.distribution_of(flat)
            for wrong in {a, b, end} - {token}:
                with pytest.raises(ArgumentError, match=r"does not let token .* follow"):
                    sampler.accept(wrong)
            np.testing.assert_array_equal(sampler.distribution_of(flat), before)
            sampler.accept(token)
