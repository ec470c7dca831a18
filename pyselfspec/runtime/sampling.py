"""Samplers: stock llama.cpp chains, built from one frozen set of parameters."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, SelfSpecError, UnsupportedError
from ..util.closable import Closing
from . import distributions
from .ffi import load, sampler_calls
from .ffi.load import llama
from .grammar import fault
from .sequence_breakers import require_breakers
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
XTC_MAX = 0.5  # no two tokens have a larger probability
NEVER_DRAWN = 1e-30  # share of the best token's probability
LEAST_SHARE = 1e-6  # of the largest dynamic temperature; logits over smaller ones can overflow


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for drawing the next token; the defaults are llama.cpp's.

    temperature: 0, or nearly 0, takes the most likely token after penalties, DRY and the grammar.
    top_k: 0 for all tokens. top_p, min_p: probabilities, 0 to 1.
    repeat_penalty: divides the logits of the last repeat_last_n tokens, prompt included; 1: none.
    presence_penalty: subtracted once from the logit of each of those tokens; 0 for none.
    frequency_penalty: subtracted from that logit for each occurrence of the token; 0 for none.
    logit_bias: pairs of a token id and a number that is added to its logit; -1e30: never drawn.
    seed: None draws one. grammar: GBNF text with a rule ``root``.
    dry_multiplier: of DRY, which lowers the logit of a token that would continue a repetition of
    at least dry_allowed_length tokens by dry_multiplier * dry_base ** (its length -
    dry_allowed_length); 0: off. It reads the last dry_penalty_last_n tokens, prompt included, -1
    for all up to 2**20; a repetition does not reach across a text of dry_sequence_breakers.
    top_n_sigma: keeps tokens whose logits are within this many standard deviations of the best
    one's; 0: all. typical_p: keeps the tokens whose surprise is nearest to the expected one, up to
    this total probability; 1: all.
    xtc_probability: how often XTC removes all but the least likely of the tokens with a probability
    of at least xtc_threshold; 0, or a threshold above 0.5: never.
    dynatemp_range: the temperature is up to this much below or above ``temperature``, from low to
    high by the entropy of the tokens left, a share of its maximum, to the power of
    dynatemp_exponent; 0: off.

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
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, FLOAT_MAX),
            ("top_k", 0, 2**31 - 1),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repeat_last_n", 0, REPEAT_LAST_N_MAX),
            ("presence_penalty", -FLOAT_MAX, FLOAT_MAX),
            ("frequency_penalty", -FLOAT_MAX, FLOAT_MAX),
            ("dry_multiplier", 0.0, FLOAT_MAX),
            ("dry_base", 1.0, FLOAT_MAX),
            ("dry_allowed_length", 0, 2**31 - 1),
            ("dry_penalty_last_n", -1, REPEAT_LAST_N_MAX),
            ("top_n_sigma", 0.0, FLOAT_MAX),
            ("typical_p", 0.0, 1.0),
            ("xtc_probability", 0.0, 1.0),
            ("xtc_threshold", 0.0, 1.0),
            ("dynatemp_range", 0.0, FLOAT_MAX),
            ("dynatemp_exponent", 0.0, FLOAT_MAX),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ArgumentError(f"{name} is {low} to {high}, got {value}")
            if isinstance(low, int) and not isinstance(value, SupportsIndex):
                raise ArgumentError(f"{name} is a whole number, got {value}")
        if not 0.0 < self.repeat_penalty <= FLOAT_MAX:
            raise ArgumentError(
                f"repeat_penalty is above 0 and at most {FLOAT_MAX:g}, got {self.repeat_penalty}"
            )
        for token, bias in self.logit_bias:
            if not abs(bias) <= FLOAT_MAX:
                raise ArgumentError(f"the logit bias of token {token} is not a number: {bias}")
        seed = self.seed
        if seed is not None and not (isinstance(seed, SupportsIndex) and 0 <= seed <= SEED_MAX):
            raise ArgumentError(f"seed is a whole number from 0 to {SEED_MAX}, got {seed}")
        require_breakers(self.dry_sequence_breakers)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty for earlier tokens is set."""
        found = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return found != (1.0, 0.0, 0.0)

    @property
    def has_dry(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0

    @property
    def has_xtc(self) -> bool:
        """Whether XTC is on."""
        return self.xtc_probability > 0.0 and self.xtc_threshold <= XTC_MAX

    def without_past(self) -> SamplingParams:
        """Return these parameters without penalties, DRY and grammar, which depend on earlier
        tokens."""
        return replace(
            self,
            grammar=None,
            repeat_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            dry_multiplier=0.0,
        )

    def with_seed(self) -> SamplingParams:
        """Return these parameters with a definite seed, drawn when there is none."""
        return (
            self if self.seed is not None else replace(self, seed=secrets.randbelow(SEED_MAX + 1))
        )


GREEDY = SamplingParams(temperature=0.0)


class Sampler(Closing):
    """A llama.cpp sampler chain with its own random streams. Use in a ``with`` block; closing twice
    is fine. It belongs to one thread at a time; in a second thread its methods raise ArgumentError.

    The streams advance once per drawn token at most, as the logits require, so equal logits give
    equal tokens with and without drafts.
    Raises ArgumentError when the grammar is not valid GBNF, a bias is for no token, or a grammar or
    DRY's sequence breakers meet a model without a tokenizer.
    """

    def __init__(self, model: Model, params: SamplingParams = GREEDY) -> None:
        self.params = params = params.with_seed()
        self._model = model
        self._lock = SingleThread("the sampler")
        self._readers: list[tuple[int, int]] = []  # samplers, and how much of a prompt they read
        self._xtc: int | None = None
        self._parts: list[int] = []  # of the chain, which owns them; the last one draws
        self._n_kept = 0  # most likely tokens that the first one keeps; 0: all
        self._chain: int | None = llama.llama_sampler_chain_init(
            llama.llama_sampler_chain_default_params()
        )
        try:
            self._add_all(model, params)
        except SelfSpecError:
            self.close()
            raise

    def _add_all(self, model: Model, params: SamplingParams) -> None:
        """Add the samplers that are on, in the order of llama.cpp's tools."""
        if params.logit_bias:
            self._add_bias(model, params.logit_bias)
        if params.has_penalties:
            self._add_penalties(model, params)
        if params.has_dry:
            self._add_dry(model, params)
        if params.grammar is not None:  # after the samplers that need all tokens
            self._add_grammar(model, params.grammar)
        if not self._parts and not params.top_n_sigma:
            self._n_kept = 1 if params.is_greedy else params.top_k
        if params.is_greedy:
            self._add(llama.llama_sampler_init_greedy())
            return
        if params.top_n_sigma > 0:
            self._add(llama.llama_sampler_init_top_n_sigma(params.top_n_sigma))
        if params.top_k > 0:
            self._add(llama.llama_sampler_init_top_k(params.top_k))
        if params.typical_p < 1:
            # it takes the logarithms of all probabilities, so none of them may be 0
            self._add(llama.llama_sampler_init_min_p(NEVER_DRAWN, 1))
            self._add(llama.llama_sampler_init_typical(params.typical_p, 1))
        self._add(llama.llama_sampler_init_top_p(params.top_p, 1))
        self._add(llama.llama_sampler_init_min_p(params.min_p, 1))
        if params.has_xtc:
            settings = (params.xtc_probability, params.xtc_threshold, 1, params.seed)
            self._xtc = self._add(llama.llama_sampler_init_xtc(*settings))
        if params.dynatemp_range > 0:
            self._add(llama.llama_sampler_init_temp_ext(*_dynamic_temperature(params)))
        else:
            self._add(llama.llama_sampler_init_temp(params.temperature))
        self._add(llama.llama_sampler_init_dist(params.seed))

    def _add(self, sampler: int) -> int:
        llama.llama_sampler_chain_add(self._chain, sampler)
        self._parts.append(sampler)
        return sampler

    def _add_penalties(self, model: Model, params: SamplingParams) -> None:
        sampler = llama.llama_sampler_init_penalties(
            model.n_vocab,
            params.repeat_last_n,
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        self._readers.append((self._add(sampler), params.repeat_last_n))

    def _add_dry(self, model: Model, params: SamplingParams) -> None:
        breakers = params.dry_sequence_breakers
        last_n = params.dry_penalty_last_n
        last_n = REPEAT_LAST_N_MAX if last_n == -1 else last_n
        with model.in_use():
            sampler = sampler_calls.init_dry(
                model.require_tokenizer("DRY's sequence breakers need one") if breakers else None,
                multiplier=params.dry_multiplier,
                base=params.dry_base,
                allowed_length=params.dry_allowed_length,
                last_n=last_n,
                breakers=breakers,
            )
        self._readers.append((self._add(sampler), last_n))

    def _add_grammar(self, model: Model, grammar: str) -> None:
        if reason := fault(grammar):
            raise ArgumentError(f"{_NO_GBNF}: {reason}")
        load.clear_log_error()
        with model.in_use():
            vocab = model.require_tokenizer("a grammar needs one")
            sampler = sampler_calls.init_grammar(vocab, grammar, *self._drawn_from())
        if not sampler:
            raise load.failure(ArgumentError, _NO_GBNF)
        self._add(sampler)

    def _drawn_from(self) -> tuple[int, float]:
        """Return the number of most likely tokens that the next one is drawn from, 0 for all, and
        the distance from the best logit beyond which tokens are not drawn."""
        params = self.params
        if params.is_greedy:
            return 1, math.inf
        if params.top_n_sigma:
            return 0, math.inf  # it measures all tokens
        if not params.top_k or not params.min_p or params.typical_p < 1:
            return params.top_k, math.inf  # typical_p may leave out the best
        # all of them together would hardly count in the sum that top_p goes by, either
        return params.top_k, -math.log(min(params.min_p, UNSEEN / params.top_k))

    def _add_bias(self, model: Model, pairs: Sequence[tuple[int, float]]) -> None:
        for token, _ in pairs:
            if not 0 <= token < model.n_vocab:
                raise ArgumentError(
                    f"logit_bias: tokens are 0 to {model.n_vocab - 1} here, got {token}"
                )
        # so that top_n_sigma does not measure it
        given = [(token, -math.inf if bias <= -FLOAT_MAX else bias) for token, bias in pairs]
        biases = (llama.llama_logit_bias * len(pairs))(*given)
        self._add(llama.llama_sampler_init_logit_bias(model.n_vocab, len(pairs), biases))

    def close(self) -> None:
        with self._lock():
            if self._chain is not None:
                llama.llama_sampler_free(self._chain)
            self._chain = self._xtc = None
            self._parts, self._readers = [], []

    @property
    def handle(self) -> int:
        if self._chain is None:
            raise ArgumentError("the sampler is closed")
        if self.params.grammar is not None:
            _ = self._model.handle  # a grammar reads the model's vocabulary
        return self._chain

    @property
    def n_best(self) -> int:
        """Among how many of the most likely tokens a draw chooses; 0: all tokens. With 1,
        ``sample`` needs no logits, see ``passes.Head``."""
        return self._n_kept

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a text: reset the chain, and let penalties and DRY (not the grammar) read the
        prompt."""
        with self._lock():
            llama.llama_sampler_reset(self.handle)
            for sampler, last_n in self._readers:
                for token in prompt[max(0, len(prompt) - last_n) :]:
                    llama.llama_sampler_accept(sampler, token)

    def sample(self, context: Context, row: int) -> int:
        """Draw and accept the token that follows token ``row`` of the last batch."""
        if context.model.n_vocab != self._model.n_vocab:
            raise ArgumentError("the sampler was made for a model with another vocabulary")
        with context.lock(), self._lock(), self._model.in_use():
            return sampler_calls.sample(context.session, self.handle, row, self._n_kept)

    def take(self, context: Context, row: int, token: int) -> None:
        """Accept a token that is not drawn as the one that follows token ``row`` of the last batch.
        Raises ArgumentError as `accept` does."""
        self.accept(token)

    def distribution_of(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the distribution that ``sample_logits`` draws from: the probability of every token
        after the whole chain, float64 [n_vocab], for logits float32 [n_vocab]. Nothing is drawn or
        accepted. Logits of -inf are for tokens that are not there. With XTC, which acts at random,
        the distribution is the average of those with and without it.

        Raises UnsupportedError where the last sampler does not draw from a distribution.
        """
        self._require_logits(logits)
        with self._lock(), self._model.in_use():
            _ = self.handle
            *parts, last = self._parts
            name = sampler_calls.sampler_name(last)
            if name not in ("dist", "greedy"):
                raise UnsupportedError(
                    f"the sampler {name} does not draw from a distribution; use verify='match'"
                )
            distribution = self._after(parts, distributions.candidates_of(logits))
        if name == "greedy":
            distribution = np.eye(1, len(distribution), int(distribution.argmax()))[0]
        return distribution

    def _after(self, samplers: Sequence[int], candidates: NDArray[np.void]) -> NDArray[np.float64]:
        """Return the probability of every token after these samplers, float64 [n_vocab]."""
        n_vocab = self._model.n_vocab
        if self._xtc not in samplers:
            return distributions.after(samplers, candidates, n_vocab)
        at = samplers.index(self._xtc)
        left = sampler_calls.apply(samplers[:at], candidates)
        rest, share = samplers[at + 1 :], self.params.xtc_probability
        whole = distributions.after(rest, left.copy(), n_vocab)
        fewer = distributions.without_top_choices(left, self.params.xtc_threshold)
        return share * distributions.after(rest, fewer, n_vocab) + (1 - share) * whole

    def accept(self, token: int) -> None:
        """Record a drawn token for penalties, DRY and the grammar.

        Raises ArgumentError, and accepts nothing, for a token that the grammar does not allow, or
        that is not in the vocabulary.
        """
        self._model.require_tokens([token])
        with self._lock(), self._model.in_use():
            sampler_calls.accept(self.handle, token)

    def sample_logits(self, logits: NDArray[np.float32]) -> int:
        """Draw and accept a token from logits, float32 [n_vocab]."""
        self._require_logits(logits)
        with self._lock(), self._model.in_use():
            return sampler_calls.sample_logits(self.handle, logits, self._n_kept)

    def _require_logits(self, logits: NDArray[np.float32]) -> None:
        if np.shape(logits) != (self._model.n_vocab,):
            raise ArgumentError(
                f"logits have shape [{self._model.n_vocab}], got {list(np.shape(logits))}"
            )


def _dynamic_temperature(params: SamplingParams) -> tuple[float, float, float]:
    """Return the middle of the range of temperatures, half its width, and the exponent."""
    high = params.temperature + params.dynatemp_range
    low = max(params.temperature - params.dynatemp_range, LEAST_SHARE * high)
    return (high + low) / 2, (high - low) / 2, params.dynatemp_exponent
