"""Samplers: stock llama.cpp chains, built from one frozen set of parameters."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, SelfSpecError, UnsupportedError
from ..util.closable import Closing
from .ffi import calls, load
from .ffi.load import llama
from .grammar import fault
from .thread_guards import SingleThread

if TYPE_CHECKING:
    from .context import Context
    from .model import Model

SEED_MAX = 2**32 - 2  # llama.cpp takes 2**32 - 1 for "random"
REPEAT_LAST_N_MAX = 2**20  # llama.cpp reserves the memory for it at once
FLOAT_MAX = 1e30  # llama.cpp computes with float32
UNSEEN = 0.001  # share of the best token's probability below which no grammar is applied
_NO_GBNF = "the grammar is not valid GBNF"
GREEDY_BELOW = 1e-30  # logits over such a temperature overflow


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for drawing the next token; the defaults are llama.cpp's.

    temperature: 0, or nearly 0, takes the most likely token. top_k: 0 for all tokens.
    top_p, min_p: probabilities, 0 to 1.
    repeat_penalty: divides the logits of the last repeat_last_n tokens, prompt included; 1: none.
    presence_penalty: subtracted once from the logit of each of those tokens; 0 for none.
    frequency_penalty: subtracted from that logit for each occurrence of the token; 0 for none.
    logit_bias: pairs of a token id and a number that is added to its logit.
    seed: None draws one. grammar: GBNF text with a rule ``root``.

    Raises ArgumentError for values outside their range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, FLOAT_MAX),
            ("top_k", 0, 2**31 - 1),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repeat_last_n", 0, REPEAT_LAST_N_MAX),
            ("presence_penalty", -FLOAT_MAX, FLOAT_MAX),
            ("frequency_penalty", -FLOAT_MAX, FLOAT_MAX),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ArgumentError(f"{name} is {low} to {high}, got {value}")
        if not 0.0 < self.repeat_penalty <= FLOAT_MAX:
            raise ArgumentError(
                f"repeat_penalty is above 0 and at most {FLOAT_MAX:g}, got {self.repeat_penalty}"
            )
        for token, bias in self.logit_bias:
            if not abs(bias) <= FLOAT_MAX:
                raise ArgumentError(f"the logit bias of token {token} is not a number: {bias}")
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise ArgumentError(f"seed is 0 to {SEED_MAX}, got {self.seed}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty for earlier tokens is set."""
        found = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return found != (1.0, 0.0, 0.0)

    def without_past(self) -> SamplingParams:
        """Return these parameters without penalties and grammar, which depend on earlier
        tokens."""
        return replace(
            self, grammar=None, repeat_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
        )

    def with_seed(self) -> SamplingParams:
        """Return these parameters with a definite seed, drawn when there is none."""
        return (
            self if self.seed is not None else replace(self, seed=secrets.randbelow(SEED_MAX + 1))
        )


GREEDY = SamplingParams(temperature=0.0)


class Sampler(Closing):
    """A llama.cpp sampler chain with its own random stream. Use in a ``with`` block; closing twice
    is fine. It belongs to one thread at a time; in a second thread its methods raise ArgumentError.

    The stream advances once per drawn token, so equal logits give equal tokens with and without
    drafts.
    Raises ArgumentError when the grammar is not valid GBNF, or a bias is for no token.
    """

    def __init__(self, model: Model, params: SamplingParams = GREEDY) -> None:
        self.params = params = params.with_seed()
        self._model = model
        self._lock = SingleThread("the sampler")
        self._penalties: int | None = None
        self._parts: list[int] = []  # of the chain, which owns them; the last one draws
        self._chain: int | None = llama.llama_sampler_chain_init(
            llama.llama_sampler_chain_default_params()
        )
        if params.logit_bias:
            self._add_bias(model, params.logit_bias)
        if params.has_penalties:
            self._penalties = self._add(
                llama.llama_sampler_init_penalties(
                    model.n_vocab,
                    params.repeat_last_n,
                    params.repeat_penalty,
                    params.frequency_penalty,
                    params.presence_penalty,
                )
            )
        if params.grammar is not None:  # after the samplers that need all tokens
            self._add_grammar(model, params.grammar)
        if params.is_greedy:
            self._add(llama.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            self._add(llama.llama_sampler_init_top_k(params.top_k))
        self._add(llama.llama_sampler_init_top_p(params.top_p, 1))
        self._add(llama.llama_sampler_init_min_p(params.min_p, 1))
        self._add(llama.llama_sampler_init_temp(params.temperature))
        self._add(llama.llama_sampler_init_dist(params.seed))

    def _add(self, sampler: int) -> int:
        llama.llama_sampler_chain_add(self._chain, sampler)
        self._parts.append(sampler)
        return sampler

    def _add_grammar(self, model: Model, grammar: str) -> None:
        try:
            if reason := fault(grammar):
                raise ArgumentError(f"{_NO_GBNF}: {reason}")
            load.clear_log_error()
            with model.in_use:
                vocab = model.require_tokenizer("a grammar needs one")
                sampler = calls.init_grammar(vocab, grammar, *self._drawn_from())
            if not sampler:
                raise load.failure(ArgumentError, _NO_GBNF)
        except SelfSpecError:
            self.close()
            raise
        self._add(sampler)

    def _drawn_from(self) -> tuple[int, float]:
        """Return the number of most likely tokens that the next one is drawn from, 0 for all, and
        the distance from the best logit beyond which tokens are not drawn."""
        params = self.params
        if params.is_greedy:
            return 1, math.inf
        if not params.top_k or not params.min_p:
            return params.top_k, math.inf
        # all of them together would hardly count in the sum that top_p goes by, either
        return params.top_k, -math.log(min(params.min_p, UNSEEN / params.top_k))

    def _add_bias(self, model: Model, pairs: Sequence[tuple[int, float]]) -> None:
        for token, _ in pairs:
            if not 0 <= token < model.n_vocab:
                self.close()
                raise ArgumentError(
                    f"logit_bias: tokens are 0 to {model.n_vocab - 1} here, got {token}"
                )
        given = (llama.llama_logit_bias * len(pairs))(*pairs)
        self._add(llama.llama_sampler_init_logit_bias(model.n_vocab, len(pairs), given))

    def close(self) -> None:
        with self._lock:
            if self._chain is not None:
                llama.llama_sampler_free(self._chain)
            self._chain = self._penalties = None
            self._parts = []

    @property
    def handle(self) -> int:
        if self._chain is None:
            raise ArgumentError("the sampler is closed")
        if self.params.grammar is not None:
            _ = self._model.handle  # a grammar reads the model's vocabulary
        return self._chain

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a text: reset the chain, and apply penalties (not the grammar) to the prompt."""
        with self._lock:
            llama.llama_sampler_reset(self.handle)
            if self._penalties is not None:
                for token in prompt[max(0, len(prompt) - self.params.repeat_last_n) :]:
                    llama.llama_sampler_accept(self._penalties, token)

    def sample(self, context: Context, row: int) -> int:
        """Draw and accept the token that follows token ``row`` of the last batch."""
        if context.model.n_vocab != self._model.n_vocab:
            raise ArgumentError("the sampler was made for a model with another vocabulary")
        with context.lock, self._lock, self._model.in_use:
            return calls.sample(context.session, self.handle, row)

    def take(self, context: Context, row: int, token: int) -> None:
        """Accept a token that is not drawn as the one that follows token ``row`` of the last batch.
        Raises ArgumentError as `accept` does."""
        self.accept(token)

    def distribution_of(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the distribution that ``sample_logits`` draws from: the probability of every token
        after the whole chain, float64 [n_vocab], for logits float32 [n_vocab]. Nothing is drawn or
        accepted. Logits of -inf are for tokens that are not there.

        Raises UnsupportedError where the last sampler does not draw from a distribution.
        """
        self._require_logits(logits)
        with self._lock, self._model.in_use:
            _ = self.handle
            *parts, last = self._parts
            name = calls.sampler_name(last)
            if name not in ("dist", "greedy"):
                raise UnsupportedError(
                    f"the sampler {name} does not draw from a distribution; use verify='match'"
                )
            distribution = _applied(parts, logits)
        if name == "greedy":
            distribution = np.eye(1, len(distribution), int(distribution.argmax()))[0]
        return distribution

    def accept(self, token: int) -> None:
        """Record a drawn token for penalties and the grammar.

        Raises ArgumentError, and accepts nothing, for a token that the grammar does not allow, or
        that is not in the vocabulary.
        """
        self._model.require_tokens([token])
        with self._lock, self._model.in_use:
            calls.accept(self.handle, token)

    def sample_logits(self, logits: NDArray[np.float32]) -> int:
        """Draw and accept a token from logits, float32 [n_vocab]."""
        self._require_logits(logits)
        with self._lock, self._model.in_use:
            return calls.sample_logits(self.handle, logits)

    def _require_logits(self, logits: NDArray[np.float32]) -> None:
        if np.shape(logits) != (self._model.n_vocab,):
            raise ArgumentError(
                f"logits have shape [{self._model.n_vocab}], got {list(np.shape(logits))}"
            )


def _applied(samplers: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the probability of every token after samplers that draw nothing, float64 [n_vocab]."""
    ids = np.flatnonzero(logits != -np.inf)
    if not len(ids):
        raise calls.not_numbers()
    candidates = np.zeros(len(ids), calls.CANDIDATE)
    candidates["id"], candidates["logit"] = ids, logits[ids]
    left = calls.apply(samplers, candidates)
    largest = left["logit"].max(initial=-np.inf)
    if not largest > -np.inf:
        raise calls.no_token_left() if np.max(logits) > -np.inf else calls.not_numbers()
    probabilities = np.zeros(len(logits))
    probabilities[left["id"]] = np.exp(left["logit"].astype(np.float64) - largest)
    probabilities /= probabilities.sum()
    return probabilities
