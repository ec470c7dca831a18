"""``pyselfspec.Llama`` is ``llama_cpp.Llama``, but for the passes that follow the first token: the
oracle is that class itself, on the same library."""

import itertools
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from tiny_mamba import write_mamba

import pyselfspec
from pyselfspec import DraftConfig, Fixed, LayerMask
from pyselfspec.errors import ArgumentError, UnsupportedError

OPTIONS = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
EXIT = LayerMask.early_exit(12, 6)
COPIES = {"draft": DraftConfig("ngram", controller="fixed")}  # drafts the same on any machine
REPEATED = "The cat sat on the mat. The cat sat on the mat. The cat sat on"
GREEDY = {"temperature": 0.0, "max_tokens": 48}


@pytest.fixture(scope="module")
def llama_cpp():
    _ = pyselfspec.Llama  # the library first
    import llama_cpp

    return llama_cpp


@pytest.fixture(scope="module")
def made(demo_path):
    """Llamas by class and arguments, each made once and closed at the end."""
    kept = {}

    def make(kind, **options):
        key = (kind, repr(sorted(options.items())))
        if key not in kept:
            kept[key] = kind(str(demo_path), **OPTIONS | options)
        return kept[key]

    yield make
    for llama in kept.values():
        llama.close()


@pytest.fixture
def pair(llama_cpp, made):
    """llama_cpp's and ours, without a text."""

    def make(ours=COPIES, **options):
        found = made(llama_cpp.Llama, **options), made(pyselfspec.Llama, **options, **ours)
        for llama in found:
            llama.reset()
            llama.set_cache(None)
            llama.set_seed(1)
            llama._sampler = None
        return found

    return make


def told(response):
    """Return a response without its id and time; a list of chunks for a stream."""
    if not isinstance(response, dict):
        return [told(chunk) for chunk in response]
    return {key: value for key, value in response.items() if key not in ("id", "created")}


def test_it_is_a_llama_and_drafts(pair, llama_cpp):
    _, ours = pair()
    assert isinstance(ours, llama_cpp.Llama)
    assert (ours.draft, ours.why_plain) == ("ngram", None)
    ours.create_completion(REPEATED, **GREEDY)
    stats = ours.last_stats
    assert stats.n_generated >= GREEDY["max_tokens"] and stats.n_prompt > 0
    assert 0 < stats.n_accepted <= stats.n_drafted
    assert stats.n_steps + stats.n_accepted + 1 == stats.n_generated


def bans_e(input_ids, scores):
    scores[101 + len(input_ids) % 7 :: 7] = -np.inf
    return scores


def long_enough(input_ids, _logits):
    return len(input_ids) >= 60


COMPLETIONS = {
    "greedy": GREEDY,
    "drawn": {"seed": 7},
    "drawn, hot": {"seed": 8, "temperature": 1.5, "top_k": 0, "min_p": 0.0, "typical_p": 0.9},
    "temperature below 0": {"seed": 3, "temperature": -1.0},
    "mirostat": {"seed": 3, "mirostat_mode": 1},
    "mirostat 2": {"seed": 3, "mirostat_mode": 2, "mirostat_tau": 3.0},
    "penalties": GREEDY | {"repeat_penalty": 1.3, "presence_penalty": 0.3},
    "logit bias": GREEDY | {"logit_bias": {"310": 3.0}},
    "stop strings": GREEDY | {"stop": [". ", "\n"]},
    "echo": GREEDY | {"echo": True},
    "suffix": GREEDY | {"suffix": " the end."},
    "one token": GREEDY | {"max_tokens": 1},
}


STREAMED = ("greedy", "drawn", "stop strings", "one token")


@pytest.mark.parametrize(
    ("name", "stream"),
    [(name, False) for name in COMPLETIONS] + [(name, True) for name in STREAMED],
)
def test_completions_are_the_same(name, stream, pair):
    options = {"max_tokens": 32, "stream": stream, **COMPLETIONS[name]}
    stock, ours = pair()
    for prompt in (REPEATED, REPEATED + " the mat and", ""):  # the second goes on behind the first
        expected = told(stock.create_completion(prompt, **options))
        assert told(ours.create_completion(prompt, **options)) == expected


@pytest.mark.parametrize("max_tokens", [None, -1])
def test_as_many_tokens_as_there_is_room_for(max_tokens, pair):
    stock, ours = pair()
    prompt, options = 8 * REPEATED, GREEDY | {"max_tokens": max_tokens}
    expected = told(stock.create_completion(prompt, **options))
    assert told(ours.create_completion(prompt, **options)) == expected
    assert expected["usage"]["total_tokens"] == stock.n_ctx()


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("draft", [DraftConfig(), DraftConfig("layer-skip", mask=EXIT)])
def test_other_ways_to_draft_and_to_attend(flash_attn, draft, pair):
    draft = replace(draft, controller="fixed")
    stock, ours = pair({"draft": draft}, flash_attn=flash_attn, n_batch=24, n_ubatch=8)
    for options in (GREEDY, {"seed": 5, "max_tokens": 48}):
        expected = told(stock.create_completion(REPEATED, **options))
        assert told(ours.create_completion(REPEATED, **options)) == expected
        assert ours.last_stats.n_drafted > 0


def test_grammars_and_schemas(pair, llama_cpp):
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= ("the " | "cat " | "mat ")+ "."')
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    stock, ours = pair()
    texts = []
    for llama in (stock, ours):
        text = llama.create_completion(REPEATED, grammar=grammar, **GREEDY)
        answer = llama.create_chat_completion(
            [{"role": "user", "content": "The cat"}],
            response_format={"type": "json_object", "schema": schema},
            **GREEDY,
        )
        texts.append((told(text), told(answer)))
    assert texts[0] == texts[1]
    assert set(texts[1][0]["choices"][0]["text"].split()) <= {"the", "cat", "mat", "."}


@pytest.mark.parametrize("stream", [False, True])
def test_function_calls(stream, pair):
    tool = {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    }
    stock, ours = pair(chat_format="chatml-function-calling")
    calls = {
        "messages": [{"role": "user", "content": "look look look"}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "stream": stream,
    } | GREEDY
    expected = _without_ids(told(stock.create_chat_completion(**calls)))
    assert _without_ids(told(ours.create_chat_completion(**calls))) == expected


def _without_ids(value):
    """Calls are named after the completion."""
    if isinstance(value, dict):
        return {k: _without_ids(v) for k, v in value.items() if k != "id"}
    return list(map(_without_ids, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_same_numbers(stream, pair):
    stock, ours = pair(logits_all=True)
    options = GREEDY | {"logprobs": 2, "echo": not stream, "stream": stream}
    expected = told(stock.create_completion(REPEATED, **options))
    assert told(ours.create_completion(REPEATED, **options)) == expected
    assert ours.last_stats.n_accepted > 0
    np.testing.assert_array_equal(ours._scores, stock._scores)


def test_processors_and_criteria_see_the_same(pair, llama_cpp):
    seen = []
    for llama in pair(logits_all=True):
        processed, judged = [], []

        def process(ids, scores, processed=processed):
            processed.append((ids.tolist(), scores.tobytes()))
            return bans_e(ids, scores)

        def judge(ids, scores, judged=judged):
            judged.append((ids.tolist(), scores.tobytes()))
            return long_enough(ids, scores)

        text = llama.create_completion(
            REPEATED,
            logits_processor=llama_cpp.LogitsProcessorList([process]),
            stopping_criteria=llama_cpp.StoppingCriteriaList([judge]),
            **GREEDY | {"seed": 2, "temperature": 1.0},
        )
        seen.append((told(text), processed, judged))
    stock, ours = seen
    assert ours[0] == stock[0] and ours[2] == stock[2]
    assert ours[1][: len(stock[1])] == stock[1]  # behind a stop it may have been asked for more


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_left_to_draw_is_an_error(n, temperature, pair, llama_cpp):
    _, ours = pair()
    grammar = llama_cpp.LlamaGrammar.from_string("root ::= [a-z ]+")
    calls = itertools.count(1)

    def process(_ids, scores):
        return scores if next(calls) < n else np.full_like(scores, -np.inf)

    processors = llama_cpp.LogitsProcessorList([process])
    options = {"grammar": grammar, "temperature": temperature, "logits_processor": processors}
    with pytest.raises(ArgumentError, match="no token is left"):
        ours.create_completion(REPEATED, **options)
    text = ours.create_completion(REPEATED, **GREEDY | {"grammar": grammar})
    assert set(text["choices"][0]["text"]) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_the_state_at_every_token(pair):
    states = []
    for llama in pair():
        tokens = llama.tokenize(REPEATED.encode())
        generated = llama.generate(tokens, temp=0.0)
        state = [
            (token, llama.n_tokens, llama._input_ids.tolist())
            for token in itertools.islice(generated, 30)
        ]
        generated.close()
        by_hand = []
        for _ in range(8):
            by_hand.append(llama.sample(temp=0.0))
            llama.eval([by_hand[-1]])
        states.append((state, by_hand, llama.eval_tokens))
    assert states[0] == states[1]


def test_tokens_evaluated_in_between_are_guesses_that_the_text_does_not_need(pair):
    texts = []
    for llama in pair():
        generated = llama.generate(llama.tokenize(REPEATED.encode()), temp=0.0)
        text = list(itertools.islice(generated, 9))
        llama.eval(llama.tokenize(b" once upon a time", add_bos=False))
        text += itertools.islice(generated, 9)
        texts.append((text, llama.eval_tokens))
        generated.close()
    assert texts[0] == texts[1]
    generated = llama.generate(llama.tokenize(REPEATED.encode()), temp=0.0)
    next(generated)
    llama.reset()
    llama.eval([5, 6, 7])
    with pytest.raises(ArgumentError, match="no longer in this Llama"):
        next(generated)


def test_a_full_context_says_the_same(pair):
    ends = []
    for llama in pair():
        text = []
        with pytest.raises(RuntimeError) as error:
            for token in llama.generate(llama.tokenize(REPEATED.encode()), temp=0.0):
                text.append(token)
        ends.append((text, str(error.value), llama.n_tokens))
        with pytest.raises(ValueError, match="exceed context window"):
            llama.create_completion("cat " * 400)
    assert ends[0] == ends[1]
    assert len(ends[1][0]) > 200


def test_states_and_caches_are_exchanged(pair, llama_cpp):
    stock, ours = pair()
    for llama, other in ((stock, ours), (ours, stock)):
        llama.create_completion(REPEATED, **GREEDY)
        state = llama.save_state()
        expected = told(llama.create_completion(REPEATED + " the mat. The", **GREEDY))
        other.create_completion("Once upon a time", **GREEDY)
        other.load_state(state)
        assert other.n_tokens == state.n_tokens
        assert told(other.create_completion(REPEATED + " the mat. The", **GREEDY)) == expected
    cache = llama_cpp.LlamaRAMCache()
    ours.set_cache(cache)
    first = told(ours.create_completion(REPEATED, **GREEDY))
    ours.create_completion("Once upon a time", **GREEDY)
    assert told(ours.create_completion(REPEATED, **GREEDY)) == first
    assert cache.cache_size > 0


def test_the_second_turn_evaluates_what_is_new(pair):
    _, ours = pair()
    text = ours.create_completion(REPEATED, **GREEDY)["choices"][0]["text"]
    n_first = ours.last_stats.n_prompt
    ours.create_completion(REPEATED + text + " And", **GREEDY)
    assert ours.last_stats.n_prompt_reused > n_first
    assert ours.last_stats.n_prompt > ours.last_stats.n_prompt_reused


def test_setting_the_model_prepares_the_parameters_of_the_context(llama_cpp, demo_path):
    """The setter of ``_model`` runs between the two statements of llama_cpp that create both."""
    for draft, n_seq_max in (("ngram", 3), (None, 1)):
        with closing(pyselfspec.Llama(str(demo_path), draft=draft, n_seq_max=3, **OPTIONS)) as ours:
            assert llama_cpp.llama_n_seq_max(ours.ctx) == n_seq_max
            assert bool(ours.context_params.kv_unified) == (draft is not None)


def test_embeddings(pair):
    stock, ours = pair({}, embedding=True)
    assert ours.draft is None and "embedding" in ours.why_plain
    assert ours.embed(["a cat", "a mat"]) == stock.embed(["a cat", "a mat"])


def test_attention_that_is_not_causal(pair, llama_cpp):
    stock, ours = pair({}, attention_type=llama_cpp.LLAMA_ATTENTION_TYPE_NON_CAUSAL)
    assert ours.draft is None and "tokens see those after them" in ours.why_plain
    want = told(stock.create_completion(REPEATED, **GREEDY))
    assert told(ours.create_completion(REPEATED, **GREEDY)) == want


def test_what_is_not_drafted_is_decoded_as_there(pair, llama_cpp, demo_path, tmp_path):
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    stock, _ = pair()
    expected = told(stock.create_completion(REPEATED, **GREEDY))
    for options in ({"draft": None}, {"draft_model": LlamaPromptLookupDecoding()}):
        with closing(pyselfspec.Llama(str(demo_path), **OPTIONS, **options)) as plain:
            assert plain.draft is None and plain.why_plain
            assert told(plain.create_completion(REPEATED, **GREEDY)) == expected
            assert plain.last_stats is None
    mamba = str(write_mamba(tmp_path / "mamba.gguf"))
    with closing(pyselfspec.Llama(mamba, **OPTIONS)) as ours:
        assert "no tokens can be removed" in ours.why_plain
    with pytest.raises(UnsupportedError, match="mamba"):
        pyselfspec.Llama(mamba, draft="ngram", **OPTIONS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft": "nonsense"}, "nonsense"),
        ({"draft": "ngram", "embedding": True}, "leave out draft"),
        ({"draft": DraftConfig(mask=EXIT), "embedding": True}, "leave out mask"),
        ({"draft": DraftConfig(controller=Fixed())}, "name of a controller"),
        ({"draft": DraftConfig(verify="residual")}, "verify='match' only"),
        ({"draft": DraftConfig(mask=LayerMask.early_exit(9, 4))}, "9"),
    ],
)
def test_what_does_not_go_together(options, words, demo_path, llama_cpp):
    with pytest.raises(ValueError, match=words):
        pyselfspec.Llama(str(demo_path), **OPTIONS, **options)


def test_a_missing_file_is_told_as_there(tmp_path):
    with pytest.raises(ValueError, match="Model path does not exist"):
        pyselfspec.Llama(str(tmp_path / "none.gguf"), **OPTIONS)


def test_a_second_text_ends_the_first(pair):
    _, ours = pair()
    first = ours.generate(ours.tokenize(REPEATED.encode()), temp=0.0)
    next(first)
    second = ours.generate(ours.tokenize(b"Once upon a time"), temp=0.0)
    expected = list(itertools.islice(second, 12))
    with pytest.raises(ArgumentError, match="another completion was begun"):
        next(first)
    second.close()
    again = ours.generate(ours.tokenize(b"Once upon a time"), temp=0.0)
    assert list(itertools.islice(again, 12)) == expected


def test_a_second_thread_is_told(pair, llama_cpp):
    _, ours = pair()
    inside, done = threading.Event(), threading.Event()

    def process(_ids, scores):
        inside.set()
        done.wait(60)
        return scores

    processors = llama_cpp.LogitsProcessorList([process])
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(ours.create_completion, REPEATED, logits_processor=processors, **GREEDY)
        assert inside.wait(60)
        for use in (
            lambda: ours.create_completion("Once", **GREEDY),
            ours.save_state,
            ours.reset,
            lambda: ours.eval([5]),
        ):
            with pytest.raises(ArgumentError, match="in use in another thread"):
                use()
        done.set()
        assert text.result()["choices"][0]["finish_reason"] == "length"


@pytest.fixture
def ctrl_c_raises():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_one_text_only(pair, llama_cpp, ctrl_c_raises):
    theirs, ours = pair()

    def interrupt(input_ids, _logits):
        if len(input_ids) > 30:
            signal.raise_signal(signal.SIGINT)
        return False

    interrupting = llama_cpp.StoppingCriteriaList([interrupt])
    for prompt in ("Once upon a time", REPEATED):
        with pytest.raises(KeyboardInterrupt):
            ours.create_completion(REPEATED, stopping_criteria=interrupting, **GREEDY)
        expected = told(theirs.create_completion(prompt, **GREEDY))
        assert told(ours.create_completion(prompt, **GREEDY)) == expected


def test_pickles_and_closing(pair, demo_path):
    _, ours = pair()
    expected = told(ours.create_completion(REPEATED, **GREEDY))
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.draft == "ngram"
    assert told(copy.create_completion(REPEATED, **GREEDY)) == expected
    unfinished = copy.generate(copy.tokenize(REPEATED.encode()), temp=0.0)
    list(itertools.islice(unfinished, 5))
    copy.close()
    copy.close()
    del unfinished, copy


def bans_some(input_ids, scores):
    scores[len(input_ids) % 5 :: 5] = -np.inf
    return scores


class Calls:
    """Makes the same random calls to several fresh Llamas and returns the results of each."""

    def __init__(self, seed, llama_cpp):
        self.rng = np.random.default_rng(seed)
        self.states = []  # a saved state of each Llama
        self.processors = llama_cpp.LogitsProcessorList([bans_some])
        self.stopping = llama_cpp.StoppingCriteriaList([long_enough])

    def eval(self):
        tokens = self.rng.integers(5, 200, self.rng.integers(1, 40)).tolist()
        return lambda llama: llama.eval(tokens[: llama.n_ctx() - llama.n_tokens])

    def sample(self):
        options = self.sampling()
        return lambda llama: llama.sample(**options) if llama.n_tokens else None

    def eval_sampled(self):
        """Tokens one by one, as loops of people's own do."""
        n, options = self.rng.integers(1, 8), self.sampling()

        def call(llama):
            tokens = []
            while llama.n_tokens and len(tokens) < n and llama.n_tokens < llama.n_ctx():
                tokens.append(llama.sample(**options))
                llama.eval(tokens[-1:])
            return tokens

        return call

    def generate(self):
        """Some tokens; whoever asked leaves, and the rest of the text is not written."""
        tokens, n = self.rng.integers(5, 200, 12).tolist(), int(self.rng.integers(1, 30))
        again, options = bool(self.rng.random() < 0.5), self.sampling()
        stop = self.stopping if self.rng.random() < 0.3 else None

        def call(llama):
            held = llama.input_ids[: min(llama.n_tokens, 60)].tolist()
            prompt = held + tokens if again else tokens * 2
            with closing(llama.generate(prompt, stopping_criteria=stop, **options)) as text:
                return list(itertools.islice(text, n))

        return call

    def complete(self):
        given = self.sampling()
        options = {"max_tokens": int(self.rng.integers(1, 40)), "temperature": given.pop("temp")}
        options |= given
        if self.rng.random() < 0.3:
            options["stop"] = ["the"]
        return lambda llama: told(llama.create_completion(REPEATED, seed=4, **options))

    def save(self):
        return lambda llama: self.states.append((llama, llama.save_state()))

    def load(self):
        def call(llama):
            mine = [state for owner, state in self.states if owner is llama]
            if mine:
                llama.load_state(mine[len(mine) // 2])
                llama.eval([7])  # a state holds no logits in the context, in either class

        return call

    def reset(self):
        return lambda llama: llama.reset()

    def seed(self):
        seed = int(self.rng.integers(100))
        return lambda llama: llama.set_seed(seed)

    def sampling(self):
        return {
            "temp": float(self.rng.choice([0.0, 0.9])),
            "logits_processor": self.processors if self.rng.random() < 0.3 else None,
        }

    def next(self):
        """A name and a call."""
        names = ("eval", "sample", "eval_sampled", "generate", "complete", "save", "load", "reset",
                 "seed")  # fmt: skip
        name = str(self.rng.choice(names))
        return name, getattr(self, name)()


@pytest.mark.parametrize("logits_all", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_sequences_of_calls(seed, logits_all, pair, llama_cpp):
    """Results, tokens and logits are the same after every call."""
    theirs, ours = pair(logits_all=logits_all)
    calls, names = Calls(seed, llama_cpp), []
    for _ in range(25):
        name, call = calls.next()
        names.append(name)
        print(f"seed {seed}: {names}")
        results = [attempt(call, llama) for llama in (theirs, ours)]
        assert results[0] == results[1]
        for llama in (theirs, ours):
            llama._sampler = (
                None  # else the next draw goes on in the stream of a text that was left
            )
        assert theirs.n_tokens == ours.n_tokens
        held = theirs.input_ids[: theirs.n_tokens]
        np.testing.assert_array_equal(held, ours.input_ids[: ours.n_tokens])


def attempt(call, llama):
    """Return the result of a call, or its error."""
    try:
        return call(llama)
    except (RuntimeError, ValueError, IndexError) as error:
        return type(error), str(error)
