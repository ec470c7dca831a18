"""Text comes out whole and in order, however tokens cut its bytes, and stops where it should."""

import itertools

import numpy as np
import pytest
from parameters import for_seeds

from pyselfspec.errors import ArgumentError
from pyselfspec.speculate.output.line_limits import LineLimits, LineWatch
from pyselfspec.speculate.output.text_stream import TextStream

EOG = -1
MULTIBYTE = "aé€😀z"  # 1, 2, 3, 4 and 1 bytes


def stream(pieces, stop=(), lines=None):
    return TextStream(lambda token: pieces[token], lambda token: token == EOG, stop, lines)


def run(pieces, stop=(), *, eog=False, n_step=1, lines=None):
    """The text that comes out, taken after every n_step tokens as a loop with drafts does."""
    text = stream(pieces, stop, lines)
    out = []
    for i, token in enumerate([*range(len(pieces)), *([EOG] if eog else [])]):
        if text.consume(token):
            break
        if (i + 1) % n_step == 0:
            out.append(text.take())
    return [*out, text.take(), text.finish()], text.finish_reason


def splits(data: bytes):
    """Every way to cut data into tokens."""
    for cuts in range(2 ** (len(data) - 1)):
        at = [0, *(i + 1 for i in range(len(data) - 1) if cuts >> i & 1), len(data)]
        yield [data[a:b] for a, b in itertools.pairwise(at)]


def expected(data: bytes, stop=()):
    """The text up to the stop string that is complete first, or all of it; and the reason."""
    text = data.decode(errors="replace")
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    return (text[: min(ends)[1]], "stop") if ends else (text, None)


# UTF-8


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_every_split_of_multi_byte_text_gives_the_text(n_step):
    for pieces in splits(MULTIBYTE.encode()):
        out, reason = run(pieces, n_step=n_step)
        assert "".join(out) == MULTIBYTE
        assert reason is None


def test_characters_come_as_soon_as_they_are_whole_and_no_sooner():
    out, _ = run([b"a\xc3", b"\xa9\xe2", b"\x82", b"\xac", b"z"])
    assert out == ["a", "é", "", "€", "z", "", ""]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xc3(", "\ufffd("),
        (b"\xe2\x82a", "\ufffda"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"a\xe2\x82", "a\ufffd"),
        (b"\x80\x80", "\ufffd\ufffd"),
    ],
)
def test_bytes_that_are_no_utf_8_are_replaced_in_every_split(data, text):
    for pieces in splits(data):
        assert "".join(run(pieces)[0]) == text


@pytest.mark.parametrize("eog", [False, True])
def test_an_unfinished_character_waits_for_the_end(eog):
    out, _ = run([b"a", b"\xf0\x9f"], eog=eog)
    assert out[:-1] == ["a", "", ""]
    assert out[-1] == "\ufffd"


def test_tokens_without_bytes_add_nothing():
    assert "".join(run([b"a", b"", b"\xc3", b"", b"\xa9"])[0]) == "aé"


# stop strings


def test_nothing_after_the_stop_string_is_pushed():
    text = stream([b"a", b"#", b"b"], ["#"])
    assert [text.consume(0), text.consume(1)] == [False, True]
    assert text.take() + text.finish() == "a"


def test_what_may_become_a_stop_string_is_held_and_no_more():
    out, _ = run([b"xs", b"t", b"os", b"to", b"x"], ["stop"])
    assert out == ["x", "", "sto", "", "stox", "", ""]


def test_stop_strings_with_a_common_beginning():
    stop = ["\n\nUser:", "\n\nAssistant:", "\n###"]
    assert "".join(run([b"a\n", b"\n", b"As", b"k"], stop)[0]) == "a\n\nAsk"
    assert "".join(run([b"a\n", b"\n", b"As", b"sistant:"], stop)[0]) == "a"
    assert "".join(run([b"a\n", b"\n", b"#", b"##"], stop)[0]) == "a\n"


def test_bytes_of_a_stop_string_are_compared_as_characters():
    """A stop string never matches a part of a character."""
    assert "".join(run([b"\xc3", b"\xa9"], ["\xa9"])[0]) == "é"


def test_held_text_comes_out_when_the_text_ends_otherwise():
    assert run([b"a", b"st"], ["stop"]) == (["a", "", "", "st"], None)
    assert run([b"a", b"st"], ["stop"], eog=True) == (["a", "", "st", ""], "eog")


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ArgumentError, match="strings that are not empty"):
        stream([], ["a", ""])


# end of text


def test_the_bytes_of_an_ending_token_are_no_text():
    text = TextStream(lambda token: b"</s>", lambda token: token == EOG)
    assert text.consume(EOG)
    assert (text.take() + text.finish(), text.finish_reason) == ("", "eog")


def test_text_goes_on_until_it_ends():
    text = stream([b"a"])
    assert not text.consume(0)
    assert text.finish_reason is None


# properties


def random_case(seed, stops):
    rng = np.random.default_rng(seed)
    alphabet = [b"a", b"b", "€".encode(), b"\x80", b"\xe2"]
    data = b"".join(alphabet[i] for i in rng.choice(5, size=30, p=[0.4, 0.34, 0.2, 0.03, 0.03]))
    cuts = sorted({0, len(data), *rng.integers(len(data), size=rng.integers(40)).tolist()})
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)]
    return pieces, stops[rng.integers(len(stops))], int(rng.integers(1, 5))


def assert_streams_as_if_whole(pieces, stop, n_step):
    out, reason = run(pieces, stop, n_step=n_step)
    text, why = expected(b"".join(pieces), stop)
    assert ("".join(out), reason) == (text, why)  # so nothing that came out was ever wrong


STOPS = [
    [], ["ab"], ["aab"], ["€a"], ["bb", "aaa"], ["a€b", "€€"], ["abab", "aba"], ["abba", "baab"],
]  # fmt: skip


@for_seeds(300)
def test_random_tokens_give_the_whole_texts_answer(seed):
    assert_streams_as_if_whole(*random_case(seed, STOPS))


def test_a_stop_string_inside_another_ends_the_text_alike_in_every_split():
    for pieces in splits(b"xabcdy"):
        assert_streams_as_if_whole(pieces, ["abcd", "bc"], 1)


# lines


def indented(text, n):
    """The text up to the first later line that begins with fewer than n blanks; and the reason."""
    first, *later = text.split("\n")
    for i, line in enumerate(later):
        blanks = line[: len(line) - len(line.lstrip(" \t"))]
        is_whole = len(blanks) < len(line) or i + 1 < len(later)
        if is_whole and len(blanks) < n:
            return "\n".join([first, *later[:i], blanks]), "length"
    return text, None


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("text", ["a\n  b\n c\nd", " a\n\t b\n\n  c", "a\n  b\n ", "\n\n"])
def test_a_line_with_too_few_blanks_ends_the_text_however_tokens_cut_it(text, n):
    for pieces in splits(text.encode()):
        out, reason = run(pieces, lines=LineLimits(n_indent=n))
        assert ("".join(out), reason) == indented(text, n)


def test_after_the_time_limit_the_next_line_break_ends_the_text():
    now = iter((10.0, 10.5, 12.0)).__next__  # of the first token, and of two line breaks
    watch = LineWatch(LineLimits(seconds=2.0), now)
    assert [watch.end_in(piece) for piece in ("a", "b\n", "c", "d\ne")] == [None, None, None, 2]


def test_a_stop_string_counts_before_a_line_limit():
    out, reason = run([b"a\nSTOP"], ("STOP",), lines=LineLimits(n_indent=1))
    assert ("".join(out), reason) == ("a\n", "stop")
