"""``llama_cpp.Llama`` with drafts.

llama_cpp's own code reads the prompt and draws every token. In between, a pass verifies several
draft tokens, and those that the sampler draws too are kept.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import Any

from .. import hub
from ..errors import ArgumentError, ModelFileError, UnsupportedError
from ..runtime.context import Context
from ..runtime.context_options import N_SEQ
from ..runtime.ffi import load, sampler_calls
from ..runtime.kv import KVSequence
from ..runtime.thread_guards import SingleThread
from ..speculate.config import AUTO, DraftConfig
from ..speculate.controllers import Controller
from ..speculate.draft_names import Names
from ..speculate.generation import Generation
from ..speculate.pass_requests import run
from ..speculate.residual import MATCH
from ..speculate.resolve import DraftSetup, is_continuation, resolve
from ..speculate.stats import GenerationStats
from . import _upstream
from .adopt import adopt_context, unsupported_reason
from .chain import Chain

Stopping = Callable[[Any, Any], bool]

_GENERATE = inspect.signature(_upstream.Llama.generate)


class Llama(_upstream.Llama):
    """A ``llama_cpp.Llama`` with drafts: the same arguments, methods and results.

    draft: names of drafters, "auto" for those that suit the context, or a DraftConfig with the name
        of a controller; None for llama_cpp's own plain decoding.
    n_seq_max: sequences of the context; all but the first are for drafts.

    If nothing can be drafted, "auto" decodes plainly and ``why_plain`` is the reason: with
    embedding=True, vocab_only=True or a draft_model of llama_cpp, with a quantized LoRA adapter,
    and for models whose KV cache or recurrent states cannot remove tokens.

    For one thread at a time; a second one gets an error. A new text ends the one before.

    Raises the errors of ``llama_cpp.Llama``; ArgumentError, MaskError or UnsupportedError for
    drafts that do not fit the model or the other arguments.

    >>> llama = Llama("model.gguf", n_ctx=2048)                             # doctest: +SKIP
    >>> llama.create_completion("Once upon a time")["choices"][0]["text"]   # doctest: +SKIP
    """

    def __init__(
        self,
        model_path: str,
        *,
        draft: Names | DraftConfig | None = AUTO,
        n_seq_max: int = N_SEQ,
        **llama_options: Any,
    ) -> None:
        self._config = DraftConfig.create(draft)
        self._n_seq_max = n_seq_max
        self._lock = SingleThread("this Llama")
        self._n_changes = 0  # changes of the KV cache, except by draft tokens
        self._text: object = None  # identifies the latest completion
        self._logits_ahead = False  # whether the context may have logits of draft tokens
        self._context: Context | None = None
        self._setup: DraftSetup | None = None
        self.why_plain: str | None = None
        self.last_stats: GenerationStats | None = None
        if llama_options.get("draft_model") is not None:
            self.why_plain = "draft_model uses llama_cpp's own drafts"
        elif self._config.draft is None:
            self.why_plain = "draft=None selects plain decoding"
        load.set_verbose(llama_options.get("verbose", True))
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
        """Set parameters of the context, which llama_cpp creates right after it sets the model."""
        self._upstream_model = model
        self.why_plain = self.why_plain or unsupported_reason(self)
        if self.why_plain is None:
            self.context_params.n_seq_max = self._n_seq_max
            self.context_params.kv_unified = True

    def _prepare(self) -> None:
        """Resolve the drafters, or set the reason for plain decoding."""
        config = self._config
        if not isinstance(config.controller, str) or config.verify != MATCH:
            raise ArgumentError("a Llama takes the name of a controller and verify='match' only")
        if self.why_plain is None:
            try:
                self._context = adopt_context(self)
                self._setup = resolve(self._context, config)
            except (UnsupportedError, ModelFileError) as error:
                if config.draft != AUTO:
                    raise
                self.why_plain = str(error)
            else:
                if self._setup is None:
                    self.why_plain = "no drafter works with this context"
        elif config.draft not in (AUTO, None):
            raise ArgumentError(f"nothing can be drafted here: {self.why_plain}; leave out draft")
        elif config.mask is not None or config.options:
            raise ArgumentError(
                f"nothing can be drafted here: {self.why_plain}; leave out mask and options"
            )

    @property
    def draft(self) -> str | None:
        """Names of the drafters, None where decoding is plain."""
        return None if self._setup is None else self._setup.name

    # methods of llama_cpp, for one thread at a time

    def eval(self, tokens: Sequence[int]) -> None:
        load.require_not_forked()
        with self._lock():
            self._changed()
            super().eval(tokens)

    def sample(self, *args: Any, **kwargs: Any) -> int:
        with self._lock():
            if self._logits_ahead:
                self.n_tokens -= 1
                self.eval([int(self.input_ids[self.n_tokens])])
            return int(super().sample(*args, **kwargs))

    def _init_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """Return llama_cpp's sampler, which raises an error if a grammar leaves no token; without
        it, the process would end."""
        made, context = super()._init_sampler(*args, **kwargs), self._context
        if context is not None:
            # as LlamaSampler.sample does; row -1 is the last
            made.sample = lambda _ctx, row=-1: sampler_calls.sample_logits(
                made.sampler, context.logits(row)
            )
        return made

    def reset(self) -> None:
        with self._lock():
            self._changed()
            super().reset()  # type: ignore[no-untyped-call]

    def save_state(self) -> _upstream.LlamaState:
        with self._lock():
            return super().save_state()

    def load_state(self, state: _upstream.LlamaState) -> None:
        with self._lock():
            self._changed()
            super().load_state(state)

    def embed(self, *args: Any, **kwargs: Any) -> Any:
        load.require_not_forked()
        with self._lock():
            return super().embed(*args, **kwargs)

    def _changed(self) -> None:
        self._n_changes += 1
        self._logits_ahead = False

    def __getstate__(self) -> dict[str, Any]:
        drafting = {"draft": self._config, "n_seq_max": self._n_seq_max}
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return state | drafting

    # generation

    def generate(
        self, tokens: Sequence[int], *args: Any, **kwargs: Any
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yield tokens, see llama_cpp. Ignores tokens sent into the generator, which are drafts
        there."""
        if self._setup is None:
            return super().generate(tokens, *args, **kwargs)
        given = _GENERATE.bind(self, tokens, *args, **kwargs).arguments
        return self._drafted(list(tokens), given.get("stopping_criteria"), args, kwargs)

    def _drafted(
        self, prompt: list[int], stopping: Stopping | None, args: Any, kwargs: Any
    ) -> Generator[int, Any, None]:
        assert self._setup is not None
        stats = GenerationStats(n_prompt=len(prompt))
        clock = _Clock(stats)
        with clock, self._lock():
            n_held = self.n_tokens
            n_same = self.longest_token_prefix(self._input_ids.tolist(), prompt)
            mine = self._text = object()
            self.last_stats = stats
            token = next(super().generate(prompt, *args, **kwargs), None)
        stats.n_prompt_reused, stats.prefill_us = n_same, stats.total_us
        if token is None:
            return
        stats.n_generated = 1
        continues = is_continuation(n_held, n_same)
        controller = self._setup.controller(self._config.controller, 0, continues=continues)
        history = [*self._input_ids.tolist(), token]
        yield token
        goes_on = True
        while goes_on:
            if self._text is not mine:
                raise ArgumentError(
                    "another completion was begun in this Llama; finish one before the next, or "
                    "use one Llama for each"
                )
            goes_on = yield from self._continue(history, stopping, controller, clock)

    @property
    def _n_free(self) -> int:
        """Number of tokens that still fit into the context."""
        return min(self._n_ctx, len(self.input_ids)) - self.n_tokens

    def _continue(
        self, history: list[int], stopping: Stopping | None, controller: Controller, clock: _Clock
    ) -> Generator[int, Any, bool]:
        """Yield the tokens after `history` and append them, up to the end of the text or until the
        caller evaluates other tokens. Return whether to continue, after removing those."""
        assert self._context is not None and self._setup is not None
        context = self._context
        with ExitStack() as stack:
            with self._lock():
                seq = self._restore(history)
            n_changes = self._n_changes
            stack.callback(self._remove_ahead, n_changes)
            drafter = self._setup.make()
            stack.callback(drafter.close)
            # under an image, which a chat handler has evaluated, ``input_ids`` holds old ids
            n_vocab = self.n_vocab()
            known = [token if 0 <= token < n_vocab else 0 for token in history]
            seq.replace_tokens(known[:-1])
            text = Generation(
                seq,
                known,
                drafter=drafter,
                controller=controller,
                sampler=Chain(self, history[-1]),
                n_predict=self._n_free,
            )
            with clock, self._lock():
                run(context, text.begin())
            while not text.ended:
                with clock, self._lock():
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

    def _restore(self, history: list[int]) -> KVSequence:
        """Remove tokens evaluated after this text from the KV cache and return its sequence."""
        assert self._context is not None
        seq, n_past = self._context.sequence(), len(history) - 1
        if seq.n_past < n_past or self.input_ids[:n_past].tolist() != history[:-1]:
            raise ArgumentError(
                "the completion that was being generated is no longer in this Llama; do not reset "
                "it or load a state before it ends"
            )
        self.n_tokens = n_past
        if self._n_free < 1:
            self.eval(history[-1:])  # raises what llama_cpp raises in a full context
        seq.rollback(n_past)
        return seq

    def _remove_ahead(self, n_changes: int) -> None:
        """Remove the tokens that llama_cpp does not count from the KV cache."""
        assert self._context is not None
        if self._n_changes == n_changes and not self._context.closed:
            seq = self._context.sequence()
            self.n_tokens = min(self.n_tokens, seq.n_past)
            seq.rollback(self.n_tokens)


class _Clock:
    """Adds the time spent in its ``with`` blocks to the total of statistics."""

    def __init__(self, stats: GenerationStats) -> None:
        self.stats = stats
        self._start = 0

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *_error: object) -> None:
        self.stats.total_us += (time.perf_counter_ns() - self._start) // 1000
