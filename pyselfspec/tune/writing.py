"""Texts that the model writes by itself, with the states that its passes leave: several texts side
by side, each token evaluated once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..runtime.context import Context
from ..runtime.passes import Pass, Rows
from ..runtime.sampling import Sampler, SamplingParams
from ..util.closing import Closing
from .shards import F16_MAX, N_BEST, Shard

Progress = Callable[[int], None]


def ignore(_n_tokens: int) -> None:
    """For those who do not want to know."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and how it is to be answered. n_max: tokens of prompt and answer."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    n_max: int


def write(
    context: Context,
    blocks: Sequence[int],
    asked: Iterable[Asked],
    progress: Progress = ignore,
) -> Shard:
    """Answer all of these, in the sequences of a context that holds nothing.

    blocks: whose entering states are kept. progress: told how many tokens each pass evaluated.
    """
    waiting, free = deque(asked), list(range(min(context.n_seq_max, context.pass_width)))
    running: list[_Text] = []
    finished: dict[int, Shard] = {}
    n_started = 0
    with ExitStack() as stack:
        while waiting or running:
            while waiting and free:
                text = _Text(context, free.pop(), n_started, waiting.popleft())
                n_started += 1
                running.append(stack.enter_context(text))
                text.read_prompt(blocks)
                progress(len(text.asked.prompt))
            going = [text for text in running if not text.ended]
            if going:
                _step(context, going, blocks)
                progress(len(going))
            for text in running:
                if text.ended:
                    finished[text.number] = text.shard()
                    free.append(text.seq_id)
                    text.close()
            running = [text for text in running if not text.ended]
    return Shard.joined([finished[i] for i in range(n_started)])


def _step(context: Context, texts: Sequence[_Text], blocks: Sequence[int]) -> None:
    """One token of each."""
    rows = Rows.joined(Rows.of(t.seq_id, len(t.tokens), [t.next]) for t in texts)
    decoded = context.run(rows, Pass(leave=tuple(blocks)))
    assert decoded.hidden is not None
    best, probs = likeliest(decoded.logits)
    for i, text in enumerate(texts):
        text.add([text.next], decoded.hidden.numpy()[i : i + 1], best[i : i + 1], probs[i : i + 1])
        text.choose(i)


def likeliest(logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The N_BEST likeliest tokens of each row, likeliest first, and their probabilities."""
    n = min(N_BEST, logits.shape[1])
    best = np.argpartition(logits, -n, axis=1)[:, -n:]
    found = np.take_along_axis(logits, best, 1)
    order = np.lexsort((best, -found))  # of equal ones the lowest first, as the model chooses
    best, found = np.take_along_axis(best, order, 1), np.take_along_axis(found, order, 1)
    top = found[:, :1]
    probs = np.exp(found - top) / np.exp(logits - top).sum(1, keepdims=True)
    missing = ((0, 0), (0, N_BEST - n))  # of a tiny vocabulary
    return np.pad(best.astype(np.int32), missing), np.pad(probs.astype(np.float16), missing)


@dataclass(eq=False)
class _Text(Closing):
    """A text that is being written. tokens: evaluated so far. next: the one behind them."""

    context: Context
    seq_id: int
    number: int
    asked: Asked
    tokens: list[int] = field(default_factory=list)
    next: int = -1
    ended: bool = False

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.context.model, self.asked.sampling)
        self._kept: list[tuple[NDArray[np.float16], NDArray[np.int32], NDArray[np.float16]]] = []

    def close(self) -> None:
        self._sampler.close()
        self.context.sequence(self.seq_id).drop()

    def read_prompt(self, blocks: Sequence[int]) -> None:
        prompt, n = self.asked.prompt, self.context.n_batch
        for at in range(0, len(prompt), n):
            part = prompt[at : at + n]
            rows = Rows.of(self.seq_id, at, part)
            decoded = self.context.run(rows, Pass(leave=tuple(blocks)))
            assert decoded.hidden is not None
            best, probs = likeliest(decoded.logits)
            self.add(part, decoded.hidden.numpy(), best, probs)
        self._sampler.begin(prompt)
        self.choose(len(part) - 1)

    def add(
        self,
        tokens: Sequence[int],
        states: NDArray[np.float32],
        best: NDArray[np.int32],
        probs: NDArray[np.float16],
    ) -> None:
        self.tokens += tokens
        self._kept.append((states.clip(-F16_MAX, F16_MAX).astype(np.float16), best, probs))

    def choose(self, row: int) -> None:
        """The next token, after this row of the last pass."""
        self.next = self._sampler.sample(self.context, row)
        ends = self.context.model.is_eog(self.next)
        self.ended = ends or len(self.tokens) >= self.asked.n_max

    def shard(self) -> Shard:
        features, best, probs = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
        return Shard(
            np.array(self.tokens, np.int32),
            np.array([len(self.tokens)], np.int32),
            np.array([len(self.asked.prompt)], np.int32),
            features,
            best,
            probs,
        )
