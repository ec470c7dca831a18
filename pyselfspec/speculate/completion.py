"""One text, from a prompt in any form to pieces of text, with the defaults that most users want."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from ..errors import ArgumentError, ContextFullError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.logprobs import LogProbs, WatchedSampler
from ..runtime.model import Model
from ..runtime.sampling import Sampler, SamplingParams
from . import controllers, learned
from .adapt import Adapt, Adaptation
from .controllers import Controller
from .controllers.fixed import Fixed
from .draft_names import Names
from .drafters import Drafter
from .estimate import estimated_speedup
from .loop import steps_of
from .prepared import AUTO, Speculation, prepared
from .residual import MATCH, RESIDUAL, VERIFY, Residual
from .text import Text
from .text_stream import TextStream
from .together import steps_together
from .types import GenerationStats, Step

N_PREDICT = 128  # tokens
N_COUNTED = 1 << 20  # characters of a prompt that is too long; counting takes half a second
# finish reasons: "length", "eog", "stop" and
INTERRUPTED = "interrupted"  # the user cut it off
CONTEXT_FULL = "context"  # there was no room for all the tokens that were asked for


class Completion:
    """A text in the making. Iterate for pieces of it; then look at tokens, stats, finish_reason.

    prompt: text, or token ids, which also work for models without a tokenizer (pieces are empty).
        What the sequence holds of it already is not evaluated again.
    seq: the sequence for the text, by default sequence 0.
    draft: name of a drafter, see ``drafters.names()``, with its file as in "model:small.gguf" where
        it takes one; several as in "ngram+layer-skip" or ["ngram", "model:small.gguf"]; "auto":
        those that suit the context; a Drafter, which stays the caller's to close; None: plain
        decoding.
    options: of a drafter that is given by name, its ``Options``.
    mask: what drafts skip; default: that of the model's profile, else the drafter's choice.
    profile: False ignores the profile. Options, mask and profile go with names only.
    controller: how long to draft; or the name of a controller, see ``controllers.names()``.
    stop: strings that end the text.
    verify: "match": the text's own draws decide, so a seed gives one text however it is drafted.
        "residual": draft tokens of passes are drawn at the text's temperature, and more of them are
        accepted. The text follows the same law, but is another one. See residual.py.
    unverified: for research: the mask, which must be given, writes the text, and nothing verifies
        it, so it is not the model's own.
    logprobs: so many of the likeliest tokens are kept, with what the model gave them, for every
        token of the text, in ``logprobs``; 0: the token alone; None: nothing is.
    adapt: try other masks meanwhile; ``adaptation.state`` is where another text can go on. Each
        mask gets a controller of its own where that is given by name.

    >>> with Model("model.gguf") as model, model.context() as context:     # doctest: +SKIP
    ...     for piece in Completion(context, "Once upon a time"):
    ...         print(piece, end="")

    It can be iterated once. Stopping early leaves the context consistent.

    Raises ArgumentError, MaskError, UnsupportedError or a file's error for what does not go
    together; when iterated, what ``Context.run`` raises.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        *,
        seq: KVSequence | None = None,
        n_predict: int = N_PREDICT,
        draft: Names | Drafter | None = AUTO,
        options: Any = None,
        mask: LayerMask | None = None,
        profile: bool = True,
        controller: Controller | str = controllers.DEFAULT,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        verify: str = MATCH,
        unverified: bool = False,
        adapt: Adapt | None = None,
        logprobs: int | None = None,
    ) -> None:
        model = context.model
        if stop:
            model.require_tokenizer("stop strings need one")
        if verify not in VERIFY:
            raise ArgumentError(f"verify is one of {', '.join(VERIFY)}, got {verify!r}")
        if verify == RESIDUAL and draft is None:
            raise ArgumentError("plain decoding drafts nothing, so there is nothing to verify")
        if logprobs is not None and verify == RESIDUAL:
            raise ArgumentError("probabilities are kept of texts with verify='match' only")
        self._writes: LayerMask | None = None  # the text, unverified
        if unverified:
            if mask is None:
                raise ArgumentError("an unverified text needs a mask, which says what writes it")
            if draft not in (AUTO, None) or adapt is not None or verify != MATCH:
                raise ArgumentError("an unverified text is not drafted; leave out how to draft it")
            self._writes, draft, mask = mask.require(model.n_layer), None, None
        if adapt is not None and adapt.state is not None:
            if mask is not None:
                raise ArgumentError("adapt.state has a mask of its own; give one or the other")
            mask = adapt.state.mask.require(model.n_layer)
        self.context = context
        self._seq = context.sequence() if seq is None else seq
        if self._seq.context is not context:
            raise ArgumentError("the sequence belongs to another context")
        self._n_predict = n_predict
        self.prompt = _tokens_of(context, prompt) if isinstance(prompt, str) else list(prompt)
        self._owned: list[Drafter] = []  # to close at the end
        self._speculation: Speculation | None = None
        self._drafter, self._controller, self.draft = self._drafting(
            draft, options, mask, profile, controller, with_mask=adapt is not None
        )
        self.sampling = (sampling or SamplingParams()).with_seed()
        self.verify = verify
        self.adaptation: Adaptation | None = None
        if adapt is not None:
            self._adapt(adapt, controller)
        self.tokens: list[int] = []
        self.logprobs: list[LogProbs] = []  # of these, where they were asked for
        self._n_top = logprobs
        self.origins: list[str | None] = []  # of each token, see Step.origins
        self.text = ""
        self.stats = GenerationStats(n_prompt=len(self.prompt))
        self.finish_reason: str | None = None  # then one of those above
        self._started = False
        piece = model.piece if model.has_vocab else lambda _token: b""
        self._stream = TextStream(piece, model.is_eog, stop)

    @property
    def mask(self) -> LayerMask | None:
        """What drafts skip now, or the whole text; None where nothing is skipped."""
        return self._writes if self._drafter is None else self._drafter.mask

    @property
    def unverified(self) -> bool:
        """Whether the mask writes the text."""
        return self._writes is not None

    @property
    def controller(self) -> Controller:
        """Who decides now."""
        return self.adaptation.controller if self.adaptation else self._controller

    @property
    def estimated_speedup(self) -> float | None:
        """Speed over plain decoding, estimated from this text's own passes, see estimate.py; None
        where too few of them were plain."""
        return estimated_speedup(self.stats)

    def _drafting(
        self,
        draft: Names | Drafter | None,
        options: Any,
        mask: LayerMask | None,
        profile: bool,
        controller: Controller | str,
        with_mask: bool,
    ) -> tuple[Drafter | None, Controller, str | None]:
        """Who drafts, who decides how long, and the drafter's name."""
        if draft is not None and not isinstance(draft, Sequence):
            if mask is not None or options is not None:
                raise ArgumentError("a drafter that is made already takes no mask and no options")
            if isinstance(controller, str):
                controller = controllers.load(controller)(draft.costs())
            return draft, controller, str(draft.identity["drafter"])
        found = prepared(
            self.context,
            draft,
            options=options,
            mask=mask,
            profile=profile,
            with_mask=with_mask,
        )
        self._speculation = found
        if found is None:
            return None, Fixed(), None
        return *self._made(found, controller), found.name

    def _made(self, found: Speculation, controller: Controller | str) -> tuple[Drafter, Controller]:
        drafter = found.make()
        self._owned.append(drafter)
        if isinstance(controller, str):
            held = len(self._seq.tokens)
            goes_on = 0 < held <= 2 * self._seq.n_common(self.prompt)
            controller = found.controller(controller, self._seq.seq_id, goes_on=goes_on)
        return drafter, controller

    def _adapt(self, adapt: Adapt, controller: Controller | str) -> None:
        if self._drafter is None or self._drafter.mask is None:
            raise ArgumentError("there is no mask to adapt, since nothing is drafted with one here")
        assert self.sampling.seed is not None and self._speculation is not None
        name = self._speculation.name
        options = tuple(map(_without_mask, self._speculation.options.values()))

        def build(mask: LayerMask) -> tuple[Drafter, Controller]:
            found = prepared(self.context, name, options=options, mask=mask)
            assert found is not None
            self._speculation = found
            return self._made(found, controller)

        state = adapt.state_for(self._drafter.mask, self.sampling.seed)
        self.adaptation = Adaptation(self.context, state, build, adapt.share)
        self._drafter = self._controller = self.adaptation

    @contextmanager
    def start(self) -> Iterator[Text]:
        """The text, ready to begin; what it needs is freed afterwards."""
        if self._started:
            raise ArgumentError("a completion is iterated once; make a new one for another text")
        self._started = True
        with ExitStack() as stack:
            stack.callback(self._close_drafters)
            sampler = stack.enter_context(self._sampler())
            yield Text(
                self._seq,
                self.prompt,
                drafter=self._drafter,
                controller=self._controller,
                sampler=sampler,
                n_predict=self._n_predict,
                ends=self._stream.push,
                residual=stack.enter_context(self._residual()),
                mask=self._writes,
            )

    def _sampler(self) -> Sampler:
        model = self.context.model
        if self._n_top is None:
            return Sampler(model, self.sampling)
        return WatchedSampler(model, self.sampling, self._n_top, self.logprobs)

    def _close_drafters(self) -> None:
        """Those that came with other masks included."""
        with ExitStack() as stack:
            for drafter in self._owned:
                stack.callback(drafter.close)

    @contextmanager
    def _residual(self) -> Iterator[Residual | None]:
        """None where drafts are verified by sample and match; greedily there is no difference."""
        if self.verify == MATCH or self.sampling.is_greedy:
            yield None
            return
        # a grammar and penalties know the text, which drafts run ahead of
        params = self.sampling.without_past()
        assert params.seed is not None
        with Sampler(self.context.model, params) as sampler:
            yield Residual(sampler, params.seed)

    def __iter__(self) -> Iterator[str]:
        with self.start() as text, closing(steps_of(self.context, text)) as steps:
            start = time.perf_counter_ns()
            for step in steps:
                us = _us_since(start)
                self.stats.total_us += us
                if self.stats.n_steps == 0:
                    prefill_us = us - step.us
                    self.read_prompt(text, prefill_us)
                yield self.advanced(step)
                start = time.perf_counter_ns()
            yield self.finish()

    def read_prompt(self, text: Text, us: int) -> None:
        """The prompt has been evaluated, in so many microseconds."""
        self.stats.n_prompt_reused = text.n_reused
        self.stats.prefill_us = us

    def advanced(self, step: Step) -> str:
        """Take in a step; returns the text that it adds."""
        self.tokens += step.tokens
        self.origins += step.origins
        self.stats.observe(step)
        return self._grow(self._stream.take())

    def finish(self) -> str:
        """After the last step; returns the text that was held back."""
        limit = "length" if len(self.tokens) >= self._n_predict else CONTEXT_FULL
        self.finish_reason = self._stream.finish_reason or limit
        return self._grow(self._stream.finish())

    def remember(self) -> None:
        """Keep what was learned of costs and copies for the next run, in the user's cache folder:
        estimates that the first steps of its texts go by. Costs only where no mask is in use."""
        if self._speculation is not None:
            learned.save(self.context, self._speculation.timings)

    def _grow(self, piece: str) -> str:
        self.text += piece
        return piece


def _without_mask(options: Any) -> Any:
    return replace(options, mask=None) if hasattr(options, "mask") else options


def _tokens_of(context: Context, prompt: str) -> list[int]:
    tokens = context.model.first_tokens(prompt, context.n_ctx + 1)
    if len(tokens) > context.n_ctx:
        raise ContextFullError(
            f"the prompt has {count_for_message(context.model, prompt)} tokens, the context "
            f"{context.n_ctx}; give a larger n_ctx or a shorter prompt"
        )
    return tokens


def count_for_message(model: Model, text: str) -> str:
    """The number of tokens of a text for a message, extrapolated for texts beyond N_COUNTED."""
    n = len(model.tokenize(text[:N_COUNTED]))
    return str(n) if len(text) <= N_COUNTED else f"about {n * len(text) // N_COUNTED}"


def interleaved(completions: Sequence[Completion]) -> Iterator[tuple[Completion, str]]:
    """Advance completions of one context, each in a sequence of its own, with shared passes; yields
    pieces of text as they come.

    Each text is the one it would be alone. Times count for all that are being worked on.

    >>> a, b = (Completion(context, p, seq=context.sequence(i))             # doctest: +SKIP
    ...         for i, p in enumerate(("Once", "The king")))
    >>> for completion, piece in interleaved([a, b]): ...                   # doctest: +SKIP
    """
    if len({completion.context for completion in completions}) > 1:
        raise ArgumentError("completions that are interleaved share a context")
    with ExitStack() as stack:
        texts = {stack.enter_context(each.start()): each for each in completions}
        if not texts:
            return
        steps = steps_together(completions[0].context, list(texts))
        stack.callback(steps.close)
        start = time.perf_counter_ns()
        for events in steps:
            us = _us_since(start)
            pieces = []
            for text, step in events:
                completion = texts[text]
                if step is None:
                    completion.read_prompt(text, completion.stats.total_us + us)
                elif isinstance(step, Step):
                    pieces.append((completion, completion.advanced(step)))
            for text, completion in texts.items():
                if completion.finish_reason is None:
                    completion.stats.total_us += us
                    if text.ended:
                        pieces.append((completion, completion.finish()))
            yield from pieces
            start = time.perf_counter_ns()


def _us_since(start: int) -> int:
    return (time.perf_counter_ns() - start) // 1000


class CompletionOptions(TypedDict, total=False):
    """Keyword arguments of Completion."""

    seq: KVSequence | None
    n_predict: int
    draft: Names | Drafter | None
    options: Any
    mask: LayerMask | None
    profile: bool
    controller: Controller | str
    sampling: SamplingParams | None
    stop: Sequence[str]
    verify: str
    unverified: bool
    adapt: Adapt | None
    logprobs: int | None


def generate(
    context: Context, prompt: str | Sequence[int], **options: Unpack[CompletionOptions]
) -> str:
    """The text that follows a prompt; options as for Completion."""
    return "".join(Completion(context, prompt, **options))
