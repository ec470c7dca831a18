"""One text, from a prompt in any form to pieces of text, with the defaults that most users want."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TypedDict, Unpack

from ..errors import ArgumentError, prompt_too_long
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.logprobs import WatchedSampler
from ..runtime.lora import Adapters
from ..runtime.model import Model
from ..runtime.pictures import Picture
from ..runtime.sampling import Sampler, SamplingParams
from . import controllers, hit_rates
from .batching import batch_steps, run_steps
from .config import AUTO, DraftChoice, DraftConfig, DraftFields
from .controllers import Controller
from .controllers.fixed import Fixed
from .generation import Generation
from .output.line_limits import LineLimits
from .output.record import TextRecord
from .output.text_stream import TextStream
from .picture_drafts import for_pictures
from .reasoning_budget import BudgetSampler, ReasoningBudget
from .residual import RESIDUAL, Residual
from .resolve import is_continuation, resolve
from .types import Step

N_PREDICT = 128  # tokens
N_COUNTED = 1 << 20  # characters of a prompt that is too long; counting takes half a second


class Completion(TextRecord):
    """A text that is generated while it is iterated over.

    Iterate for pieces of text; then look at tokens, stats, finish_reason, see TextRecord.

    prompt: text, or token ids, which also work for models without a tokenizer (pieces are empty).
        The beginning of it that the sequence holds already is not evaluated again.
    draft: how to draft, as ``DraftConfig.draft``, or a DraftConfig; other fields of the config may
        follow as keyword arguments: options, mask, profile, controller, verify.
    seq: the sequence for the text, by default sequence 0.
    n_predict: most tokens to generate.
    stop: strings that end the text.
    line_limits: limits that end the text at a line; None for none.
    shown: texts of control tokens that the text shows, by token id; others add nothing to it.
    logprobs: number of likeliest tokens to keep with their log probabilities for every token of the
        text, in ``logprobs``; 0: the token alone; None: nothing.
    adapters: LoRA adapters and their scales, see ``runtime.lora.scaled``; None: as the model
        was opened.
    pictures: those whose tokens are in the prompt, see ``runtime.projector``; drafts then come from
        drafters that read them.
    reasoning_budget: closes the reasoning after a number of tokens; None: no limit.

    >>> with Model("model.gguf") as model, model.context() as context:     # doctest: +SKIP
    ...     for piece in Completion(context, "Once upon a time"):
    ...         print(piece, end="")

    It can be iterated once. Stopping early leaves the context consistent.

    Raises ArgumentError, MaskError, UnsupportedError or a file's error for arguments that do not go
    together; when iterated, what ``Context.run`` raises.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        draft: DraftChoice | DraftConfig = AUTO,
        *,
        seq: KVSequence | None = None,
        n_predict: int = N_PREDICT,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        line_limits: LineLimits | None = None,
        logprobs: int | None = None,
        shown: Mapping[int, str] | None = None,
        adapters: Adapters | None = None,
        pictures: Sequence[Picture] = (),
        reasoning_budget: ReasoningBudget | None = None,
        **drafting: Unpack[DraftFields],
    ) -> None:
        _require_known(context, drafting)
        model = context.model
        self.config = DraftConfig.create(draft, **drafting)
        if pictures:
            self.config = for_pictures(self.config)
        self._pictures = pictures
        self._reasoning_budget = reasoning_budget
        if stop:
            model.require_tokenizer("stop strings need one")
        if logprobs is not None and self.config.verify == RESIDUAL:
            raise ArgumentError("logprobs needs verify='match'")
        self.context = context
        self._seq = context.sequence() if seq is None else seq
        if self._seq.context is not context:
            raise ArgumentError("the sequence belongs to another context")
        self.prompt = _tokens_of(context, prompt)
        self.sampling = (sampling or SamplingParams()).with_seed()
        self._n_top = logprobs
        self.adapters = context.adapters if adapters is None else adapters
        self._setup = None if self.config.drafter is not None else resolve(context, self.config)
        self._drafter = self.config.drafter
        self.controller = self._make_controller()
        self._started = False
        self._shown = {token: text.encode() for token, text in (shown or {}).items()}
        stream = TextStream(self.piece, model.is_eog, stop, line_limits)
        super().__init__(len(self.prompt), n_predict, stream)
        if self._setup is not None:
            self._drafter = self._setup.make()  # last: a later error would leave it open

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        model = self.context.model
        if (shown := self._shown.get(token)) is not None:
            return shown
        return model.piece(token) if model.has_vocab else b""

    @property
    def draft(self) -> str | None:
        """Names of the drafters, joined by +; None for plain decoding."""
        if self._setup is not None:
            return self._setup.name
        return None if self._drafter is None else self._drafter.name

    @property
    def mask(self) -> LayerMask | None:
        """The sublayers that drafts skip now; None where they skip nothing of the model."""
        return None if self._drafter is None else self._drafter.mask

    @property
    def estimated_speedup(self) -> float | None:
        """Speed over plain decoding, estimated from the passes of this text, see stats.py; None
        where too few of them were plain."""
        return self.stats.estimated_speedup

    def _make_controller(self) -> Controller:
        controller = self.config.controller
        if self._setup is not None:
            n_held, n_same = len(self._seq.tokens), self._seq.n_common(self.prompt)
            continues = is_continuation(n_held, n_same)
            return self._setup.controller(controller, self._seq.seq_id, continues=continues)
        if self._drafter is None:
            return Fixed()
        if isinstance(controller, str):
            return controllers.load(controller)(self._drafter.costs())
        return controller

    @contextmanager
    def start(self) -> Iterator[Generation]:
        """Yield the generation, ready to begin; what it needs is freed afterwards."""
        if self._started:
            raise ArgumentError("a completion is iterated once; make a new one for another text")
        self._started = True
        model, budget = self.context.model, self._reasoning_budget
        with ExitStack() as stack:
            if self._setup is not None and self._drafter is not None:
                stack.callback(self._drafter.close)
            sampler = stack.enter_context(self._sampler())
            residual = None
            if self.config.verify == RESIDUAL and not self.sampling.is_greedy:
                # a grammar and penalties know the text, which drafts run ahead of
                params = self.sampling.without_past()
                assert params.seed is not None
                residual = Residual(stack.enter_context(Sampler(model, params)), params.seed)
            yield Generation(
                self._seq,
                self.prompt,
                drafter=self._drafter,
                controller=self.controller,
                sampler=sampler if budget is None else BudgetSampler(sampler, budget, self.piece),
                n_predict=self._n_predict,
                consume=self._stream.consume,
                residual=residual,
                adapters=self.adapters,
                pictures=self._pictures,
            )

    def _sampler(self) -> Sampler:
        model = self.context.model
        if self._n_top is None:
            return Sampler(model, self.sampling)
        return WatchedSampler(model, self.sampling, self._n_top, self.logprobs)

    def __iter__(self) -> Iterator[str]:
        with self.start() as text, closing(run_steps(self.context, text)) as steps:
            start = time.perf_counter_ns()
            for step in steps:
                us = _us_since(start)
                self.stats.total_us += us
                if self.stats.n_steps == 0:
                    self.record_prompt(text.n_reused, us - step.us)
                yield self.record_step(step)
                start = time.perf_counter_ns()
            yield self.finish()

    def remember(self) -> None:
        """Store the costs of passes and the hit rates of copies in the user's cache folder, for the
        first steps of the next run; nothing where few passes over copies were timed."""
        if self._setup is not None:
            hit_rates.save(self.context, self._setup.timings)


def _tokens_of(context: Context, prompt: str | Sequence[int]) -> list[int]:
    if isinstance(prompt, bytes | bytearray):  # sequences of whole numbers, too
        raise ArgumentError(f"the prompt is {type(prompt).__name__}; give text (str) or token ids")
    if not isinstance(prompt, str):
        return list(prompt)
    tokens = context.model.first_tokens(prompt, context.n_ctx + 1)
    if len(tokens) > context.n_ctx:
        model = context.model
        n_tokens = count_for_message(model, prompt)
        raise prompt_too_long(n_tokens, context.n_ctx, model.n_positions)
    return tokens


def count_for_message(model: Model, text: str) -> str:
    """The number of tokens of a text for a message, extrapolated for texts beyond N_COUNTED."""
    n = len(model.tokenize(text[:N_COUNTED]))
    return str(n) if len(text) <= N_COUNTED else f"about {n * len(text) // N_COUNTED}"


def generate_batch(completions: Sequence[Completion]) -> Iterator[tuple[Completion, str]]:
    """Advance completions of one context, each in a sequence of its own, with shared passes; yields
    pieces of text as they come.

    Each text is the one it would be alone. Times count for all that are being worked on.

    >>> a, b = (Completion(context, p, seq=context.sequence(i))             # doctest: +SKIP
    ...         for i, p in enumerate(("Once", "The king")))
    >>> for completion, piece in generate_batch([a, b]): ...                   # doctest: +SKIP
    """
    if len({completion.context for completion in completions}) > 1:
        raise ArgumentError("completions of one batch share a context")
    with ExitStack() as stack:
        texts = {stack.enter_context(each.start()): each for each in completions}
        if not texts:
            return
        steps = batch_steps(completions[0].context, list(texts))
        stack.callback(steps.close)
        start = time.perf_counter_ns()
        for events in steps:
            us = _us_since(start)
            pieces = []
            for text, step in events:
                completion = texts[text]
                if step is None:
                    completion.record_prompt(text.n_reused, completion.stats.total_us + us)
                elif isinstance(step, Step):
                    pieces.append((completion, completion.record_step(step)))
            for text, completion in texts.items():
                if completion.finish_reason is None:
                    completion.stats.total_us += us
                    if text.ended:
                        pieces.append((completion, completion.finish()))
            yield from pieces
            start = time.perf_counter_ns()


def _us_since(start: int) -> int:
    return (time.perf_counter_ns() - start) // 1000


def _require_known(context: Context, drafting: Mapping[str, object]) -> None:
    """Raise TypeError, with what to write instead, for arguments of another package."""
    if isinstance(context, str):
        raise TypeError(f"{context!r} is no context; make one with Model({context!r}).context()")
    for name in drafting.keys() - DraftFields.__annotations__.keys():
        advice = f"give sampling=SamplingParams({name}=...)"
        if name not in SamplingParams.__dataclass_fields__:
            advice = "give n_predict=..." if name == "max_tokens" else "see Completion"
        raise TypeError(f"there is no argument {name!r}; {advice}")


class CompletionOptions(TypedDict, total=False):
    """Keyword arguments of Completion that do not say how to draft."""

    seq: KVSequence | None
    n_predict: int
    sampling: SamplingParams | None
    stop: Sequence[str]
    logprobs: int | None
    shown: Mapping[int, str] | None
    adapters: Adapters | None
    pictures: Sequence[Picture]
    reasoning_budget: ReasoningBudget | None


class _AllOptions(CompletionOptions, DraftFields, total=False):
    """All keyword arguments of Completion."""

    draft: DraftChoice | DraftConfig


def generate(context: Context, prompt: str | Sequence[int], **options: Unpack[_AllOptions]) -> str:
    """Return the text that follows a prompt; options as for Completion."""
    return "".join(Completion(context, prompt, **options))
