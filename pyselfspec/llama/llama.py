"""``llama_cpp.Llama`` with drafts: everything is llama-cpp-python's, but for the passes that follow
the first token of a text.

The prompt is read and every token is drawn by llama_cpp's own code and objects. In between, several
tokens go through one pass, and those that the sampler draws as well are taken.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import hub
from ..errors import ArgumentError, ModelFileError, UnsupportedError
from ..masks.layer_mask import LayerMask
from ..runtime import _lib
from ..runtime.context import N_SEQ, Context
from ..runtime.guards import Alone
from ..runtime.kv import KVSequence
from ..speculate import controllers
from ..speculate.controllers import Controller
from ..speculate.draft_names import Names
from ..speculate.prepared import AUTO, Speculation, prepared
from ..speculate.requests import run
from ..speculate.text import Text
from ..speculate.types import GenerationStats
from . import _upstream
from .chain import Chain
from .lending import hindrance, lend

Stopping = Callable[[Any, Any], bool]

_GENERATE = inspect.signature(_upstream.Llama.generate)


@dataclass(frozen=True, slots=True)
class _Asked:
    """How to draft, as the user wants it."""

    draft: Names | None = AUTO
    options: Any = None
    mask: LayerMask | None = None
    profile: bool = True
    controller: str = controllers.DEFAULT
    n_seq_max: int = N_SEQ


class Llama(_upstream.Llama):
    """A ``llama_cpp.Llama`` whose texts are drafted: the same arguments, methods and results.

    draft: name of a drafter, or several, see ``drafters.names()``; "auto": those that suit the
        context; None: plain decoding, which is llama_cpp's own.
    options, mask, profile: of drafters, as for ``Completion``.
    controller: the name of one, see ``controllers.names()``.
    n_seq_max: sequences of the context; all but the first are for drafts.

    Where nothing can be drafted, "auto" decodes plainly, and ``why_plain`` is the reason: with
    embedding=True, vocab_only=True, a LoRA adapter, a draft_model of llama_cpp, and for models
    whose memory takes no token back.

    Belongs to one thread at a time, and a second thread is told so. A text that is begun ends the
    one before.

    Raises what ``llama_cpp.Llama`` does; ArgumentError, MaskError or UnsupportedError for drafts
    that do not go with the model or the other arguments.

    >>> llama = Llama("model.gguf", n_ctx=2048)                             # doctest: +SKIP
    >>> llama.create_completion("Once upon a time")["choices"][0]["text"]   # doctest: +SKIP
    """

    def __init__(
        self,
        model_path: str,
        *,
        draft: Names | None = AUTO,
        options: Any = None,
        mask: LayerMask | None = None,
        profile: bool = True,
        controller: str = controllers.DEFAULT,
        n_seq_max: int = N_SEQ,
        **llama_options: Any,
    ) -> None:
        self._asked = _Asked(draft, options, mask, profile, controller, n_seq_max)
        self._alone = Alone("this Llama")
        self._n_changes = 0  # of what the memory holds, but for drafted tokens
        self._text: object = None  # the one that was begun last
        self._logits_ahead = False  # those at hand may be of other tokens than the last
        self._lent: Context | None = None
        self._speculation: Speculation | None = None
        self.why_plain: str | None = None
        self.last_stats: GenerationStats | None = None
        if llama_options.get("draft_model") is not None:
            self.why_plain = "draft_model is llama_cpp's way to draft"
        elif draft is None:
            self.why_plain = "draft=None decodes plainly"
        _lib.set_verbose(llama_options.get("verbose", True))
        super().__init__(str(hub.model_path(model_path)), **llama_options)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    @property
    def _model(self) -> Any:
        return self._upstream_model

    @_model.setter
    def _model(self, model: Any) -> None:
        """llama_cpp has loaded the model, and makes the context next: with room for drafts."""
        self._upstream_model = model
        self.why_plain = self.why_plain or hindrance(self)
        if self.why_plain is None:
            self.context_params.n_seq_max = self._asked.n_seq_max
            self.context_params.kv_unified = True

    def _prepare(self) -> None:
        """Find out who drafts, or why nobody does."""
        asked = self._asked
        if self.why_plain is None:
            try:
                self._lent = lend(self)
                self._speculation = prepared(
                    self._lent,
                    asked.draft,
                    options=asked.options,
                    mask=asked.mask,
                    profile=asked.profile,
                )
            except (UnsupportedError, ModelFileError) as error:
                if asked.draft != AUTO:
                    raise
                self.why_plain = str(error)
            else:
                controllers.load(asked.controller)
                if self._speculation is None:
                    self.why_plain = "no drafter suits this context"
        elif asked.draft not in (AUTO, None):
            raise ArgumentError(f"nothing can be drafted here: {self.why_plain}; leave out draft")
        elif asked.mask is not None or asked.options is not None:
            raise ArgumentError(
                f"nothing can be drafted here: {self.why_plain}; leave out mask and options"
            )

    @property
    def draft(self) -> str | None:
        """Names of the drafters, None where decoding is plain."""
        return None if self._speculation is None else self._speculation.name

    # what llama_cpp does, one thread at a time

    def eval(self, tokens: Sequence[int]) -> None:
        _lib.require_not_forked()
        with self._alone:
            self._changed()
            super().eval(tokens)

    def sample(self, *args: Any, **kwargs: Any) -> int:
        with self._alone:
            if self._logits_ahead:
                self.n_tokens -= 1
                self.eval([int(self.input_ids[self.n_tokens])])
            return int(super().sample(*args, **kwargs))

    def _init_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """llama_cpp's sampler, with an error where no token is left to draw; there, a grammar would
        end the process."""
        made = super()._init_sampler(*args, **kwargs)
        if self._lent is not None:
            made.sample = partial(_sample, self._lent, made.sampler)
        return made

    def reset(self) -> None:
        with self._alone:
            self._changed()
            super().reset()  # type: ignore[no-untyped-call]

    def save_state(self) -> _upstream.LlamaState:
        with self._alone:
            return super().save_state()

    def load_state(self, state: _upstream.LlamaState) -> None:
        with self._alone:
            self._changed()
            super().load_state(state)

    def embed(self, *args: Any, **kwargs: Any) -> Any:
        _lib.require_not_forked()
        with self._alone:
            return super().embed(*args, **kwargs)

    def _changed(self) -> None:
        self._n_changes += 1
        self._logits_ahead = False

    def __getstate__(self) -> dict[str, Any]:
        drafting = {name: getattr(self._asked, name) for name in self._asked.__slots__}
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return state | drafting

    # generation

    def generate(
        self, tokens: Sequence[int], *args: Any, **kwargs: Any
    ) -> Generator[int, Sequence[int] | None, None]:
        """As there. Tokens that are sent into the generator are guesses there, which do not change
        the text; here they are not needed."""
        if self._speculation is None:
            return super().generate(tokens, *args, **kwargs)
        given = _GENERATE.bind(self, tokens, *args, **kwargs).arguments
        return self._drafted(list(tokens), given.get("stopping_criteria"), args, kwargs)

    def _drafted(
        self, prompt: list[int], stopping: Stopping | None, args: Any, kwargs: Any
    ) -> Generator[int, Any, None]:
        assert self._speculation is not None
        stats = GenerationStats(n_prompt=len(prompt))
        clock = _Clock(stats)
        with clock, self._alone:
            n_held = self.n_tokens
            n_same = self.longest_token_prefix(self._input_ids.tolist(), prompt)
            mine = self._text = object()
            self.last_stats = stats
            token = next(super().generate(prompt, *args, **kwargs), None)
        stats.n_prompt_reused, stats.prefill_us = n_same, stats.total_us
        if token is None:
            return
        stats.n_generated = 1
        goes_on = 0 < n_held <= 2 * n_same
        controller = self._speculation.controller(self._asked.controller, 0, goes_on=goes_on)
        history = [*self._input_ids.tolist(), token]
        yield token
        goes_on = True
        while goes_on:
            if self._text is not mine:
                raise ArgumentError(
                    "another text was begun in this Llama; finish one before the next, or make a "
                    "Llama for each"
                )
            goes_on = yield from self._followed(history, stopping, controller, clock)

    @property
    def _n_free(self) -> int:
        """Tokens that can be evaluated yet."""
        return min(self._n_ctx, len(self.input_ids)) - self.n_tokens

    def _followed(
        self,
        history: list[int],
        stopping: Stopping | None,
        controller: Controller,
        clock: _Clock,
    ) -> Generator[int, Any, bool]:
        """Yield what follows a text and add it, up to its end, or until somebody else has evaluated
        tokens, which are taken back; returns whether it goes on."""
        assert self._lent is not None and self._speculation is not None
        context = self._lent
        with ExitStack() as stack:
            with self._alone:
                seq = self._returned(history)
            n_changes = self._n_changes
            stack.callback(self._forget_ahead, n_changes)
            drafter = self._speculation.make()
            stack.callback(drafter.close)
            text = Text(
                seq,
                history,
                drafter=drafter,
                controller=controller,
                sampler=Chain(self, history[-1]),
                n_predict=self._n_free,
            )
            with clock, self._alone:
                run(context, text.begin())
            while not text.ended:
                with clock, self._alone:
                    self._logits_ahead = self._requires_eval = True
                    step = run(context, text.step())
                clock.stats.observe(step)
                for token in step.tokens:
                    self.n_tokens = len(history)
                    if stopping is not None and stopping(self._input_ids, self._scores[0]):
                        return False
                    history.append(token)
                    yield token
                    if self._n_changes != n_changes:
                        return True
        return True

    def _returned(self, history: list[int]) -> KVSequence:
        """The memory with this text in it again, whatever was evaluated behind it meanwhile."""
        assert self._lent is not None
        seq, n_past = self._lent.sequence(), len(history) - 1
        if seq.n_past < n_past or self.input_ids[:n_past].tolist() != history[:-1]:
            raise ArgumentError(
                "the text that was being generated is no longer in this Llama; do not reset it or "
                "load a state in between"
            )
        self.n_tokens = n_past
        if self._n_free < 1:
            self.eval(history[-1:])  # raises what llama_cpp raises in a full context
        seq.rollback(n_past)
        seq.refilled(history[:-1])
        return seq

    def _forget_ahead(self, n_changes: int) -> None:
        """The text is left: its memory is to hold no more than llama_cpp knows of."""
        assert self._lent is not None
        if self._n_changes == n_changes and not self._lent.closed:
            seq = self._lent.sequence()
            self.n_tokens = min(self.n_tokens, seq.n_past)
            seq.rollback(self.n_tokens)


def _sample(context: Context, chain: int, _ctx: Any, row: int = -1) -> int:
    """What ``LlamaSampler.sample`` does, row -1 being the last."""
    return _lib.sample_logits(chain, context.logits(row))


class _Clock:
    """Adds the time spent in ``with`` blocks to the total of some statistics."""

    def __init__(self, stats: GenerationStats) -> None:
        self.stats = stats
        self._start = 0

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *_error: object) -> None:
        self.stats.total_us += (time.perf_counter_ns() - self._start) // 1000
