"""One text, from a prompt in any form to pieces of text, with the defaults that most users want."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ..costs.calibration import costs_for, mask_costs
from ..errors import ArgumentError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.sampling import Sampler, SamplingParams
from . import controllers, drafters
from .adapt import Adapt, Adaptation, Equipment, State
from .controllers import Controller
from .controllers.fixed import Fixed
from .drafters import Drafter
from .loop import generate_steps
from .text_stream import TextStream
from .types import GenerationStats, Step

N_PREDICT = 128  # tokens
INTERRUPTED = "interrupted"  # finish reason of a text that the user cut off


def default_draft(context: Context, mask: LayerMask | None) -> str:
    """Draft with the mask that was given, and wherever else that is possible: the controller stops
    where it does not pay."""
    if mask is not None:
        return "layer-skip"
    possible = context.can_rollback and context.n_seq_max > 1 and default_mask(context)
    return "layer-skip" if possible else "off"


def default_mask(context: Context) -> LayerMask | None:
    """The mask to draft with when none was given: the model's own, else a guess, as far as the
    architecture allows. None where that leaves nothing to skip."""
    model = context.model
    if model.draft_mask is not None:
        return model.draft_mask
    guess, can = LayerMask.alternate(model.n_layer), context.mask_support
    attn, ffn = guess.skip_attn & can.attn, guess.skip_ffn & can.ffn
    return LayerMask(model.n_layer, attn, ffn) if attn or ffn else None


class Completion:
    """A text in the making. Iterate for pieces of it; then look at tokens, stats, finish_reason.

    prompt: text, or token ids, which also work for models without a tokenizer (pieces are empty).
    draft: name of a drafter, see ``drafters.names()``; default: see default_draft.
    mask: what the draft skips; default: that of the model's profile, else see default_mask.
    profile: False leaves the profile aside.
    controller: how long to draft; or the name of a controller, see ``controllers.names()``, which
        is then made with the costs known for the mask, see ``calibration.costs_for``.
    stop: strings that end the text.
    adapt: try other masks meanwhile; ``adaptation.state`` is where another text can go on. Each
        mask gets a controller of its own where that is given by name.

    >>> with Model("model.gguf") as model, model.context() as context:     # doctest: +SKIP
    ...     for piece in Completion(context, "Once upon a time"):
    ...         print(piece, end="")

    It can be iterated once. Stopping early leaves the context consistent.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        *,
        n_predict: int = N_PREDICT,
        draft: str | None = None,
        mask: LayerMask | None = None,
        profile: bool = True,
        controller: Controller | str = controllers.DEFAULT,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        adapt: Adapt | None = None,
    ) -> None:
        model = context.model
        if adapt is not None and adapt.state is not None:
            if mask is not None:
                raise ArgumentError("adapt.state has a mask of its own; give one or the other")
            mask = adapt.state.mask.require(model.n_layer)
        if mask is None and profile and draft != "off":
            mask = profiles.mask_for(model)
        if stop:
            model.require_tokenizer("stop strings need one")
        self.draft = draft or default_draft(context, mask)
        full = LayerMask.full(model.n_layer)
        self._mask = None if self.draft == "off" else mask or default_mask(context) or full
        self.sampling = (sampling or SamplingParams()).with_seed()
        self.prompt = model.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        self.tokens: list[int] = []
        self.text = ""
        self.stats = GenerationStats(n_prompt=len(self.prompt))
        self.finish_reason: str | None = None  # then "length", "eog", "stop" or INTERRUPTED

        self._started = False

        self._context = context
        self._n_predict = n_predict
        self._wanted = controller
        self._drafter: Drafter
        self._controller: Controller
        self.adaptation: Adaptation | None = None
        if adapt is None:
            self._drafter, self._controller = self._equip(self._mask)
        else:
            self._drafter = self._controller = self.adaptation = self._adapting(adapt)
        piece = model.piece if model.has_vocab else lambda _token: b""
        self._stream = TextStream(piece, model.is_eog, stop)

    @property
    def mask(self) -> LayerMask | None:
        """What the draft skips now; None where nothing is drafted."""
        return self.adaptation.state.mask if self.adaptation else self._mask

    @property
    def controller(self) -> Controller:
        """Who decides now."""
        return self.adaptation.controller if self.adaptation else self._controller

    def _equip(self, mask: LayerMask | None) -> Equipment:
        """What drafts with a mask, and what decides how long."""
        load = drafters.load(self.draft)
        if mask is None:  # "off" has no mask and does not ask how long
            return load(self._context, LayerMask.full(self._context.model.n_layer)), Fixed()
        controller = self._wanted
        if isinstance(controller, str):
            controller = controllers.load(controller)(costs_for(self._context, mask))
        return load(self._context, mask), controller

    def _adapting(self, adapt: Adapt) -> Adaptation:
        if self._mask is None:
            raise ArgumentError("there is no mask to adapt, since nothing is drafted here")
        assert self.sampling.seed is not None
        state = adapt.state or State(self._mask, self.sampling.seed)
        costs = mask_costs(self._context)
        return Adaptation(self._context, state, costs, self._equip, adapt.share)

    def __iter__(self) -> Iterator[str]:
        if self._started:
            raise ArgumentError("a completion is iterated once; make a new one for another text")
        self._started = True
        with Sampler(self._context.model, self.sampling) as sampler:
            steps = generate_steps(
                self._context,
                self.prompt,
                drafter=self._drafter,
                controller=self._controller,
                sampler=sampler,
                n_predict=self._n_predict,
                ends=self._stream.push,
            )
            while self._advance(steps):
                yield self._grow(self._stream.take())
            self.finish_reason = self._stream.finish_reason or "length"
            yield self._grow(self._stream.finish())

    def _advance(self, steps: Iterator[Step]) -> bool:
        """Take the next step, timed without what happens to the text in between."""
        start = time.perf_counter_ns()
        step = next(steps, None)
        us = (time.perf_counter_ns() - start) // 1000
        if step is None:
            return False
        if self.stats.n_steps == 0:
            self.stats.prefill_us = us - step.draft.draft_us - step.verify_us
        self.tokens += step.tokens
        self.stats.total_us += us
        self.stats.observe(step)
        return True

    def _grow(self, piece: str) -> str:
        self.text += piece
        return piece


def generate(context: Context, prompt: str | Sequence[int], **options: object) -> str:
    """The text that follows a prompt; options as for Completion."""
    return "".join(Completion(context, prompt, **options))  # type: ignore[arg-type]
